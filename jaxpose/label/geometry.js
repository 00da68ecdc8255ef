// What calibrated cameras say about the labels of a moment: the server computes it from those that are saved.

import { isLabel } from "/frame.js";
import { ask, isLost } from "/requests.js";

export class Geometry {
  // `changed` is called when there is something else to draw, and `say` with a problem.
  constructor(changed, say) {
    this.changed = changed;
    this.say = say;
    this.asked = this.problem = "";
    this.isLost = false;
    this.frames = [];
    this.found = null;
  }

  // Asks for the lines of a keypoint and the rings of all, unless they are known; `frames` are of the views.
  async look(moment, keypoint, frames) {
    this.frames = frames;
    const first = frames.find(Boolean), revisions = frames.map((frame) => frame?.revision ?? "");
    const wanted = [moment, keypoint, ...revisions].join();
    if (!first || wanted === this.asked) return;
    this.asked = wanted;
    const saved = frames.map((frame) => frame?.saved ?? []);
    const { status, content } = await ask(`/api/frame/${first.number}/geometry/${keypoint}`);
    if (this.asked !== wanted) return;
    this.isLost = isLost(status);
    this.found = status === 200 ? { ...content, moment, keypoint, saved } : null;
    const problem = status === 200 ? "" : content.error;
    if (problem && problem !== this.problem) this.say(problem);
    this.problem = problem;
    this.changed();
  }

  // Asks again for what did not come; called when the server answers.
  askAgain() {
    if (!this.isLost) return;
    this.isLost = false;
    this.asked = "";
    this.changed();
  }

  // The lines [[x, y], ...] of a keypoint in a view.
  lines(moment, keypoint, view) {
    return this.has(moment) && this.found.keypoint === keypoint && this.isOf(keypoint, view) ? this.found.lines[view] : [];
  }

  // The rings [x, y] of all keypoints in a view, null where fewer than two views have a label.
  rings(moment, view) {
    return this.has(moment) ? this.found.rings[view].map((ring, keypoint) => (this.isOf(keypoint, view) ? ring : null)) : [];
  }

  // Whether it is known if a keypoint has a ring in a view, or that this cannot be known.
  knows(moment, keypoint, view) { return this.problem !== "" || (this.has(moment) && this.isOf(keypoint, view)); }

  has(moment) { return this.found !== null && this.found.moment === moment; }

  // Whether the other views show the labels that all this was computed from; those that are not saved yet are none of them.
  isOf(keypoint, view) {
    return this.frames.every((frame, other) => other === view || isLabel(frame?.points[keypoint], this.found.saved[other][keypoint]));
  }
}
