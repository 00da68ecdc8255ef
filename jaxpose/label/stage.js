// The picture with its points: zoom, pan, and the places of points on the screen.
//
// Pixel i of the image covers i - 0.5 to i + 0.5, so the point p lies (p + 0.5) * scale from the picture's left edge.

const SVG = "http://www.w3.org/2000/svg";
const SMALLEST = 0.05, LARGEST = 64;
const MAGNIFIED = 8;
const RADIUS_PX = 6;
const FILTERS = ["none", "contrast(1.7)", "brightness(1.7) contrast(1.3)", "brightness(3)"];

export const colourOf = (k) => `hsl(${Math.round(k * 137.508) % 360} 85% ${k % 2 ? 70 : 58}%)`;

// Returns a function that calls another one before the browser paints the next time, once for any number of calls.
export const beforePainting = (act) => {
  let waits = false;
  return () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => { waits = false; act(); });
  };
};

export class Stage {
  // `element` holds the parts; `changed` is called when the stage must be painted again.
  constructor(element, changed) {
    this.changed = changed;
    this.element = element;
    [this.canvas, this.svg, this.magnifier] = [".picture", ".points", ".magnifier"].map((part) => element.querySelector(part));
    this.picture = null;
    this.scale = 1;
    this.left = this.top = 0;
    this.isFitted = true;
    this.filter = 0;
    this.hidesPoints = this.showsPredictions = false;
    this.cursor = null;
    this.shown = null;
    this.resize();
    new ResizeObserver(() => this.resize()).observe(this.element);
  }

  // Keeps the size: asking the browser makes it lay out the page.
  resize() {
    const { width, height } = this.element.getBoundingClientRect();
    this.size = [width, height];
    if (this.isFitted) this.fit(); else this.draw();
  }

  // Shows another picture (an ImageBitmap, or null); the part in view stays if the size does.
  show(picture) {
    const before = this.picture;
    this.picture = picture;
    const isSame = before && picture && before.width === picture.width && before.height === picture.height;
    if (picture && (!isSame || this.isFitted)) this.fit(); else this.draw();
  }

  fit() {
    if (!this.picture) return this.draw();
    const [width, height] = this.size;
    this.scale = Math.min(width / this.picture.width, height / this.picture.height) * 0.98 || 1;
    this.left = (width - this.picture.width * this.scale) / 2;
    this.top = (height - this.picture.height * this.scale) / 2;
    this.isFitted = true;
    this.draw();
  }

  // Zooms by a factor; the place (x, y) of the stage stays where it is.
  zoom(factor, [x, y] = this.size.map((length) => length / 2)) {
    const scale = Math.min(LARGEST, Math.max(SMALLEST, this.scale * factor));
    this.left = x - (x - this.left) * (scale / this.scale);
    this.top = y - (y - this.top) * (scale / this.scale);
    this.scale = scale;
    this.isFitted = false;
    this.draw();
  }

  pan(dx, dy) {
    this.left += dx;
    this.top += dy;
    this.isFitted = false;
    this.draw();
  }

  // The place of an event on the stage.
  place(event) {
    const box = this.element.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  toImage([x, y]) { return [(x - this.left) / this.scale - 0.5, (y - this.top) / this.scale - 0.5]; }
  toStage([x, y]) { return [this.left + (x + 0.5) * this.scale, this.top + (y + 0.5) * this.scale]; }

  // A point inside the picture, with three decimals.
  inside([x, y]) {
    const clamp = (value, length) => Math.round(1000 * Math.min(length - 0.5, Math.max(-0.5, value))) / 1000;
    return [clamp(x, this.picture.width), clamp(y, this.picture.height)];
  }

  covers([x, y]) {
    return x >= -0.5 && y >= -0.5 && x <= this.picture.width - 0.5 && y <= this.picture.height - 0.5;
  }

  // The middle of what is seen of the picture, or the cursor if it is on the picture.
  target() {
    if (this.cursor && this.covers(this.toImage(this.cursor))) return this.toImage(this.cursor);
    return this.toImage(this.size.map((length) => length / 2));
  }

  nextFilter() {
    this.filter = (this.filter + 1) % FILTERS.length;
    this.canvas.style.filter = this.magnifier.style.filter = FILTERS[this.filter];
    return FILTERS[this.filter];
  }

  draw() {
    this.pictureIsOld = true;
    this.changed();
  }

  // Paints the picture, and the points of a frame as an editor shows them; `names` and `edges` are of the keypoints of the
  // project, `lines` and `rings` of this view as in `Geometry`, and `onion` are labels of an earlier image, null without.
  paint(frame, editor, { names, edges, lines, rings, onion }) {
    const { current, hasSeveral } = editor;
    const animals = hasSeveral ? new Map(editor.animals.map((one) => [one, editor.nameOf(one)])) : null;
    this.shown = { frame, names, edges, lines, rings, onion, current, animals, isOther: (animal) => editor.isOther(animal) };
    if (this.pictureIsOld) this.drawPicture();
    this.pictureIsOld = false;
    this.drawPoints();
    this.magnify();
  }

  drawPicture() {
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = this.size.map((length) => Math.max(1, Math.ceil(length * ratio)));
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    const context = this.canvas.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, width, height);
    if (this.picture) {
      context.imageSmoothingEnabled = this.scale * ratio < 2;
      context.setTransform(this.scale * ratio, 0, 0, this.scale * ratio, this.left * ratio, this.top * ratio);
      context.drawImage(this.picture, 0, 0);
    }
  }

