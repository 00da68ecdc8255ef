// The page: opens images, turns clicks and keys into edits, and shows the state of the labels.

import { Frame, ask } from "/frame.js";
import { actionOf, listKeys } from "/keys.js";
import { Queue } from "/queue.js";
import { Timeline } from "/timeline.js";
import { Training } from "/training.js";
import { Stage, beforePainting, colourOf } from "/stage.js";

const POLL_MS = 2000;
// Images fetched ahead: the next ones, and the previous ones. As many pictures are kept as the memory bears.
const AHEAD = [1, 2, 3, 4, 5, 6, -1, -2], MOST_PIXELS = 24_000_000, MOST_FRAMES = 200;
// Labels of this many images come with one request.
const FRAMES_AT_ONCE = 16;
const DRAG_PX = 3;
const get = (id) => document.getElementById(id);
const copyOf = (points) => points.map((point) => point && { ...point });

class Page {
  constructor() {
    this.draw = beforePainting(() => this.paint());
    this.stage = new Stage(() => this.draw());
    this.queue = new Queue((number) => this.go(number));
    this.timeline = new Timeline((frame) => this.seek(frame), (video) => this.openVideo(video));
    this.training = new Training((text) => this.say(text));
    this.pictures = new Map();
    this.frames = new Map();
    this.frame = null;
    this.keypoint = 0;
    this.hidesNext = false;
    this.undone = [];
    this.done = [];
    this.version = 0;
    this.failure = this.lost = "";
    this.unwritten = 0;
    this.fileProblem = "";
    this.keypointStates = [];
  }

  async start() {
    // The token is in the cookie now; the address need not show it.
    history.replaceState(null, "", "/");
    listKeys(get("help-rows"));
    await this.loadProject();
    if (!this.queue.counts.includes(0)) this.queue.filter.value = "all";
    this.queue.choose();
    this.listen();
    if (this.queue.images.length) await this.go(this.queue.shown[0] ?? 0);
    else if (this.project.videos.length) await this.openVideo(0);
    else this.say("this project has no image to label");
    setInterval(() => this.poll(), POLL_MS);
    await this.poll();
  }

  async loadProject() {
    const { status, content } = await ask("/api/project");
    if (status !== 200) return this.say(content.error);
    this.project = content;
    this.version = content.version;
    this.predictions = content.predictions;
    this.queue.set(content.images, content.counts, content.keypoints.length);
    this.queue.rank(content.confidence, content.error_px);
    const name = content.folder.split("/").pop();
    document.title = `${name} \u2013 jaxpose label`;
    get("name").textContent = name;
    get("name").title = content.folder;
    this.timeline.set(content.videos);
    get("video-button").hidden = !content.videos.length;
    this.drawProgress();
  }

  // Images ------------------------------------------------------------------------------------------------------------

  async go(number) {
    if (number === undefined || number < 0) return;
    this.timeline.close();
    this.wanted = number;
    this.hidesNext = false;
    this.queue.select(number);
    const [frame, picture] = await Promise.all([this.frameOf(number), this.pictureOf(number)]);
    // Another image may have been asked for meanwhile.
    if (this.wanted !== number) return;
    this.frame = frame;
    this.showPicture(picture, picture.error || frame?.problem || "");
    if (picture.bitmap) frame?.dropOutside((place) => this.stage.covers(place));
    this.keypoint = Math.max(0, frame ? frame.points.findIndex((point) => !point || point.draft) : 0);
    get("image").textContent = this.project.images[number];
    this.stage.element.setAttribute("aria-label", `Image ${this.project.images[number]}`);
    this.draw();
    this.fetchAhead(number);
  }

  showPicture(picture, problem) {
    get("problem").hidden = !problem;
    get("problem").textContent = problem;
    this.stage.show(picture.bitmap ?? null);
  }

  // Videos ------------------------------------------------------------------------------------------------------------

