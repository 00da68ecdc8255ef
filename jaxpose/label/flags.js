// The images that the user has flagged to look at again; the queue shows them.

import { ask } from "/requests.js";

export class Flags {
  // `changed` is called after every change.
  constructor(queue, say, changed) {
    this.queue = queue;
    this.say = say;
    this.changed = changed;
    // The last change that was asked for; they are sent one after the other.
    this.last = Promise.resolve();
  }

  // The numbers of the flagged images; another set after every change.
  get images() { return this.queue.flagged; }

  take(numbers) {
    if (String([...this.images]) === String(numbers)) return;
    this.queue.flagged = new Set(numbers);
    this.changed();
  }

  // Flags an image, or removes its flag.
  toggle(number) {
    this.last = this.last.then(() => this.send(number));
    return this.last;
  }

  async send(number) {
    const isFlagged = !this.images.has(number);
    const { status, content } = await ask(`/api/frame/${number}/flag`, { flagged: isFlagged });
    if (status !== 200) return this.say(`not ${isFlagged ? "flagged" : "changed"}: ${content.error}`);
    this.take(content.flagged);
    this.say(isFlagged ? "flagged: the filter \"flagged\" lists this image" : "no longer flagged");
  }
}
