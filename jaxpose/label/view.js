// The view of one camera: its picture with the labels, and what to do with the mouse there. With one camera, it is the
// only view.

import { Pointer } from "/pointer.js";
import { Stage } from "/stage.js";

export class View {
  // `name` is the camera, "" for the only one; `page` is as in `Pointer`.
  constructor(name, page) {
    this.name = name;
    this.element = document.getElementById("view-template").content.firstElementChild.cloneNode(true);
    document.getElementById("stages").append(this.element);
    this.caption = this.element.querySelector(".caption");
    this.caption.hidden = !name;
    this.caption.textContent = name;
    this.problem = this.element.querySelector(".problem");
    this.stage = new Stage(this.element, () => page.draw());
    this.pointer = new Pointer(this, page);
    this.frame = null;
  }

  // Shows a picture, {bitmap} or {error}, and the labels of an image; `title` is its name.
  show(title, frame, picture) {
    const problem = picture.error || frame?.problem || "";
    this.title = title;
    this.frame = frame;
    this.problem.hidden = !problem;
    this.problem.textContent = problem;
    this.stage.show(picture.bitmap ?? null);
    this.dropOutside();
    this.element.setAttribute("aria-label", [this.name, title].filter(Boolean).join(": "));
  }

  // Forgets predictions outside of the picture.
  dropOutside() {
    if (this.stage.picture) this.frame?.dropOutside((place) => this.stage.covers(place));
  }
}

// The number of columns with which pictures of (width, height) are largest in a box.
export function bestColumns(count, [width, height], [boxWidth, boxHeight]) {
  let best = 1, largest = 0;
  for (let columns = 1; columns <= count; columns++) {
    const scale = Math.min(boxWidth / columns / width, boxHeight / Math.ceil(count / columns) / height);
    if (scale > largest) [best, largest] = [columns, scale];
  }
  return best;
}
