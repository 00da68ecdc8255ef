// The pictures of images and video frames: fetched once, and the latest ones kept.

import { askPicture } from "/requests.js";

// As many pictures are kept as the memory bears.
const MOST_PIXELS = 24_000_000;

export class Pictures {
  // `least` is how many are always kept; `isShown` returns whether a bitmap is on the screen.
  constructor(least, isShown) {
    this.least = least;
    this.isShown = isShown;
    this.kept = new Map();
  }

  // A picture as `askPicture` returns it: of an image by its number, of a video frame by "video/frame".
  get(number) {
    const known = this.kept.get(number);
    this.kept.delete(number);
    const made = known ?? this.load(number);
    this.kept.set(number, made);
    return made;
  }

  async load(number) {
    const picture = await askPicture(typeof number === "string" ? `/video/${number}` : `/image/${number}`);
    // The next time, there may be one.
    if (picture.error) this.kept.delete(number); else this.forget(picture.bitmap.width * picture.bitmap.height);
    return picture;
  }

  // Forgets a picture, which may be shown.
  drop(number) { this.kept.delete(number); }

  forget(pixels) {
    const most = Math.max(this.least, Math.floor(MOST_PIXELS / pixels));
    for (const [number, made] of [...this.kept].slice(0, Math.max(0, this.kept.size - most))) {
      this.kept.delete(number);
      made.then(({ bitmap }) => bitmap && !this.isShown(bitmap) && bitmap.close());
    }
  }
}