  // Shows the frames of the video of this image, or the images again.
  async toggleVideo() {
    if (this.timeline.isOpen) return this.go(this.queue.current >= 0 ? this.queue.current : undefined);
    if (!this.project.videos.length) return this.say("this project has no videos");
    await this.openVideo(Math.max(0, this.project.videos.indexOf(this.queue.videos[this.queue.current])));
  }

  async openVideo(video) {
    const problem = await this.timeline.open(video);
    if (problem) return this.say(problem);
    const shown = [...this.timeline.images].find(([, number]) => number === this.queue.current);
    await this.seek(shown ? shown[0] : 0);
  }

  // Shows a frame; of those that are asked for while one is decoded, only the last.
  async seek(given) {
    const frame = this.timeline.inside(given);
    this.wanted = `${this.timeline.video}/${frame}`;
    this.timeline.show(frame);
    if (this.isSeeking) return;
    this.isSeeking = true;
    let wanted, picture;
    do {
      wanted = this.wanted;
      picture = await this.pictureOf(wanted);
    } while (this.wanted !== wanted && typeof this.wanted === "string");
    this.isSeeking = false;
    if (this.wanted === wanted) this.showFrame(wanted, picture);
  }

  showFrame(place, picture) {
    const { video, frame } = this.timeline, number = this.timeline.images.get(frame);
    const text = `${this.project.videos[video]}, frame ${frame}`;
    this.frame = null;
    this.shownFrame = place;
    this.showPicture(picture, picture.error || "");
    get("image").textContent = number === undefined ? text : `${text}: ${this.project.images[number]}`;
    this.stage.element.setAttribute("aria-label", `Video ${text}`);
    this.draw();
    const near = AHEAD.map((step) => frame + step).filter((other) => this.timeline.inside(other) === other);
    for (const other of near) this.pictureOf(`${video}/${other}`);
  }

  // Makes the frame an image of the project, and shows it.
  async labelFrame() {
    if (this.shownFrame !== this.wanted) return;
    const { status, content } = await ask(`/api/video/${this.shownFrame}`, {});
    if (status !== 200) return this.say(content.error);
    if (content.image >= this.queue.images.length) {
      await this.loadProject();
      this.queue.choose();
    }
    await this.go(content.image);
  }

  fetchAhead(number) {
    for (const other of this.queue.near(number, AHEAD)) {
      this.pictureOf(other);
      this.frameOf(other);
    }
  }

  // A picture, {bitmap} or {error}; the latest ones are kept.
  pictureOf(number) {
    const known = this.pictures.get(number);
    this.pictures.delete(number);
    const made = known ?? this.loadPicture(number);
    this.pictures.set(number, made);
    return made;
  }

  async loadPicture(number) {
    try {
      const answer = await fetch(typeof number === "string" ? `/video/${number}` : `/image/${number}`);
      if (!answer.ok) return { error: (await answer.json()).error };
      const bitmap = await createImageBitmap(await answer.blob());
      this.forgetPictures(bitmap.width * bitmap.height);
      return { bitmap };
    } catch {
      this.pictures.delete(number);
      return { error: "jaxpose label does not answer" };
    }
  }

  forgetPictures(pixels) {
    const most = Math.max(AHEAD.length + 2, Math.floor(MOST_PIXELS / pixels));
    for (const [number, made] of [...this.pictures].slice(0, Math.max(0, this.pictures.size - most))) {
      this.pictures.delete(number);
      made.then(({ bitmap }) => bitmap && bitmap !== this.stage.picture && bitmap.close());
    }
  }

  // The labels of an image, null if the server does not answer; those of the next images come with it.
  async frameOf(number) {
    if (this.frames.has(number)) return this.frames.get(number);
    const ahead = Array.from({ length: FRAMES_AT_ONCE - 1 }, (_, step) => step + 1);
    const numbers = [number, ...this.queue.near(number, ahead).filter((other) => !this.frames.has(other))];
    const answer = ask(`/api/frames?numbers=${numbers}`);
    numbers.forEach((other, place) => this.frames.set(other, answer.then(({ status, content }) => {
      if (status === 200) return new Frame(other, content[place], (...news) => this.heard(...news));
      this.frames.delete(other);
      return null;
    })));
    for (const [other, kept] of [...this.frames].slice(0, Math.max(0, this.frames.size - MOST_FRAMES))) {
      // Labels that are not saved yet, and copied drafts, stay.
      kept.then((frame) => {
        if (frame?.isSaved && frame !== this.frame && !frame.points.some((point) => point?.draft && point.p === undefined)) this.frames.delete(other);
      });
    }
    return this.frames.get(number);
  }

