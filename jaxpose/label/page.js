// The page: opens moments (an image, or those of all views), turns clicks and keys into edits, and shows the state of the labels.

import { Choices } from "/choices.js";
import { Editor } from "/editor.js";
import { Flags } from "/flags.js";
import { Frames } from "/frames.js";
import { Geometry } from "/geometry.js";
import { GoTo } from "/goto.js";
import { actionOf, keepKeys, listKeys, stepInList } from "/keys.js";
import { Onion } from "/onion.js";
import { Pictures } from "/pictures.js";
import { Queue } from "/queue.js";
import { ask, server } from "/requests.js";
import { Side } from "/side.js";
import { Timeline } from "/timeline.js";
import { Training } from "/training.js";
import { beforePainting } from "/stage.js";
import { View, bestColumns } from "/view.js";

const POLL_MS = 2000;
// Moments fetched ahead: the next ones, and the previous ones; fewer if each has several pictures.
const AHEAD = [1, 2, 3, 4, 5, 6, -1, -2], FEW_AHEAD = [1, 2, -1];
// Frames of a video between two that are shown one after the other by keys.
const LONGEST_STEP = 10;
// How long a user stays at an image to see more than a preview of it.
const REST_MS = 250;
// What a view without an image shows.
const NOTHING = { error: "this camera has no image of this moment" }, NO_VIDEO = { error: "this camera has no video of this session" };
const NO_LABELS = { error: "the labels of this image did not come", isLost: true };
// The server answers this to a page of an earlier run. What must be the same for a page to go on with a new one.
const OTHER_RUN = 410;
const SAME = ["folder", "file", "keypoints", "individuals", "views", "images", "moments"];
const get = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.draw = beforePainting(() => this.paint());
    this.views = [];
    this.spaceIsDown = false;
    this.choices = new Choices();
    this.editor = new Editor(this);
    this.side = new Side(this.editor);
    this.queue = new Queue((moment) => this.go(moment), (text) => this.say(text));
    this.flags = new Flags(this.queue, (text) => this.say(text), () => { this.queue.draw(); this.draw(); });
    this.goTo = new GoTo(this.queue, (moment) => this.go(moment));
    this.timeline = new Timeline((frame) => this.seek(frame), (session) => this.openVideo(session));
    this.training = new Training((text) => this.say(text));
    this.pictures = new Pictures(AHEAD.length + 2, (bitmap) => this.views.some(({ stage }) => bitmap === stage.picture), true);
    this.frames = new Frames((number, steps) => this.near(this.momentOf.get(number), steps), (...news) => this.heard(...news));
    this.onion = new Onion(this.queue, (number) => this.frames.get(number), () => this.draw());
    this.geometry = new Geometry(() => this.draw(), (text) => this.say(text));
    // {labels that are not saved: why, "" while they are sent}.
    this.unsaved = new Map();
    this.lost = "";
    // Images whose labels have changed elsewhere, and have not come since.
    this.stale = new Set();
    // Whether what is shown lacks a picture or labels, because the server did not answer.
    this.lacks = false;
    // {number: tag of the picture} of the images that are shown.
    this.shownTags = new Map();
    this.unwritten = 0;
    this.fileProblem = "";
  }

  async start() {
    // The token is in the cookie now; the address need not show it.
    history.replaceState(null, "", "/");
    listKeys(get("help-rows"));
    while (!(await this.loadProject())) await new Promise((act) => setTimeout(act, POLL_MS));
    if (!this.queue.counts.includes(0)) this.queue.filter.value = "all";
    this.queue.choose();
    this.listen();
    if (this.moments.length) await this.go(this.queue.shown[0] ?? 0);
    else if (this.sessions.length) await this.openVideo(0);
    else this.say("this project has no image to label");
    setInterval(() => this.poll(), POLL_MS);
    await this.poll();
  }

  // Takes the project; returns whether it came.
  async loadProject() {
    const { status, content } = await ask("/api/project");
    if (status !== 200) {
      this.say(content.error);
      return false;
    }
    this.project = content;
    server.run ||= content.run;
    // Later, `poll` takes what has changed since.
    this.version ??= content.version;
    this.predictions ??= content.predictions;
    this.editor.set(content);
    this.side.set(content.keypoints);
    this.frames.set(content.keypoints.length);
    this.moments = content.moments;
    this.momentOf = new Map(content.moments.flatMap((numbers, moment) => numbers.map((number) => [number, moment])));
    if (!this.views.length) this.makeViews(content.views);
    // The images of several animals have no fixed number of points.
    this.queue.set(this.names(), this.moments, content.counts, content.has_several ? 1 : content.keypoints.length);
    this.queue.rank(content.confidence, content.error_px);
    this.queue.offer("suggested", content.has_suggestions);
    const name = content.folder.split("/").pop();
    document.title = `${name} \u2013 jaxpose label`;
    get("name").textContent = name;
    get("name").title = content.folder;
    this.sessions = content.sessions.map((videos) => ({ name: this.nameOf(videos, (video) => content.videos[video]), videos }));
    this.timeline.set(this.sessions);
    get("video-button").hidden = !this.sessions.length;
    this.drawProgress();
    return true;
  }

  // Views -------------------------------------------------------------------------------------------------------------

  makeViews(names) {
    this.views = (names.length ? names : [""]).map((name) => new View(name, this));
    this.view = this.views[0];
    this.editor.show(null, this.view.stage);
    get("stages").classList.toggle("several", this.views.length > 1);
    this.ahead = names.length ? FEW_AHEAD : AHEAD;
    this.pictures.least = this.views.length * (this.ahead.length + 2);
    new ResizeObserver(() => this.arrange()).observe(get("stages"));
  }

  // The name of what several views share, from the names of each, which end with that of the view.
  nameOf(numbers, name) {
    const place = numbers.findIndex((number) => number >= 0), found = name(numbers[place]), view = this.views[place].name;
    return view && found.endsWith(`_${view}`) ? found.slice(0, -view.length - 1) : found;
  }

  // The name of each moment: its image, in a folder without the view.
  names() {
    const { images } = this.project;
    if (this.views.length === 1) return images;
    return this.moments.map((numbers) => {
      const image = images[numbers.find((number) => number >= 0)], end = image.lastIndexOf("/");
      return this.nameOf(numbers, (number) => images[number].slice(0, end)) + image.slice(end);
    });
  }

  // Puts the views side by side, so that their pictures are as large as possible.
  arrange() {
    if (this.views.length < 2) return;
    const box = get("stages").getBoundingClientRect(), pictures = this.views.map(({ stage }) => stage.picture).filter(Boolean);
    const size = ["width", "height"].map((side) => Math.max(1, ...pictures.map((picture) => picture[side])));
    const columns = bestColumns(this.views.length, size, [box.width, box.height]);
    get("stages").style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
    get("stages").style.gridAutoRows = "minmax(0, 1fr)";
  }

  // Makes a view the current one; the keypoint stays if only the view before has it, for its line and its ring.
  chooseView(view) {
    const { isOld, keypoint } = this.editor, point = this.view.frame?.points[keypoint];
    const stays = this.view !== view && point && !point.draft;
    this.view = view;
    this.editor.show(view.frame, view.stage);
    if (stays && view.frame && this.editor.isOpen(keypoint)) this.editor.choose(keypoint);
    this.editor.isOld = isOld;
    this.showNames();
  }

  nextView(steps) {
    const count = this.views.length, first = this.views.indexOf(this.view);
    const others = Array.from({ length: count - 1 }, (_, place) => this.views[(first + steps * (place + 1) + count * count) % count]);
    const next = others.find(({ stage }) => stage.picture);
    if (next) this.chooseView(next); else this.say("there is no other camera");
  }

  // Writes which image is shown, and marks the current view.
  showNames() {
    for (const view of this.views) {
      view.element.classList.toggle("current", this.views.length > 1 && view === this.view);
      view.element.classList.toggle("other", view !== this.view);
      view.element.tabIndex = view === this.view ? 0 : -1;
    }
    if (document.activeElement.matches(".other")) this.view.element.focus({ preventScroll: true });
    get("image").textContent = this.view.title;
    this.draw();
  }

  // Where the other views show a keypoint in the current one, undefined if fewer than two have it, null if the answer of the
  // server is to come.
  ringOf(place) {
    const view = this.views.indexOf(this.view);
    if (this.isVideo || !this.project.has_calibration) return undefined;
    if (!this.geometry.knows(this.shownPlace, place, view)) return null;
    return this.geometry.rings(this.shownPlace, view)[place] ?? undefined;
  }

  // Images ------------------------------------------------------------------------------------------------------------

  async go(moment) {
    if (moment === undefined || moment < 0) return;
    this.timeline.close();
    this.wanted = moment;
    this.editor.isOld = true;
    this.queue.select(moment);
    const numbers = this.moments[moment];
    const [frames, pictures] = await Promise.all([
      Promise.all(numbers.map((number) => (number < 0 ? null : this.frames.get(number)))),
      Promise.all(numbers.map((number) => (number < 0 ? NOTHING : this.pictures.get(number)))),
    ]);
    // A picture without its labels would look as if it had none.
    numbers.forEach((number, at) => { if (number >= 0 && !frames[at]) pictures[at] = NO_LABELS; });
    // Another moment may have been asked for meanwhile.
    if (this.wanted !== moment) return;
    this.showViews(moment, numbers.map((number) => this.project.images[number] ?? ""), frames, pictures, numbers);
    this.fetchAhead(moment);
    this.onion.look(moment, this.moments);
    if (this.queue.reasons.has(moment)) this.say(this.queue.reasons.get(moment));
  }

  // Shows the pictures of all views, with their labels, null without; `place` is the moment, whose images have `numbers`, or
  // "session/frame".
  showViews(place, titles, frames, pictures, numbers = []) {
    this.shownPlace = place;
    this.shownTags = new Map(numbers.map((number, at) => [number, pictures[at].tag]).filter(([number]) => number >= 0));
    this.lacks = pictures.some(({ isLost }) => isLost);
    this.views.forEach((view, at) => view.show(titles[at], frames[at], pictures[at]));
    this.arrange();
    this.frames.shown = new Set(frames);
    if (!this.view.stage.picture) this.view = this.views.find(({ stage }) => stage.picture) ?? this.view;
    this.editor.show(this.view.frame, this.view.stage);
    this.showNames();
    clearTimeout(this.sharpening);
    if (pictures.some(({ isPreview }) => isPreview)) this.sharpening = setTimeout(() => this.sharpen(pictures), REST_MS);
  }

  // Shows the whole pictures instead of previews, when the user stays.
  sharpen(pictures) {
    pictures.forEach(async ({ isPreview, number, bitmap }, at) => {
      const { stage } = this.views[at], whole = isPreview && bitmap ? await this.pictures.renew(number) : {};
      if (whole.bitmap && stage.picture === bitmap) stage.show(whole.bitmap);
    });
  }

  // Videos ------------------------------------------------------------------------------------------------------------

  // Shows the frames of the video of this image, or the images again.
  async toggleVideo() {
    if (this.timeline.isOpen) return this.go(this.queue.current >= 0 ? this.queue.current : undefined);
    if (!this.sessions.length) return this.say("this project has no videos");
    await this.openVideo(Math.max(0, this.sessions.findIndex(({ name }) => name === this.queue.videos[this.queue.current])));
  }

  async openVideo(session) {
    const problem = await this.timeline.open(session);
    if (problem) return this.say(problem);
    const shown = [...this.timeline.images].find(([, number]) => this.momentOf.get(number) === this.queue.current);
    await this.seek(shown ? shown[0] : 0);
  }

  // Shows a frame; of those that are asked for while one is decoded, only the last.
  async seek(given) {
    const frame = this.timeline.inside(given);
    this.wanted = `${this.timeline.session}/${frame}`;
    this.editor.isOld = true;
    this.timeline.show(frame);
    if (this.isSeeking) return;
    this.isSeeking = true;
    let wanted, pictures;
    do {
      wanted = this.wanted;
      const [session, at] = wanted.split("/");
      pictures = await Promise.all(this.sessions[session].videos.map((video) => this.pictureOf(video, at)));
    } while (this.wanted !== wanted && typeof this.wanted === "string");
    this.isSeeking = false;
    if (this.wanted === wanted) this.showFrame(wanted, pictures);
  }

  pictureOf(video, frame) { return video < 0 ? NO_VIDEO : this.pictures.get(`${video}/${frame}`); }

  showFrame(place, pictures) {
    const { session, frame } = this.timeline, number = this.timeline.images.get(frame), { name, videos } = this.sessions[session];
    const text = `${name}, frame ${frame}`;
    const title = number === undefined ? text : `${text}: ${this.queue.images[this.momentOf.get(number)]}`;
    this.onion.clear();
    this.showViews(place, videos.map(() => title), videos.map(() => null), pictures);
    // After a jump, the frames next to it would keep the server from decoding those of the next jump.
    const isStep = session === this.seen?.session && Math.abs(frame - this.seen.frame) <= LONGEST_STEP;
    this.seen = { session, frame };
    const near = (isStep ? this.ahead : []).map((step) => frame + step).filter((other) => this.timeline.inside(other) === other);
    for (const other of near) for (const video of videos) this.pictureOf(video, other);
  }

  // Makes the frame an image of the project, of each view, and shows it.
  async labelFrame() {
    const place = this.shownPlace;
    if (place !== this.wanted) return;
    const [session, frame] = place.split("/"), made = [], problems = [];
    for (const video of this.timeline.videosOf(session)) {
      const { status, content } = await ask(`/api/video/${video}/${frame}`, {});
      if (status === 200) made.push(content.image); else problems.push(content.error);
    }
    if (problems.length) this.say(problems.join("; "));
    if (!made.length) return;
    if (made.some((image) => !this.momentOf.has(image))) {
      await this.loadProject();
      this.queue.choose();
    }
    // The user may have gone on, and taken the image shown now for this one.
    if (this.wanted === place) await this.go(this.momentOf.get(made[0]));
    else this.say(`${this.project.images[made[0]]} is in the list now, but another image is shown`);
  }

  // The images of all views of the moments some steps away in the list.
  near(moment, steps) {
    return this.queue.near(moment, steps).flatMap((other) => this.moments[other]).filter((number) => number >= 0);
  }

  fetchAhead(moment) {
    for (const other of this.near(moment, this.ahead)) {
      this.pictures.get(other);
      this.frames.get(other);
    }
  }

  // State -------------------------------------------------------------------------------------------------------------

  // What a frame tells about its saving.
  heard(frame, kind, text) {
    if (kind === "refused") this.say(text);
    if (kind === "saved") this.unsaved.delete(frame);
    else if (kind === "failed") this.unsaved.set(frame, text);
    else if (!this.unsaved.has(frame) && kind === "saving") this.unsaved.set(frame, "");
    this.noteConflict(frame);
    this.queue.counts[frame.number] = frame.points.filter((point) => point && !point.draft).length;
    this.drawProgress();
    this.queue.draw();
    if (this.frames.shown.has(frame) && kind !== "saving") this.draw();
  }

  // Marks an image where the user must choose between two points; also if another one is shown by now.
  noteConflict(frame) {
    const { contested } = this.queue, { number } = frame, isNew = frame.ownConflicts.size > 0 && !contested.has(number);
    if (frame.ownConflicts.size) contested.add(number); else contested.delete(number);
    if (isNew && !this.frames.shown.has(frame)) this.say(`a label of ${this.project.images[number]} was also changed elsewhere: go there to choose one`);
  }

  async poll() {
    if (this.isPolling) return;
    this.isPolling = true;
    const { images: flagged } = this.flags;
    try {
      const { status, content } = await ask(`/api/changes?since=${this.version}&shown=${[...this.shownTags.keys()]}`);
      this.lost = status === 200 ? "" : content.error;
      if (status === 200) {
        // A flag that was changed here meanwhile is newer.
        if (this.flags.images === flagged) this.flags.take(content.flagged);
        await this.takeChanges(content);
        this.askAgain();
      }
      if (status === OTHER_RUN) await this.goOnWithOtherRun();
    } finally {
      this.isPolling = false;
    }
    this.queue.draw();
    this.drawProgress();
  }

  // Asks for what did not come while the server did not answer.
  askAgain() {
    this.geometry.askAgain();
    if (!this.lacks || this.wanted !== this.shownPlace) return;
    if (this.isVideo) this.seek(this.timeline.frame); else this.go(this.shownPlace);
  }

  // After a restart of the server: the page goes on if all its numbers mean the same as before.
  async goOnWithOtherRun() {
    const { status, content } = await ask("/api/project", undefined, {});
    if (status !== 200 || SAME.some((name) => JSON.stringify(content[name]) !== JSON.stringify(this.project[name]))) return;
    server.run = content.run;
    this.version = content.version;
    this.predictions = "of an earlier run";
    // An edit that crosses one of these is refused if there are other labels by now.
    for (const number of this.frames.kept.keys()) this.stale.add(number);
    await this.refresh();
  }

  // Asks for the labels of stale images; those that do not come, or cross an edit, are asked for again the next time.
  async refresh() {
    for (const number of [...this.stale]) {
      this.stale.delete(number);
      if (!(await this.frames.reload(number))) this.stale.add(number);
    }
  }

  // Shows the pictures whose files have been replaced; `tags` are those of the present files.
  async renewPictures(tags) {
    for (const [number, tag] of this.shownTags) {
      if (!(number in tags) || tags[number] === tag) continue;
      const picture = await this.pictures.renew(number), view = this.views.find(({ frame }) => frame?.number === number);
      if (!view || picture.isLost || this.shownTags.get(number) !== tag) continue;
      this.shownTags.set(number, picture.tag);
      view.show(view.title, view.frame, picture);
      this.arrange();
    }
  }

  // Takes what has changed since the last time.
  async takeChanges(content) {
    await this.renewPictures(content.pictures);
    this.unwritten = content.unwritten;
    this.fileProblem = content.problem;
    this.training.show(content.training);
    this.queue.disputed = new Set(content.conflicts);
    if (content.predictions !== this.predictions) await this.takePredictions(content.predictions);
    if (content.images !== this.project.images.length) await this.loadProject();
    for (const [text, count] of Object.entries(content.counts)) {
      this.queue.counts[Number(text)] = count;
      this.stale.add(Number(text));
    }
    this.version = content.version;
    await this.refresh();
  }

  // Shows the predictions of another training.
  async takePredictions(version) {
    if ((await this.loadProject()) && (await this.frames.predict())) this.predictions = version;
    for (const view of this.views) view.dropOutside();
    this.queue.choose();
    if (this.timeline.isOpen) this.timeline.askTraces(this.timeline.session);
    this.draw();
  }

  get isVideo() { return this.timeline.isOpen; }

  train() { return this.training.start(); }

  drawProgress() {
    const labelled = this.queue.counts.filter((count) => count > 0).length;
    get("progress").textContent = `${labelled} of ${this.project.images.length} labelled`;
    const failure = [...this.unsaved.values()].find(Boolean);
    const problem = failure ? `not saved: ${failure}` : this.lost || (this.fileProblem && `label file not written: ${this.fileProblem}`);
    get("saved").classList.toggle("bad", Boolean(problem));
    const waits = this.unwritten ? "saved; the label file follows" : "saved";
    get("saved").textContent = problem || (this.unsaved.size ? "saving" : waits);
    get("saved").title = get("saved").textContent;
  }

  say(text) { get("message").textContent = text; }

  paint() {
    if (!this.project) return;
    const { keypoints: names, edges } = this.project, { current } = this.editor, moment = this.shownPlace;
    if (this.project.has_calibration && !this.isVideo) this.geometry.look(moment, current, this.views.map(({ frame }) => frame));
    this.views.forEach((view, at) => view.stage.paint(view.frame, this.editor, {
      names, edges, lines: this.geometry.lines(moment, current, at), rings: this.geometry.rings(moment, at), onion: this.onion.frames[at] ?? null,
    }));
    const { picture, scale } = this.view.stage;
    get("view").textContent = picture ? `${Math.round(scale * 100)} %` : "";
    get("flag").hidden = !this.flags.images.has(this.view.frame?.number);
    this.side.paint();
  }

  // Edits that need other images -------------------------------------------------------------------------------------

  // Shows the image of labels that an edit in the history changed.
  async open(frame) {
    if (!this.frames.shown.has(frame)) await this.go(this.momentOf.get(frame.number));
    const view = this.views.find((other) => other.frame === frame);
    if (view && view !== this.view) this.chooseView(view);
  }

  async copy() {
    const { frame } = this.editor, before = this.moments[this.momentOf.get(frame?.number) - 1], number = before?.[this.views.indexOf(this.view)];
    const other = number >= 0 ? await this.frames.get(number) : null;
    // Another image may be shown by now.
    if (this.editor.frame === frame) this.editor.copy(other);
  }

  async confirm() {
    // The next image is not confirmed before it can be seen.
    if (this.wanted !== this.shownPlace) return this.say("nothing confirmed: the image has not come yet");
    if (this.timeline.isOpen) return this.labelFrame();
    this.editor.confirmAll(this.views);
    await this.unlabelled(1);
  }

  // Moves ---------------------------------------------------------------------------------------------------------------

  step(steps) {
    if (this.timeline.isOpen) return this.seek(this.timeline.frame + steps);
    return this.go(this.queue.step(steps));
  }

  // Asks for an image, or for the number of a frame.
  askWhere() {
    if (!this.timeline.isOpen) return this.goTo.ask();
    get("frame-number").focus();
    get("frame-number").select();
  }

  unlabelled(direction) {
    const number = this.queue.unlabelled(direction);
    if (number < 0) this.say("every image has labels");
    return this.go(number);
  }

  // The next image in the list of labels that look wrong, which is found anew before its first one.
  async nextWrong() {
    const { filter, current, shown } = this.queue, place = shown.indexOf(current);
    if (filter.value === "wrong" && place >= 0 && place < shown.length - 1) return this.step(1);
    filter.value = "wrong";
    await this.queue.find();
    this.queue.choose();
    if (this.queue.shown.length) return this.go(this.queue.shown[0]);
    if (!get("message").textContent) this.say("no label looks wrong");
  }

  togglePredictions() {
    for (const { stage } of this.views) stage.showsPredictions = !stage.showsPredictions;
    this.draw();
  }

  toggleFlag() {
    const { frame } = this.view;
    return frame && !this.editor.isOld ? this.flags.toggle(frame.number) : this.say(this.isVideo ? "only images have flags: Enter makes this frame one" : "no image is shown");
  }

  async toggleOnion() {
    this.onion.isOn = !this.onion.isOn;
    if (!this.isVideo && this.shownPlace !== undefined) await this.onion.look(this.shownPlace, this.moments);
    const names = this.onion.frames.filter(Boolean).map(({ number }) => this.project.images[number]).join(", ");
    const text = this.isVideo ? "on for images" : names ? `labels of ${names}` : "no earlier image of this video has labels";
    this.say(this.onion.isOn ? `onion skin: ${text}` : "onion skin off");
    this.draw();
  }

  togglePoints() {
    for (const { stage } of this.views) stage.hidesPoints = !stage.hidesPoints;
    this.draw();
  }

  toggleMagnifier() {
    for (const { stage } of this.views) {
      stage.magnifier.hidden = !stage.magnifier.hidden;
      stage.magnify();
    }
  }

  contrast() { for (const { stage } of this.views) this.say(`picture: ${stage.nextFilter()}`); }
  zoom(factor) { this.view.stage.zoom(factor, this.view.stage.cursor ?? undefined); }
  fit() { this.view.stage.fit(); }
  help() { get("help").showModal(); }

  // Events ------------------------------------------------------------------------------------------------------------

  listen() {
    keepKeys();
    document.addEventListener("keydown", (event) => this.pressed(event));
    window.addEventListener("blur", () => { this.spaceIsDown = false; });
    document.addEventListener("keyup", (event) => { if (event.key === " ") this.spaceIsDown = false; });
    get("help-button").addEventListener("click", () => this.help());
    get("video-button").addEventListener("click", () => this.toggleVideo());
    get("label-frame").addEventListener("click", () => this.labelFrame());
    get("train-button").addEventListener("click", () => this.training.press());
    window.addEventListener("beforeunload", (event) => {
      if (this.unsaved.size || this.queue.contested.size) event.preventDefault();
    });
  }

  pressed(event) {
    if (document.querySelector("dialog[open]") || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    const isOnButton = event.target.tagName === "BUTTON" && ["Enter", " "].includes(event.key);
    if (event.key === " " && !isOnButton) {
      this.spaceIsDown = true;
      event.preventDefault();
    }
    const steps = stepInList(event), action = isOnButton ? undefined : actionOf(event);
    if (!action && steps === undefined) return;
    event.preventDefault();
    // A held key shows every image, as fast as they come.
    if (event.repeat && this.wanted !== this.shownPlace) return;
    if (steps !== undefined) return this.go(this.queue.step(steps));
    // The arrow keys are for the picture again.
    if (event.target.id === "list") this.view.element.focus({ preventScroll: true });
    if (event.key !== "c") this.say("");
    const [, , name, ...given] = action;
    (name in this ? this : this.editor)[name](...given);
  }
}

new Page().start();
