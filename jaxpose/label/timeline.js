// The frames of a video by number: which one is shown, where images of the project are, and how sure the predictions are.

import { ask } from "/requests.js";

// Heights of the marks, and of the curve with them.
const MARKS_PX = 6, CURVE_PX = 36;
const get = (id) => document.getElementById(id);

export class Timeline {
  // `seek` is called with a frame number when the user moves the slider, and `open` with a session's number.
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

  // Takes the sessions: the name of each, and the videos that recorded it together, one for each view, -1 without one; with
  // one camera, each video is a session.
  set(sessions) {
    this.sessions = sessions;
    this.select.replaceChildren(...sessions.map(({ name }, session) => new Option(name, session)));
  }

  // Opens a session; the error, if a video has no frames.
  async open(session) {
    const answers = await Promise.all(this.videosOf(session).map((video) => ask(`/api/video/${video}`)));
    const failed = answers.find(({ status }) => status !== 200);
    if (failed) {
      // The frames that are shown are still those of the session before.
      this.select.value = this.session ?? "";
      return failed.content.error;
    }
    this.session = session;
    this.frames = Math.min(...answers.map(({ content }) => content.frames));
    // {frame number: number of its image, of any view}.
    this.images = new Map(answers.flatMap(({ content }) => content.images));
    this.confidence = [];
    this.slider.max = this.number.max = this.frames - 1;
    this.select.value = session;
    this.element.hidden = false;
    this.askConfidence(session);
    return "";
  }

  videosOf(session) { return this.sessions[session].videos.filter((video) => video >= 0); }

  // Asks for the least mean confidence of each part of the videos, [] without predictions.
  async askConfidence(session) {
    const answers = await Promise.all(this.videosOf(session).map((video) => ask(`/api/video/${video}/confidence`)));
    if (answers.some(({ status }) => status !== 200) || this.session !== session) return;
    const curves = answers.map(({ content }) => content).filter((curve) => curve.length);
    const parts = Math.max(0, ...curves.map((curve) => curve.length));
    const least = (part) => Math.min(...curves.map((curve) => curve[Math.floor((part / parts) * curve.length)]));
    this.confidence = Array.from({ length: parts }, (_, part) => least(part));
    get("marks").title = parts ? "the lower the line, the less confident the predictions; marks: images" : "marks: images";
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
    // Once for each place, of any number of images.
    const places = new Set([...this.images.keys()].map((frame) => Math.round((frame / Math.max(1, this.frames - 1)) * (width - 2))));
    for (const x of places) context.fillRect(x, height - MARKS_PX, 2, MARKS_PX);
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