  // State -------------------------------------------------------------------------------------------------------------

  // What a frame tells about its saving.
  heard(frame, kind, text) {
    if (kind === "refused") this.say(text);
    this.failure = kind === "failed" ? text : kind === "saved" ? "" : this.failure;
    this.isSaving = kind === "saving" || (kind === "changed" && this.isSaving);
    this.queue.counts[frame.number] = frame.points.filter((point) => point && !point.draft).length;
    this.drawProgress();
    this.queue.draw();
    if (frame === this.frame && kind !== "saving") this.draw();
  }

  async poll() {
    if (this.isPolling) return;
    this.isPolling = true;
    const { status, content } = await ask(`/api/changes?since=${this.version}`);
    this.isPolling = false;
    this.lost = status === 200 ? "" : content.error;
    if (status !== 200) return this.drawProgress();
    this.version = content.version;
    this.unwritten = content.unwritten;
    this.fileProblem = content.problem;
    this.training.show(content.training);
    this.queue.flagged = new Set(content.conflicts);
    if (content.predictions !== this.predictions) await this.takePredictions();
    if (content.images !== this.queue.images.length) await this.loadProject();
    for (const [text, count] of Object.entries(content.counts)) {
      const number = Number(text);
      this.queue.counts[number] = count;
      if (!this.frames.has(number)) continue;
      const frame = await this.frames.get(number);
      if (frame && !frame.sending) await frame.reload();
    }
    this.queue.draw();
    this.drawProgress();
  }

  // Shows the predictions of another run.
  async takePredictions() {
    await this.loadProject();
    const numbers = [...this.frames.keys()];
    for (let first = 0; first < numbers.length; first += FRAMES_AT_ONCE) {
      const some = numbers.slice(first, first + FRAMES_AT_ONCE);
      const { status, content } = await ask(`/api/frames?numbers=${some}`);
      if (status !== 200) return;
      for (const [place, number] of some.entries()) (await this.frames.get(number))?.predict(content[place].predicted);
    }
    if (this.stage.picture) this.frame?.dropOutside((place) => this.stage.covers(place));
    this.queue.choose();
    if (this.timeline.isOpen) this.timeline.askConfidence(this.timeline.video);
    this.draw();
  }

  train() { return this.training.start(); }

  drawProgress() {
    const labelled = this.queue.counts.filter((count) => count > 0).length;
    get("progress").textContent = `${labelled} of ${this.queue.images.length} labelled`;
    const problem = this.failure ? `not saved: ${this.failure}` : this.lost || (this.fileProblem && `label file not written: ${this.fileProblem}`);
    get("saved").classList.toggle("bad", Boolean(problem));
    const waits = this.unwritten ? "saved; the label file follows" : "saved";
    get("saved").textContent = problem || (this.isSaving ? "saving" : waits);
    get("saved").title = get("saved").textContent;
  }

  say(text) { get("message").textContent = text; }

  paint() {
    if (!this.project) return;
    this.stage.paint(this.frame, this.project.keypoints, this.project.edges, this.keypoint);
    this.drawKeypoints();
    this.drawConflicts();
  }

