// The frames of a video by number: which one is shown, where images of the project are, and how sure the predictions are.

import { ask } from "/frame.js";

// Heights of the marks, and of the curve with them.
const MARKS_PX = 6, CURVE_PX = 36;
const get = (id) => document.getElementById(id);

export class Timeline {
  // `seek` is called with a frame number when the user moves the slider, and `open` with a video's number.
  constructor(seek, open) {
    this.element = get("timeline");
    this.slider = get("slider");
    this.number = get("frame-number");
    this.select = get("timeline-video");
    for (const input of [this.slider, this.number]) input.addEventListener("input", () => seek(Number(input.value)));
    for (const input of [this.slider, this.number, this.select]) input.addEventListener("change", () => input.blur());
    this.select.addEventListener("change", () => open(Number(this.select.value)));
    new ResizeObserver(() => this.draw()).observe(get("marks"));
  }

  get isOpen() { return !this.element.hidden; }

  set(names) { this.select.replaceChildren(...names.map((name, video) => new Option(name, video))); }

  // Opens a video; the error, if it has no frames.
  async open(video) {
    const { status, content } = await ask(`/api/video/${video}`);
    if (status !== 200) return content.error;
    this.video = video;
    this.frames = content.frames;
    // {frame number: number of its image}.
    this.images = new Map(content.images);
    this.confidence = [];
    this.slider.max = this.number.max = this.frames - 1;
    this.select.value = video;
    this.element.hidden = false;
    this.askConfidence(video);
    return "";
  }

  // Asks for the least mean confidence of each part of the video, [] without predictions.
  async askConfidence(video) {
    const { status, content } = await ask(`/api/video/${video}/confidence`);
    if (status !== 200 || this.video !== video) return;
    this.confidence = content;
    get("marks").title = content.length ? "the lower the line, the less confident the predictions; marks: images" : "marks: images";
    this.draw();
  }

  close() { this.element.hidden = true; }

  // A frame number inside the video.
  inside(frame) { return Math.min(this.frames - 1, Math.max(0, Math.round(frame) || 0)); }

  show(frame) {
    this.frame = frame;
    this.slider.value = frame;
    if (document.activeElement !== this.number) this.number.value = frame;
    get("frame-count").textContent = `of ${this.frames - 1}`;
    this.draw();
  }

  // Draws the confidence, and marks where images are.
  draw() {
    if (!this.isOpen) return;
    const canvas = get("marks"), has = this.confidence.length > 0;
    const height = canvas.height = has ? CURVE_PX : MARKS_PX, width = canvas.width = canvas.clientWidth || 1;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.fillStyle = context.strokeStyle = getComputedStyle(canvas).color;
    for (const frame of this.images.keys()) context.fillRect((frame / Math.max(1, this.frames - 1)) * (width - 2), height - MARKS_PX, 2, MARKS_PX);
    if (!has) return;
    context.beginPath();
    for (let x = 0; x < width; x++) {
      const [first, last] = [x, x + 1].map((at) => Math.floor((at / width) * this.confidence.length));
      const least = Math.min(...this.confidence.slice(first, Math.max(last, first + 1)));
      context.lineTo(x, 1 + (1 - least) * (height - MARKS_PX - 2));
    }
    context.stroke();
  }
}
