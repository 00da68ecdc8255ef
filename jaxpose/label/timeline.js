// The frames of a video by number: which one is shown, where images of the project are, and what the predictions show.

import { ask } from "/requests.js";

// Heights of a row of marks, and of a curve.
const MARKS_PX = 6, CURVE_PX = 26;
// The curves of a video, from the top: their kind, their words, and whether the least of several cameras counts. A confidence
// is drawn as it is, and a distance in px by its logarithm, because one failure would flatten all the rest.
const CURVES = [["confidence", "confidence", true], ["step_px", "largest step", false], ["pca_error_px", "PCA error", false]];
const DOUBTS = "doubts";
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
    this.forget();
    this.slider.max = this.number.max = this.frames - 1;
    this.select.value = session;
    this.element.hidden = false;
    this.askTraces(session);
    return "";
  }

  videosOf(session) { return this.sessions[session].videos.filter((video) => video >= 0); }

  // Forgets what the predictions show.
  forget() {
    // {kind: the height of each part of the video, from 0 (nothing to see) to 1 (look here)}.
    this.curves = new Map();
    // [first frame, last frame] of doubtful places of the tracks.
    this.doubts = [];
  }

  // Asks what the predictions show along the videos; draws each answer when it comes.
  askTraces(session) {
    this.forget();
    const kinds = [...CURVES.map(([kind]) => kind), DOUBTS];
    return Promise.all(kinds.map(async (kind) => {
      const answers = await Promise.all(this.videosOf(session).map((video) => ask(`/api/video/${video}/trace/${kind}`)));
      if (answers.some(({ status }) => status !== 200) || this.session !== session) return;
      this.take(kind, answers.map(({ content }) => content).filter((trace) => trace.length));
      this.draw();
    }));
  }

  // Takes a trace of the videos that have it.
  take(kind, traces) {
    const [, , isLeast] = CURVES.find(([one]) => one === kind) ?? [];
    if (kind === DOUBTS) this.doubts = traces.flat();
    else if (traces.length) this.curves.set(kind, heightsOf(joined(traces, isLeast ? Math.min : Math.max), isLeast));
    const words = CURVES.filter(([one]) => this.curves.has(one)).map(([, text]) => text);
    const parts = [words.length && `${words.join(", ")}: look where a line rises`, this.doubts.length && "upper marks: doubtful tracks", "marks at the bottom: images"];
    get("marks").title = parts.filter(Boolean).join("; ");
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

  // Draws the curves, and marks where doubtful tracks and images are.
  draw() {
    if (!this.isOpen) return;
    const canvas = get("marks"), curves = CURVES.filter(([kind]) => this.curves.has(kind));
    const doubtsTop = curves.length * CURVE_PX, imagesTop = doubtsTop + (this.doubts.length ? MARKS_PX + 1 : 0);
    const height = canvas.height = imagesTop + MARKS_PX, width = canvas.width = canvas.clientWidth || 1;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d"), style = getComputedStyle(canvas);
    const placeOf = (frame) => Math.round((Math.min(frame, this.frames - 1) / Math.max(1, this.frames - 1)) * (width - 2));
    context.fillStyle = context.strokeStyle = style.color;
    // Once for each place, of any number of images.
    for (const x of new Set([...this.images.keys()].map(placeOf))) context.fillRect(x, imagesTop, 2, MARKS_PX);
    curves.forEach(([kind], row) => drawCurve(context, this.curves.get(kind), row * CURVE_PX, width));
    // The words cover the curve behind them.
    context.fillStyle = style.getPropertyValue("--text");
    context.strokeStyle = style.getPropertyValue("--panel");
    context.lineWidth = 4;
    curves.forEach(([, words], row) => {
      for (const write of ["strokeText", "fillText"]) context[write](words, 2, row * CURVE_PX + 11);
    });
    context.fillStyle = style.getPropertyValue("--bad");
    for (const [first, last] of this.doubts) context.fillRect(placeOf(first), doubtsTop, placeOf(last) - placeOf(first) + 2, MARKS_PX);
  }
}

// Joins the traces of several videos by the worst value of each part, null without any.
function joined(traces, choose) {
  const parts = Math.max(...traces.map((trace) => trace.length));
  return Array.from({ length: parts }, (_, part) => {
    const values = traces.map((trace) => trace[Math.floor((part / parts) * trace.length)]).filter((value) => value !== null);
    return values.length ? choose(...values) : null;
  });
}

// The heights, 0 to 1, at which a trace is drawn.
function heightsOf(values, isConfidence) {
  if (isConfidence) return values.map((value) => 1 - (value ?? 0));
  const known = values.filter((value) => value !== null).sort((a, b) => a - b);
  const usual = known[Math.floor(known.length / 2)] || 1, most = Math.log1p((known.at(-1) ?? 0) / usual) || 1;
  return values.map((value) => Math.log1p((value ?? 0) / usual) / most);
}

// Draws heights as a line, of which each place shows the highest.
function drawCurve(context, heights, top, width) {
  context.beginPath();
  for (let x = 0; x < width; x++) {
    const [first, last] = [x, x + 1].map((at) => Math.floor((at / width) * heights.length));
    context.lineTo(x, top + 1 + (1 - Math.max(...heights.slice(first, Math.max(last, first + 1)))) * (CURVE_PX - 3));
  }
  context.stroke();
}