  drawKeypoints() {
    const list = get("keypoints"), names = this.project.keypoints;
    if (!list.children.length) list.replaceChildren(...names.map((name, k) => this.keypointRow(name, k)));
    names.forEach((_, k) => {
      const button = list.children[k].firstChild, point = this.frame?.points[k];
      const isCurrent = k === this.keypoint;
      const armed = isCurrent && this.hidesNext && !point ? "next: hidden" : "";
      const state = armed || (!point ? "" : point.draft ? `${point.p?.toFixed(2) ?? "confirm"}?` : point.v === 1 ? "hidden" : "placed");
      if (this.keypointStates[k] === `${state} ${isCurrent}`) return;
      this.keypointStates[k] = `${state} ${isCurrent}`;
      button.setAttribute("aria-current", String(isCurrent));
      button.lastChild.textContent = state;
      button.setAttribute("aria-label", `${names[k]}, ${state || "no label"}`);
      if (isCurrent) button.scrollIntoView({ block: "nearest" });
    });
  }

  keypointRow(name, k) {
    const row = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    for (const [kind, text] of [["swatch", ""], ["name", name], ["state", ""]]) {
      const part = document.createElement("span");
      part.className = kind;
      part.textContent = text;
      button.append(part);
    }
    button.title = name;
    button.firstChild.style.background = colourOf(k);
    // A mouse click leaves the keys to the picture.
    button.addEventListener("mousedown", (event) => event.preventDefault());
    button.addEventListener("click", () => this.choose(k));
    row.append(button);
    return row;
  }

  drawConflicts() {
    const box = get("conflicts"), k = this.conflict();
    box.replaceChildren();
    if (k === undefined) return;
    const text = document.createElement("p");
    const mine = this.frame.conflicts.get(k);
    text.textContent = `${this.project.keypoints[k]} was also changed elsewhere. ${mine ? "The red square is your point." : "You removed it."}`;
    const buttons = [["Take mine (R)", () => this.takeMine()], ["Keep the other (K)", () => this.keepTheirs()]];
    box.append(text, ...buttons.map(([words, act]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      button.addEventListener("click", act);
      return button;
    }));
  }

  conflict() { return [...(this.frame?.conflicts.keys() ?? [])][0]; }

  // Edits -------------------------------------------------------------------------------------------------------------

  // Until another image has come, nothing changes the labels of the one before.
  get canEdit() {
    return Boolean(this.frame?.number === this.wanted && this.stage.picture && !this.frame.problem);
  }

  // Changes the points of the frame by a function, and keeps the change for undo; equal kinds in a row are one change.
  change(alter, kind = "") {
    if (!this.canEdit) return;
    const frame = this.frame, before = copyOf(frame.points);
    alter(frame.points);
    if (JSON.stringify(before) === JSON.stringify(frame.points)) return;
    const last = this.done.at(-1);
    const goesOn = kind && last?.kind === kind && last.frame === frame && !this.undone.length;
    if (goesOn) last.after = copyOf(frame.points);
    else this.done.push({ frame, before, after: copyOf(frame.points), kind });
    this.undone = [];
    this.sent(frame);
  }

  sent(frame) {
    if (frame === this.frame) this.draw();
    frame.send();
  }

  async restore(from, to, side) {
    const entry = from.pop();
    if (!entry) return this.say(side === "before" ? "nothing to undo" : "nothing to redo");
    to.push(entry);
    entry.kind = "";
    const { frame, before, after } = entry;
    this.frames.set(frame.number, Promise.resolve(frame));
    if (this.frame !== frame) await this.go(frame.number);
    frame.points.forEach((_, k) => {
      if (JSON.stringify(before[k]) !== JSON.stringify(after[k])) frame.points[k] = entry[side][k] && { ...entry[side][k] };
    });
    this.sent(frame);
  }

  undo() { return this.restore(this.done, this.undone, "before"); }
  redo() { return this.restore(this.undone, this.done, "after"); }

  put(points, k, place, v) {
    const [x, y] = this.stage.inside(place);
    points[k] = { x, y, v, draft: false };
  }

  // Places the current keypoint at (x, y) of the image.
  place(at) {
    const k = this.keypoint, v = this.hidesNext ? 1 : this.frame.points[k]?.v ?? 2;
    this.hidesNext = false;
    this.change((points) => this.put(points, k, at, v));
  }

  placeHere() { if (this.canEdit) this.place(this.stage.target()); }

