// The pictures of images and video frames: fetched once, and the latest ones kept.

import { isLost, runHeader } from "/frame.js";

// As many pictures are kept as the memory bears.
const MOST_PIXELS = 24_000_000;

export class Pictures {
  // `least` is how many are always kept; `isShown` returns whether a bitmap is on the screen.
  constructor(least, isShown) {
    this.least = least;
    this.isShown = isShown;
    this.kept = new Map();
  }

  // A picture, {bitmap} or {error, isLost}: of an image by its number, of a video frame by "video/frame".
  get(number) {
    const known = this.kept.get(number);
    this.kept.delete(number);
    const made = known ?? this.load(number);
    this.kept.set(number, made);
    return made;
  }

  async load(number) {
    try {
      const answer = await fetch(typeof number === "string" ? `/video/${number}` : `/image/${number}`, { headers: runHeader() });
      if (!answer.ok) {
        // The next time, there may be a picture.
        this.kept.delete(number);
        return { error: (await answer.json()).error, isLost: isLost(answer.status) };
      }
      const bitmap = await createImageBitmap(await answer.blob());
      this.forget(bitmap.width * bitmap.height);
      return { bitmap };
    } catch {
      this.kept.delete(number);
      return { error: "jaxpose label does not answer", isLost: true };
    }
  }

  forget(pixels) {
    const most = Math.max(this.least, Math.floor(MOST_PIXELS / pixels));
    for (const [number, made] of [...this.kept].slice(0, Math.max(0, this.kept.size - most))) {
      this.kept.delete(number);
      made.then(({ bitmap }) => bitmap && !this.isShown(bitmap) && bitmap.close());
    }
  }
}
