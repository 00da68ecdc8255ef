// The page: opens images, turns clicks and keys into edits, and shows the state of the labels.

import { ask } from "/frame.js";
import { Editor } from "/editor.js";
import { Frames } from "/frames.js";
import { actionOf, listKeys } from "/keys.js";
import { Pictures } from "/pictures.js";
import { Pointer } from "/pointer.js";
import { Queue } from "/queue.js";
import { Side } from "/side.js";
import { Timeline } from "/timeline.js";
import { Training } from "/training.js";
import { Stage, beforePainting } from "/stage.js";

const POLL_MS = 2000;
// Images fetched ahead: the next ones, and the previous ones.
const AHEAD = [1, 2, 3, 4, 5, 6, -1, -2];
const get = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.draw = beforePainting(() => this.paint());
    this.stage = new Stage(() => this.draw());
    this.editor = new Editor(this.stage, this);
    this.pointer = new Pointer(this.stage, this.editor, this);
    this.side = new Side(this.editor);
    this.queue = new Queue((number) => this.go(number));
    this.timeline = new Timeline((frame) => this.seek(frame), (video) => this.openVideo(video));
    this.training = new Training((text) => this.say(text));
    this.pictures = new Pictures(AHEAD.length + 2, (bitmap) => bitmap === this.stage.picture);
    this.frames = new Frames((number, steps) => this.queue.near(number, steps), (...news) => this.heard(...news));
    this.version = 0;
    this.failure = this.lost = "";
    this.unwritten = 0;
    this.fileProblem = "";
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
    this.editor.set(content);
    this.side.set(content.keypoints);
    this.frames.set(content.keypoints.length);
    // The images of several animals have no fixed number of points.
    this.queue.set(content.images, content.counts, content.has_several ? 1 : content.keypoints.length);
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
    this.editor.isOld = true;
    this.queue.select(number);
    const [frame, picture] = await Promise.all([this.frames.get(number), this.pictures.get(number)]);
    // Another image may have been asked for meanwhile.
    if (this.wanted !== number) return;
    this.showPicture(picture, picture.error || frame?.problem || "");
    if (picture.bitmap) frame?.dropOutside((place) => this.stage.covers(place));
    this.frames.shown = frame;
    this.editor.show(frame);
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
    this.editor.isOld = true;
    this.timeline.show(frame);
    if (this.isSeeking) return;
    this.isSeeking = true;
    let wanted, picture;
    do {
      wanted = this.wanted;
      picture = await this.pictures.get(wanted);
    } while (this.wanted !== wanted && typeof this.wanted === "string");
    this.isSeeking = false;
    if (this.wanted === wanted) this.showFrame(wanted, picture);
  }

  showFrame(place, picture) {
    const { video, frame } = this.timeline, number = this.timeline.images.get(frame);
    const text = `${this.project.videos[video]}, frame ${frame}`;
    this.frames.shown = null;
    this.editor.show(null);
    this.shownFrame = place;
    this.showPicture(picture, picture.error || "");
    get("image").textContent = number === undefined ? text : `${text}: ${this.project.images[number]}`;
    this.stage.element.setAttribute("aria-label", `Video ${text}`);
    this.draw();
    const near = AHEAD.map((step) => frame + step).filter((other) => this.timeline.inside(other) === other);
    for (const other of near) this.pictures.get(`${video}/${other}`);
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
      this.pictures.get(other);
      this.frames.get(other);
    }
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
    if (frame === this.editor.frame && kind !== "saving") this.draw();
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
      this.queue.counts[Number(text)] = count;
      await this.frames.reload(Number(text));
    }
    this.queue.draw();
    this.drawProgress();
  }

  // Shows the predictions of another run.
  async takePredictions() {
    await this.loadProject();
    await this.frames.predict();
    if (this.stage.picture) this.editor.frame?.dropOutside((place) => this.stage.covers(place));
    this.queue.choose();
    if (this.timeline.isOpen) this.timeline.askConfidence(this.timeline.video);
    this.draw();
  }

  get isVideo() { return this.timeline.isOpen; }

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
    this.stage.paint(this.editor, this.project.keypoints, this.project.edges);
    this.side.paint();
  }

  // Edits that need other images -------------------------------------------------------------------------------------

  // Shows the image of labels that an edit in the history changed.
  async open(frame) {
    this.frames.keep(frame);
    if (this.editor.frame !== frame) await this.go(frame.number);
  }

  async copy() {
    const number = (this.editor.frame?.number ?? 0) - 1;
    this.editor.copy(number >= 0 ? await this.frames.get(number) : null);
  }

  async confirm() {
    if (this.timeline.isOpen) return this.labelFrame();
    this.editor.confirm();
    await this.unlabelled(1);
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
    document.addEventListener("keyup", (event) => { if (event.key === " ") this.pointer.spaceIsDown = false; });
    get("help-button").addEventListener("click", () => this.help());
    get("video-button").addEventListener("click", () => this.toggleVideo());
    get("label-frame").addEventListener("click", () => this.labelFrame());
    get("train-button").addEventListener("click", () => this.training.press());
    window.addEventListener("beforeunload", (event) => {
      if (this.failure || this.isSaving) event.preventDefault();
    });
  }

  pressed(event) {
    if (get("help").open || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    const isOnButton = event.target.tagName === "BUTTON" && ["Enter", " "].includes(event.key);
    if (event.key === " " && !isOnButton) {
      this.pointer.spaceIsDown = true;
      event.preventDefault();
    }
    const action = isOnButton ? undefined : actionOf(event);
    if (!action) return;
    event.preventDefault();
    // A held key shows every image, as fast as they come.
    if (event.repeat && this.wanted !== (this.timeline.isOpen ? this.shownFrame : this.editor.frame?.number)) return;
    if (event.key !== "c") this.say("");
    const [, , name, ...given] = action;
    (name in this ? this : this.editor)[name](...given);
  }
}

new Page().start();