  // Goes on to the next keypoint without a label.
  advance() {
    const next = this.frame?.points.findIndex((point, k) => k > this.keypoint && (!point || point.draft)) ?? -1;
    if (next >= 0) this.keypoint = next;
    this.draw();
  }

  choose(k) {
    this.keypoint = k;
    this.hidesNext = false;
    this.draw();
  }

  hide() {
    if (!this.canEdit) return;
    if (!this.frame.canHide) return this.say("this label file has no \"visible\" columns, so it cannot mark hidden points; X leaves a point out");
    const k = this.keypoint, point = this.frame.points[k];
    if (point) return this.change((points) => { points[k] = { x: point.x, y: point.y, v: 3 - point.v, draft: false }; });
    this.hidesNext = !this.hidesNext;
    this.draw();
  }

  remove() {
    this.change((points) => { points[this.keypoint] = null; });
    this.hidesNext = false;
    if (this.canEdit) {
      this.keypoint = Math.min(this.keypoint + 1, this.project.keypoints.length - 1);
      this.draw();
    }
  }

  async copy() {
    const number = (this.frame?.number ?? 0) - 1;
    const other = number >= 0 ? await this.frameOf(number) : null;
    const isMissing = (point, k) => point && !this.frame.points[k] && this.stage.covers([point.x, point.y]);
    if (!this.canEdit || !other?.points.some(isMissing)) return this.say("the previous image has no point that is missing here");
    this.change((points) => other.points.forEach((point, k) => {
      if (isMissing(point, k)) points[k] = { ...point, draft: true };
    }));
    this.say("hollow points are not labels yet: Enter confirms all of them; moving a point confirms it");
  }

  swap() {
    const partners = this.project.partners;
    if (partners.every((other, k) => other === k)) return this.say("no two keypoint names form a left and right pair");
    this.change((points) => {
      const before = copyOf(points);
      partners.forEach((other, k) => { points[k] = before[other]; });
    });
  }

  nudge(dx, dy) {
    const k = this.keypoint, point = this.frame?.points[k];
    if (!point) return this.say("place the keypoint first: click, or P");
    this.change((points) => this.put(points, k, [point.x + dx, point.y + dy], point.v), `nudge ${k}`);
  }

  async confirm() {
    if (this.timeline.isOpen) return this.labelFrame();
    if (this.frame?.points.some((point) => point?.draft)) {
      this.change((points) => points.forEach((point, k) => {
        if (point) points[k] = { x: point.x, y: point.y, v: point.v, draft: false };
      }));
    }
    await this.unlabelled(1);
  }

  takeMine() {
    const k = this.conflict();
    if (k !== undefined) return this.frame.takeMine(k).then(() => this.draw());
    const predicted = this.frame?.predicted[this.keypoint];
    if (!predicted) return this.say("there is no prediction of this keypoint");
    this.place([predicted.x, predicted.y]);
    this.advance();
  }

  keepTheirs() {
    const k = this.conflict();
    if (k !== undefined) this.frame.keepTheirs(k);
  }

  // Moves ---------------------------------------------------------------------------------------------------------------

  step(steps) {
    if (this.timeline.isOpen) return this.seek(this.timeline.frame + steps);
    return this.go(this.queue.step(steps));
  }

  unlabelled(direction) {
    const number = this.queue.unlabelled(direction);
    if (number < 0) this.say("every image has labels");
    return this.go(number);
  }

  nextKeypoint(steps) {
    const length = this.project.keypoints.length;
    this.choose((this.keypoint + steps + length) % length);
  }

  togglePredictions() {
    this.stage.showsPredictions = !this.stage.showsPredictions;
    this.draw();
  }

  togglePoints() { this.stage.hidesPoints = !this.stage.hidesPoints; this.draw(); }
  toggleMagnifier() { this.stage.magnifier.hidden = !this.stage.magnifier.hidden; this.stage.magnify(); }
  contrast() { this.say(`picture: ${this.stage.nextFilter()}`); }
  zoom(factor) { this.stage.zoom(factor, this.stage.cursor ?? undefined); }
  fit() { this.stage.fit(); }
  help() { get("help").showModal(); }