  drawPoints() {
    this.svg.replaceChildren();
    if (!this.shown?.frame || !this.picture || this.hidesPoints) return;
    const { frame, current, animals } = this.shown;
    if (this.shown.onion) this.drawOnion(this.shown.onion);
    for (const animal of frame.animals()) this.drawEdges(animal);
    this.drawGeometry();
    if (this.showsPredictions) frame.points.forEach((point, place) => point && !point.draft && this.drawPrediction(point, frame.predicted[place], this.nameOf(place)));
    frame.points.forEach((point, place) => point && this.drawPoint(point, place, place === current));
    if (animals) for (const [animal, name] of animals) this.drawName(animal, name);
    for (const [place, mine] of frame.conflicts) {
      if (!mine) continue;
      const [x, y] = this.toStage(mine);
      const group = this.add("g", { role: "img", "aria-label": `${this.nameOf(place)}, your label` });
      this.add("rect", { class: "mine", x: x - 7, y: y - 7, width: 14, height: 14 }, group);
    }
  }

  // The name of the keypoint in a place of the points; with several animals, after that of the animal.
  nameOf(place) {
    const { frame, names, animals } = this.shown, keypoint = names[place % names.length];
    return animals ? `${animals.get(frame.animalOf(place))} ${keypoint}` : keypoint;
  }

  drawEdges(animal) {
    const { frame, edges, animals } = this.shown;
    for (const edge of edges) {
      const points = edge.map((k) => frame.points[animal * frame.size + k]);
      if (!points[0] || !points[1]) continue;
      const [from, to] = points.map(({ x, y }) => this.toStage([x, y]));
      const line = this.add("line", { class: "edge", x1: from[0], y1: from[1], x2: to[0], y2: to[1] });
      if (animals) line.style.stroke = colourOf(animal);
    }
  }

  // The labels of an earlier image.
  drawOnion(onion) {
    const { names, edges } = this.shown, group = this.add("g", { class: "onion", role: "img", "aria-label": "labels of an earlier image" });
    const labels = onion.points.map((point) => (point && !point.draft && this.covers([point.x, point.y]) ? this.toStage([point.x, point.y]) : null));
    for (const animal of onion.animals()) {
      for (const edge of edges) {
        const [from, to] = edge.map((k) => labels[animal * onion.size + k]);
        if (from && to) this.add("line", { x1: from[0], y1: from[1], x2: to[0], y2: to[1] }, group);
      }
    }
    labels.forEach((label, place) => label && this.add("circle", { cx: label[0], cy: label[1], r: RADIUS_PX, fill: colourOf(place % names.length) }, group));
  }

  // The lines on which the other views show the current keypoint, and rings where they show it and unlabelled ones.
  drawGeometry() {
    const { frame, lines, rings, current } = this.shown;
    for (const line of lines) {
      const group = this.add("g", { class: rings[current] ? "epipolar faint" : "epipolar", role: "img", "aria-label": `${this.nameOf(current)}, epipolar line` });
      const points = line.map((point) => this.toStage(point).map((value) => value.toFixed(1)).join()).join(" ");
      for (const part of ["back", "line"]) this.add("polyline", { class: part, points }, group);
    }
    rings.forEach((ring, place) => {
      if (!ring || (place !== current && frame.points[place] && !frame.points[place].draft)) return;
      const [cx, cy] = this.toStage(ring);
      const group = this.add("g", { class: "triangulated", role: "img", "aria-label": `${this.nameOf(place)}, triangulated` });
      for (const part of ["back", "line"]) this.add("circle", { class: part, cx, cy, r: RADIUS_PX + (place === current ? 6 : 2) }, group);
    });
  }

