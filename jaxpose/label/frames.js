// The labels of the images that were shown: fetched together with those of the next images, and the latest ones kept.

import { Frame } from "/frame.js";
import { ask } from "/requests.js";

const MOST_FRAMES = 200;
// Labels of this many images come with one request.
const AT_ONCE = 16;
const AHEAD = Array.from({ length: AT_ONCE }, (_, step) => step);

export class Frames {
  // `near` returns the images of all views some steps from one in the list; `tell` is as in `Frame`.
  constructor(near, tell) {
    this.near = near;
    this.tell = tell;
    this.kept = new Map();
    this.shown = new Set();
  }

  // `size` is the number of keypoints of an animal.
  set(size) { this.size = size; }

  // The labels of an image, null if the server does not answer.
  async get(number) {
    if (this.kept.has(number)) return this.kept.get(number);
    const others = this.near(number, AHEAD).filter((other) => other !== number && !this.kept.has(other));
    const numbers = [number, ...others].slice(0, AT_ONCE);
    const answer = ask(`/api/frames?numbers=${numbers}`);
    numbers.forEach((other, place) => this.kept.set(other, answer.then(({ status, content }) => {
      if (status === 200) return new Frame(other, content[place], this.size, this.tell);
      this.kept.delete(other);
      return null;
    })));
    for (const [other, kept] of [...this.kept].slice(0, Math.max(0, this.kept.size - MOST_FRAMES))) {
      kept.then((frame) => { if (frame && this.canForget(frame)) this.kept.delete(other); });
    }
    return this.kept.get(number);
  }

  // What the history has stays, so that no image has two states here; and so do unsaved labels and copied drafts.
  canForget(frame) {
    const hasCopies = frame.points.some((point) => point?.draft && point.p === undefined);
    return frame.isSaved && !frame.isInHistory && !frame.ownConflicts.size && !hasCopies && !this.shown.has(frame);
  }

  // Asks for the labels of an image anew, if it was shown; returns whether they came and crossed no edit.
  async reload(number) {
    const frame = await this.kept.get(number);
    return !frame || (!frame.isSending && frame.reload());
  }

  // Asks for the predictions of all images that were shown; returns false without an answer.
  async predict() {
    const numbers = [...this.kept.keys()];
    for (let first = 0; first < numbers.length; first += AT_ONCE) {
      const some = numbers.slice(first, first + AT_ONCE);
      const { status, content } = await ask(`/api/frames?numbers=${some}`);
      if (status !== 200) return false;
      for (const [place, number] of some.entries()) (await this.kept.get(number))?.predict(content[place].predicted);
    }
    return true;
  }
}