  // Events ------------------------------------------------------------------------------------------------------------

  listen() {
    document.addEventListener("keydown", (event) => this.pressed(event));
    document.addEventListener("keyup", (event) => { if (event.key === " ") this.spaceIsDown = false; });
    get("help-button").addEventListener("click", () => this.help());
    get("video-button").addEventListener("click", () => this.toggleVideo());
    get("label-frame").addEventListener("click", () => this.labelFrame());
    get("train-button").addEventListener("click", () => this.training.press());
    const element = this.stage.element;
    element.addEventListener("pointerdown", (event) => this.down(event));
    element.addEventListener("pointermove", (event) => this.moved(event));
    element.addEventListener("pointerup", (event) => this.up(event));
    element.addEventListener("pointerleave", () => { this.stage.cursor = null; });
    element.addEventListener("contextmenu", (event) => event.preventDefault());
    element.addEventListener("wheel", (event) => {
      event.preventDefault();
      // Wheel events have whole pixels only; the cursor is more exact.
      this.stage.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), this.stage.cursor ?? this.stage.place(event));
    }, { passive: false });
    window.addEventListener("beforeunload", (event) => {
      if (this.failure || this.isSaving) event.preventDefault();
    });
  }

  pressed(event) {
    if (get("help").open || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    const isOnButton = event.target.tagName === "BUTTON" && ["Enter", " "].includes(event.key);
    if (event.key === " " && !isOnButton) {
      this.spaceIsDown = true;
      event.preventDefault();
    }
    const action = isOnButton ? undefined : actionOf(event);
    if (!action) return;
    event.preventDefault();
    // A held key shows every image, as fast as they come.
    if (event.repeat && this.wanted !== (this.timeline.isOpen ? this.shownFrame : this.frame?.number)) return;
    if (event.key !== "c") this.say("");
    const [, , name, ...given] = action;
    this[name](...given);
  }

  down(event) {
    this.stage.element.focus({ preventScroll: true });
    const place = this.stage.place(event);
    const pans = event.button !== 0 || this.spaceIsDown;
    this.drag = { pans, place, start: place, k: pans ? -1 : this.stage.hit(place), hasMoved: false };
    this.stage.element.setPointerCapture(event.pointerId);
    this.stage.element.classList.toggle("panning", pans);
  }

  moved(event) {
    const place = this.stage.place(event);
    this.stage.cursor = place;
    const drag = this.drag;
    if (!drag) return this.stage.magnify();
    drag.hasMoved ||= Math.hypot(place[0] - drag.start[0], place[1] - drag.start[1]) > DRAG_PX;
    if (drag.pans) {
      this.stage.pan(place[0] - drag.place[0], place[1] - drag.place[1]);
    } else if (drag.k >= 0 && drag.hasMoved && this.canEdit) {
      // Shown at once, and one change at the end.
      drag.before ??= { ...this.frame.points[drag.k] };
      const at = this.stage.toImage(this.stage.toStage([drag.before.x, drag.before.y]).map((value, axis) => value + place[axis] - drag.start[axis]));
      this.put(this.frame.points, drag.k, at, drag.before.v);
      this.keypoint = drag.k;
      this.draw();
    }
    drag.place = place;
  }

  up(event) {
    const drag = this.drag;
    this.drag = null;
    this.stage.element.classList.remove("panning");
    if (this.timeline.isOpen && !drag?.pans) this.say("Enter makes this frame an image to label");
    if (!drag || drag.pans || !this.canEdit) return;
    if (drag.before) {
      const moved = this.frame.points[drag.k];
      this.frame.points[drag.k] = drag.before;
      this.change((points) => { points[drag.k] = moved; });
    } else if (drag.k >= 0 && this.frame.points[this.keypoint]) {
      // All placed: a click on a point chooses it.
      this.choose(drag.k);
    } else if (!drag.hasMoved && this.stage.covers(this.stage.toImage(this.stage.place(event)))) {
      this.place(this.stage.toImage(this.stage.place(event)));
      this.advance();
    }
  }
}

new Page().start();
