// What calibrated cameras say about the labels of a moment: the server computes it from those that are saved.

import { ask } from "/frame.js";

export class Geometry {
  // `changed` is called when there is something else to draw, and `say` with a problem.
  constructor(changed, say) {
    this.changed = changed;
    this.say = say;
    this.asked = this.problem = "";
    this.found = null;
  }

  // Asks for the lines of a keypoint and the rings of all, unless they are known; `frames` are of the views.
  async look(moment, keypoint, frames) {
    const first = frames.find(Boolean), revisions = frames.map((frame) => frame?.revision ?? "");
    const wanted = [moment, keypoint, ...revisions].join();
    if (!first || wanted === this.asked) return;
    this.asked = wanted;
    const { status, content } = await ask(`/api/frame/${first.number}/geometry/${keypoint}`);
    if (this.asked !== wanted) return;
    this.found = status === 200 ? { ...content, moment, keypoint } : null;
    const problem = status === 200 ? "" : content.error;
    if (problem && problem !== this.problem) this.say(problem);
    this.problem = problem;
    this.changed();
  }

  // The lines [[x, y], ...] of a keypoint in a view.
  lines(moment, keypoint, view) {
    return this.has(moment) && this.found.keypoint === keypoint ? this.found.lines[view] : [];
  }

  // The rings [x, y] of all keypoints in a view, null where fewer than two views have a label.
  rings(moment, view) { return this.has(moment) ? this.found.rings[view] : []; }

  has(moment) { return this.found !== null && this.found.moment === moment; }
}