  // The name of an animal, above its points.
  drawName(animal, name) {
    const { frame } = this.shown;
    const points = frame.places(animal).map((place) => frame.points[place]).filter(Boolean).map(({ x, y }) => this.toStage([x, y]));
    if (!points.length) return;
    const [x, y] = [0, 1].map((axis) => Math.min(...points.map((point) => point[axis])));
    const text = this.add("text", { class: "animal", x: x - RADIUS_PX, y: y - 4 * RADIUS_PX });
    text.style.fill = colourOf(animal);
    text.textContent = name;
  }

  // A cross where a labelled point was predicted, with a line to it.
  drawPrediction(point, predicted, name) {
    if (!predicted) return;
    const [from, [x, y]] = [point, predicted].map((one) => this.toStage([one.x, one.y]));
    const group = this.add("g", { class: "predicted", role: "img", "aria-label": `${name}, predicted` });
    this.add("line", { x1: from[0], y1: from[1], x2: x, y2: y }, group);
    this.add("path", { d: `M${x - 5} ${y - 5}l10 10m0 -10l-10 10` }, group);
  }

  // With several animals, the ring has the colour of the animal, and the dot that of the keypoint.
  drawPoint(point, place, isCurrent) {
    const { frame, names, animals, isOther } = this.shown, k = place % names.length, ofAnimal = frame.animalOf(place);
    const [x, y] = this.toStage([point.x, point.y]);
    const state = point.draft ? "draft" : point.v === 1 ? "hidden" : "visible";
    const group = this.add("g", {
      class: animals && isOther(ofAnimal) ? `${state} other` : state, role: "img",
      "aria-label": `${this.nameOf(place)}, ${state}`, "data-place": place,
    });
    const radius = isCurrent ? RADIUS_PX + 3 : RADIUS_PX;
    this.add("circle", { class: "shade", cx: x, cy: y, r: radius }, group);
    this.add("circle", { class: "ring", cx: x, cy: y, r: radius, stroke: colourOf(animals ? ofAnimal : k) }, group);
    // A draft is hollow.
    if (!point.draft) this.add("circle", { cx: x, cy: y, r: animals ? 2.5 : 1.5, fill: colourOf(k) }, group);
    if (isCurrent) this.add("text", { x: x + radius + 4, y: y - radius }, group).textContent = names[k];
  }

  add(kind, attributes, parent = this.svg) {
    const element = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return parent.appendChild(element);
  }

  // The place in the points of the one that is nearest to (x, y) of the stage and a few pixels away, -1 without one.
  hit([x, y]) {
    if (!this.shown?.frame || this.hidesPoints) return -1;
    let nearest = -1, least = RADIUS_PX + 4;
    this.shown.frame.points.forEach((point, place) => {
      if (!point) return;
      const [px, py] = this.toStage([point.x, point.y]);
      const distance = Math.hypot(px - x, py - y);
      if (distance <= least) [nearest, least] = [place, distance];
    });
    return nearest;
  }

  // Draws the surroundings of the cursor, or of the current point, enlarged.
  magnify() {
    if (this.magnifier.hidden || !this.picture) return;
    const point = this.shown?.frame?.points[this.shown.current];
    const [x, y] = this.cursor ? this.toImage(this.cursor) : point ? [point.x, point.y] : this.target();
    const side = this.magnifier.width, middle = side / 2;
    const context = this.magnifier.getContext("2d");
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.fillRect(0, 0, side, side);
    context.imageSmoothingEnabled = false;
    const shift = (value) => middle - (value + 0.5) * MAGNIFIED;
    context.setTransform(MAGNIFIED, 0, 0, MAGNIFIED, shift(x), shift(y));
    context.drawImage(this.picture, 0, 0);
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.strokeStyle = "#ffffff";
    context.strokeRect(middle - 4, middle - 4, 8, 8);
  }
}
