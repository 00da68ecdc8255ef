// The pictures of images and video frames: fetched once, and the latest ones kept.

import { askPicture, isSlowLine } from "/requests.js";

// As many pictures are kept as the memory bears.
const MOST_PIXELS = 24_000_000;

export class Pictures {
  // `least` is how many are always kept; `isShown` returns whether a bitmap is on the screen; `hasPreviews` is whether
  // pictures may first come with fewer bytes.
  constructor(least, isShown, hasPreviews = false) {
    this.least = least;
    this.isShown = isShown;
    this.hasPreviews = hasPreviews;
    this.kept = new Map();
  }

  // A picture as `askPicture` returns it, with its number and isPreview: of an image by its number, of a video frame by
  // "video/frame".
  get(number) {
    const known = this.kept.get(number);
    this.kept.delete(number);
    const made = known ?? this.load(number);
    this.kept.set(number, made);
    return made;
  }

  async load(number, isPreview = this.hasPreviews && isSlowLine()) {
    const path = typeof number === "string" ? `/video/${number}` : `/image/${number}`;
    const picture = await askPicture(isPreview ? `${path}?preview=1` : path);
    // The next time, there may be one.
    if (picture.error) this.kept.delete(number); else this.forget(picture.bitmap.width * picture.bitmap.height);
    return { ...picture, number, isPreview };
  }

  // The whole picture instead of a preview, or of the file that replaced the one before.
  renew(number) {
    const made = this.load(number, false);
    this.kept.set(number, made);
    return made;
  }

  forget(pixels) {
    const most = Math.max(this.least, Math.floor(MOST_PIXELS / pixels));
    for (const [number, made] of [...this.kept].slice(0, Math.max(0, this.kept.size - most))) {
      this.kept.delete(number);
      made.then(({ bitmap }) => bitmap && !this.isShown(bitmap) && bitmap.close());
    }
  }
}
