// The onion skin: the labels of an earlier image, drawn faintly under those of the shown one.

export class Onion {
  // `labelsOf` returns the labels of an image (a promise), null if they do not come; `draw` is called when some have come.
  constructor(queue, labelsOf, draw) {
    this.queue = queue;
    this.labelsOf = labelsOf;
    this.draw = draw;
    this.isOn = false;
    this.clear();
  }

  // Shows nothing, as under the frames of a video, which have no labels.
  clear() {
    this.moment = -1;
    // Of each view, null without any.
    this.frames = [];
  }

  // Finds the labels to show under a moment; `moments` has the numbers of the images of all.
  async look(moment, moments) {
    this.clear();
    this.moment = moment;
    const numbers = this.isOn ? moments[moment].map((number, view) => (number < 0 ? -1 : this.before(moment, view, moments))) : [];
    const frames = await Promise.all(numbers.map((number) => (number < 0 ? null : this.labelsOf(number))));
    // Another moment may be shown by now, or the skin be off.
    if (this.moment !== moment || !this.isOn) return;
    this.frames = frames;
    this.draw();
  }

  // The nearest image with labels before a moment, in the same view of the same video; -1 without one.
  before(moment, view, moments) {
    const { videos, counts, images } = this.queue, earlier = (one) => inOrder.compare(images[one], images[moment]) < 0;
    let nearest = -1;
    moments.forEach((numbers, one) => {
      if (videos[one] !== videos[moment] || !(counts[numbers[view]] > 0) || !earlier(one)) return;
      if (nearest < 0 || inOrder.compare(images[one], images[nearest]) > 0) nearest = one;
    });
    return nearest < 0 ? -1 : moments[nearest][view];
  }
}

// Images that were added later come last in the project; the numbers in their names tell the order in the video.
const inOrder = new Intl.Collator("en", { numeric: true });
