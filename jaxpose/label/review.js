// The page of a review: doubtful places of tracks, one after the other, with the frames of the video, and their answers.

import { Frame } from "/frame.js";
import { REVIEW_ACTIONS, actionOf, keepKeys, listKeys, stepInList } from "/keys.js";
import { Pictures } from "/pictures.js";
import { ask } from "/requests.js";
import { beforePainting, colourOf } from "/stage.js";
import { Tracker } from "/tracker.js";
import { View } from "/view.js";

const POLL_MS = 1000;
// Poses of this many frames come with one request, and those of this many requests are kept.
const TOGETHER = 16, MOST_PARTS = 200;
// Pictures of frames fetched ahead, and frames shown around a place.
const AHEAD = [1, 2, 3, 4, -1, -2];
// What a frame without tracks shows: it would look as if no animal was seen.
const NO_TRACKS = { error: "the tracks of this frame did not come", isLost: true };
const ANSWERS = { same: "same", different: "different", swap: "swapped" };
const get = (id) => document.getElementById(id);
const keyOf = (row) => row.place.join();

// What a row asks.
function questionOf({ kind, place: [, from, to, a, b] }) {
  const both = `frames ${from} and ${to}`;
  if (kind === "swap") return `Does each of ${a} and ${b} show the same animal in ${both}? Or have they exchanged their animals?`;
  if (kind === "link") return `Does ${a} show the same animal in ${both}?`;
  if (kind === "gap") return `Does ${a} show the same animal in ${both}? It was not seen in between.`;
  if (kind === "extra") return `Is ${a} an animal in frames ${from} to ${to}? If not, delete it in the detections: this place takes no answer.`;
  if (kind === "missing") return `Is an animal missing in frames ${from} to ${to}, perhaps ${a}? If so, correct the detections: this place takes no answer.`;
  return `Your own: ${[a, b].filter(Boolean).join(" and ")}, ${both}.`;
}

class ReviewPage {
  constructor() {
    this.draw = beforePainting(() => this.paint());
    this.spaceIsDown = false;
    this.isVideo = false;
    // What the stage and the mouse ask of an editor: tracks are shown, and not edited.
    this.editor = {
      current: -1, hasSeveral: true, canEdit: false, animals: [], frame: null,
      nameOf: (track) => this.state.tracks[track], isOther: (track) => !this.isConcerned(track),
    };
    this.view = new View("", this);
    this.editor.stage = this.view.stage;
    this.pictures = new Pictures(AHEAD.length + 2, (bitmap) => bitmap === this.view.stage.picture);
    this.parts = new Map();
    this.state = { revision: "", rows: [], tracks: [], keypoints: [] };
    this.tracker = new Tracker((text) => this.say(text), () => this.showCommand());
    // The current place: its key, "" before the first.
    this.current = "";
    this.frame = 0;
    this.done = [];
    this.undone = [];
    this.turn = Promise.resolve();
  }

  async start() {
    history.replaceState(null, "", "/");
    listKeys(get("help-rows"), REVIEW_ACTIONS);
    this.listen();
    await this.poll();
    setInterval(() => this.poll(), POLL_MS);
  }

  // State -------------------------------------------------------------------------------------------------------------

  async poll() {
    if (this.isPolling || this.isSending) return;
    this.isPolling = true;
    const before = this.state;
    const { status, content } = await ask(`/api/review?revision=${before.revision}`);
    this.isPolling = false;
    this.problem = status === 200 ? "" : content.error;
    if (content.tracking) this.tracker.show(content.tracking);
    if (status === 200 && this.lacks && this.frame === this.shownFrame) this.seek(this.frame);
    // An answer that was given meanwhile brought a newer state.
    if (status === 200 && content.rows && !this.isSending && this.state === before) await this.take(content);
    this.showSaved();
  }

  // Takes the state of the server; new tracks have other poses.
  async take(state) {
    const before = this.state, listed = this.listed;
    this.state = { ...before, ...state };
    const isNew = state.poses !== before.poses || JSON.stringify(listed.map(({ kind, place }) => [kind, place])) !== JSON.stringify(this.listed.map(({ kind, place }) => [kind, place]));
    if (isNew) {
      // What is shown is of the tracks before.
      this.parts = new Map();
      this.shownFrame = undefined;
      this.done = [];
      this.undone = [];
      if (before.poses) this.say("these are the new tracks and their doubtful places");
    }
    this.showPage();
    if (!this.row || isNew) await this.goTo(this.openPlaces()[0] ?? this.state.rows[0]);
    else await this.seek(this.frame);
  }

  // The rows of the review, without those of a person's own.
  get listed() { return this.state.rows.filter(({ kind }) => kind); }
  get row() { return this.state.rows.find((row) => keyOf(row) === this.current && row.kind === this.kind); }
  openPlaces() { return this.state.rows.filter((row) => row.takes_answer && !row.answer); }

  isConcerned(track) { return !this.row || this.row.place.slice(3).includes(this.state.tracks[track]); }

  // Places ------------------------------------------------------------------------------------------------------------

  shownRows() {
    const kind = get("filter").value;
    return this.state.rows.filter((row) => kind === "all" || (kind === "open" ? row.takes_answer && !row.answer : row.answer));
  }

  async goTo(row) {
    this.current = row ? keyOf(row) : "";
    this.kind = row?.kind;
    this.showPage();
    await this.seek(row ? Number(row.place[1]) : this.frame);
  }

  step(steps) {
    const rows = this.shownRows(), place = rows.indexOf(this.row);
    const next = place < 0 ? rows[0] : rows[Math.min(rows.length - 1, Math.max(0, place + steps))];
    return next && this.goTo(next);
  }

  // Goes to the next place without an answer, then to those before it.
  open(direction) {
    const rows = this.state.rows, place = rows.indexOf(this.row), count = rows.length;
    const others = rows.map((_, step) => rows[(((place + direction * (step + 1)) % count) + count) % count]);
    const next = others.find((row) => row.takes_answer && !row.answer);
    return next ? this.goTo(next) : this.say("every place has an answer");
  }

  // Answers -----------------------------------------------------------------------------------------------------------

  // Answers and their undo come one after the other; an answer is about what was shown when it was given.
  answer(answer) {
    const { row } = this;
    this.answerInTurn(() => this.answerPlace(row, answer));
  }

  swapHere() {
    const { frame } = this, tracks = this.tracksToSwap();
    this.answerInTurn(() => this.swapFrom(frame, tracks));
  }

  answerInTurn(act) {
    const { parts } = this;
    if (this.canAnswer()) this.inTurn(() => (this.parts === parts ? act() : this.say("nothing answered: these are other tracks by now")));
  }

  undo() { this.inTurn(() => this.restore(this.done, this.undone, "nothing to undo")); }
  redo() { this.inTurn(() => this.restore(this.undone, this.done, "nothing to redo")); }

  // Until the frame has come with its picture and its tracks, there is nothing to answer.
  canAnswer() {
    const isShown = this.frame === this.shownFrame;
    if (!isShown) this.say("nothing answered: the frame had not arrived yet");
    else if (!this.hasAll) this.say("nothing answered: this frame cannot be shown, so nobody can judge it");
    return isShown && this.hasAll;
  }

  inTurn(act) { this.turn = this.turn.then(act); }

  // Answers a place that is shown, or was when the key was pressed.
  async answerPlace(shown, answer) {
    const row = shown && this.state.rows.find((one) => keyOf(one) === keyOf(shown) && one.kind === shown.kind);
    if (!row) return this.say("there is no doubtful place");
    if (!row.takes_answer) return this.say(`a place of kind ${row.kind} takes no answer: change these animals in the detections`);
    if (answer === "swap" && !row.place[4]) return this.say(`this place is about one track: 1 or 2. X swaps two tracks from a frame on`);
    if (answer === null && !row.answer) return this.say("this place has no answer");
    // A row of a person's own goes with its answer.
    const isSent = await this.send(row.place, row.answer, answer ?? (row.kind ? "" : null));
    if (isSent && answer && this.current === keyOf(row)) this.goOn();
  }

  // Goes on to the next place without an answer.
  goOn() { return this.openPlaces().length ? this.open(1) : this.say("every place has an answer: make the tracks again, at the side"); }

  // The tracks of a place exchange their animals in front of a frame.
  async swapFrom(frame, tracks) {
    if (!tracks) return this.say("choose a place with two tracks first");
    if (frame < 1) return this.say("go to the first frame in which the tracks show the other animals");
    const place = [String(this.state.round), String(frame - 1), String(frame), ...tracks];
    const known = this.state.rows.find((row) => row.place.join() === place.join());
    if (await this.send(place, known?.answer ?? null, "swap")) this.say(`${tracks.join(" and ")} exchange their animals from frame ${frame} on; Ctrl+Z takes it back`);
  }

  tracksToSwap() {
    const named = (this.row?.place.slice(3) ?? []).filter(Boolean), all = this.state.tracks;
    return named.length === 2 ? named : all.length === 2 ? all : null;
  }

  // Sends an answer; whether the server has it on its disk.
  async send(place, before, after, history = this.done) {
    this.isSending = true;
    this.showSaved();
    const { status, content } = await ask("/api/answer", { revision: this.state.revision, place, answer: after });
    this.isSending = false;
    if (status !== 200) {
      this.say(content.error);
      await this.poll();
      return false;
    }
    history.push({ place, before, after });
    if (history === this.done) this.undone = this.isRestoring ? this.undone : [];
    this.problem = "";
    this.state = { ...this.state, ...content };
    this.showPage();
    this.draw();
    return true;
  }

  // An entry that is undone is one to redo, with its two sides exchanged.
  async restore(from, to, nothing) {
    const entry = from.at(-1);
    if (!entry) return this.say(nothing);
    const known = this.state.rows.find((row) => row.takes_answer && keyOf(row) === entry.place.join());
    if ((known?.answer ?? null) !== entry.after) return this.say("this answer was changed elsewhere");
    this.isRestoring = true;
    const isDone = await this.send(entry.place, entry.after, entry.before, to);
    this.isRestoring = false;
    if (!isDone) return;
    from.pop();
    const row = this.state.rows.find((other) => other.takes_answer && keyOf(other) === entry.place.join());
    if (row) this.goTo(row);
  }

  // Frames ------------------------------------------------------------------------------------------------------------

  move(steps) { return this.seek(this.frame + steps); }

  toggleFrame() {
    if (!this.row) return;
    const [, from, to] = this.row.place.map(Number);
    return this.seek(this.frame === from ? to : from);
  }

  async seek(given) {
    if (!this.state.revision) return;
    this.frame = Math.min(this.state.frames - 1, Math.max(0, Math.round(given) || 0));
    this.showTimeline();
    if (this.isSeeking) return;
    this.isSeeking = true;
    let shown, picture, poses, parts;
    do {
      [shown, parts] = [this.frame, this.parts];
      [picture, poses] = await Promise.all([this.pictures.get(`0/${shown}`), this.posesOf(shown)]);
    } while (shown !== this.frame || parts !== this.parts);
    this.isSeeking = false;
    this.show(shown, picture, poses);
    for (const step of AHEAD) if (this.state.frames > shown + step && shown + step >= 0) this.pictures.get(`0/${shown + step}`);
  }

  // The points of a frame, [] behind the last frame of the tracks, null if the server does not tell.
  async posesOf(frame) {
    const first = frame - (frame % TOGETHER);
    if (!this.parts.has(first)) {
      const { parts } = this;
      parts.set(first, ask(`/api/poses/${first}`).then(({ status, content }) => {
        if (status === 200) return content;
        parts.delete(first);
        return null;
      }));
      for (const other of [...parts.keys()].slice(0, Math.max(0, parts.size - MOST_PARTS))) parts.delete(other);
    }
    const part = await this.parts.get(first);
    return part ? part[frame - first] ?? [] : null;
  }

  show(number, given, poses) {
    const picture = poses || given.error ? given : NO_TRACKS;
    this.lacks = Boolean(picture.isLost);
    const values = (poses ?? []).map((point) => point && [...point, 2]), { tracks, keypoints } = this.state;
    const state = { points: values, revision: "", problem: "", can_hide: false, animals: tracks, conflicts: [], predicted: [], removed: [] };
    const frame = new Frame(number, state, keypoints.length, () => {});
    this.editor.animals = frame.animals().filter((track) => frame.has(track));
    this.shownFrame = number;
    this.hasAll = Boolean(picture.bitmap && poses);
    this.view.show(`frame ${number}`, frame, picture);
    get("image").textContent = `frame ${number}`;
    this.draw();
  }

  // Looks -------------------------------------------------------------------------------------------------------------

  paint() {
    const { keypoints: names, edges, tracks } = this.state, { stage, frame } = this.view;
    stage.paint(frame, this.editor, { names, edges: edges ?? [], lines: [], rings: [] });
    get("view").textContent = stage.picture ? `${Math.round(stage.scale * 100)} %` : "";
    get("animals").replaceChildren(...tracks.map((name, track) => {
      const row = document.createElement("li"), swatch = document.createElement("span"), text = document.createElement("span");
      swatch.className = "swatch";
      swatch.style.background = colourOf(track);
      text.textContent = !this.hasAll || this.editor.animals.includes(track) ? name : `${name}: not seen`;
      row.append(swatch, text);
      return row;
    }));
  }

  showPage() {
    const { name = "", rows, corrections = "" } = this.state, row = this.row;
    document.title = `${name.split("/").pop()} \u2013 jaxpose label`;
    get("name").textContent = name.split("/").pop();
    get("name").title = name;
    const answered = rows.filter((one) => one.answer).length, all = rows.filter((one) => one.takes_answer).length;
    get("progress").textContent = `${answered} of ${all} answered`;
    get("progress").title = `the answers are in ${corrections}`;
    get("kind").textContent = row ? row.kind || "own" : "no doubtful place";
    get("doubt").textContent = row ? questionOf(row) + (row.margin ? ` Margin ${row.margin}; about ${row.expected_wrong} wrong identities to expect.` : "") : "";
    get("given").textContent = row?.answer ? `Your answer: ${ANSWERS[row.answer.toLowerCase()] ?? row.answer}` : "";
    for (const button of get("answers").children) {
      const answer = button.dataset.answer;
      button.disabled = !row?.takes_answer || (answer === "swap" && !row.place[4]) || (!answer && !row.answer);
      button.setAttribute("aria-pressed", String(Boolean(answer) && row?.answer?.toLowerCase() === answer));
    }
    this.showCommand();
    this.showRows();
    this.showTimeline();
    this.showSaved();
  }

  get canTrack() { return this.state.is_behind || this.state.rows.some(({ answer }) => answer); }

  showCommand() {
    const { can_track: isKnown, command = "" } = this.state;
    get("command-box").hidden = !this.canTrack && ["none", "done"].includes(this.tracker.state.name);
    get("track-button").hidden = !isKnown && !this.tracker.isRunning;
    get("command-note").textContent = isKnown ? "The button runs this command:" : "Run this command; replace the words in capitals by files, which are no longer where they were:";
    get("command").textContent = command;
  }

  // Makes the tracks again, with the answers on the server's disk.
  track() {
    if (this.tracker.isRunning) return this.say("the tracks are being made again; the button stops it");
    if (!this.canTrack) return this.say("nothing to do: answer a place first");
    if (!this.state.can_track) return this.say("the detections are no longer where they were: run the command at the side");
    return this.inTurn(() => this.tracker.start());
  }

  showRows() {
    const rows = this.shownRows();
    get("list").replaceChildren(...rows.map((row) => {
      const [, from, to, a, b] = row.place, element = document.createElement("div");
      element.className = "row";
      element.setAttribute("role", "option");
      element.setAttribute("aria-selected", String(row === this.row));
      if (row === this.row) element.id = "current-row";
      const mark = !row.takes_answer ? ["\u2013", "takes no answer"] : row.answer ? ["\u25cf", "answered"] : ["\u25cb", "no answer"];
      const parts = [["mark", mark[0]], ["kind", row.kind || "own"], ["frames", `${from}\u2013${to}`], ["tracks", [a, b].filter(Boolean).join(", ")], ["score", row.margin]];
      for (const [kind, text] of parts) {
        const part = document.createElement("span");
        part.className = kind;
        part.textContent = text;
        if (kind === "mark") part.setAttribute("aria-label", mark[1]);
        element.append(part);
      }
      element.title = `${row.kind || "own"}, frames ${from} to ${to}, ${[a, b].filter(Boolean).join(" and ")}`;
      element.addEventListener("click", () => this.goTo(row));
      return element;
    }));
    get("list").querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  showTimeline() {
    const { frames = 1, rows } = this.state, canvas = get("marks");
    get("slider").max = get("frame-number").max = frames - 1;
    get("slider").value = this.frame;
    if (document.activeElement !== get("frame-number")) get("frame-number").value = this.frame;
    get("frame-count").textContent = `of ${frames - 1}`;
    const width = canvas.width = canvas.clientWidth || 1, context = canvas.getContext("2d");
    context.fillStyle = getComputedStyle(canvas).color;
    for (const row of rows) {
      const [from, to] = [row.place[1], row.place[2]].map((frame) => (Number(frame) / Math.max(1, frames - 1)) * (width - 2));
      const isShown = row === this.row;
      context.fillRect(from, isShown ? 0 : 4, Math.max(2, to - from), isShown ? 8 : 4);
    }
  }

  showSaved() {
    const behind = this.state.is_behind ? "the corrections have other answers than these tracks were made with: make the tracks again, at the side" : "";
    get("saved").textContent = this.problem || behind || (this.isSending ? "saving" : "saved");
    get("saved").title = get("saved").textContent;
    get("saved").classList.toggle("bad", Boolean(this.problem || behind));
  }

  togglePoints() {
    this.view.stage.hidesPoints = !this.view.stage.hidesPoints;
    this.draw();
  }

  toggleMagnifier() {
    this.view.stage.magnifier.hidden = !this.view.stage.magnifier.hidden;
    this.view.stage.magnify();
  }

  contrast() { this.say(`picture: ${this.view.stage.nextFilter()}`); }
  zoom(factor) { this.view.stage.zoom(factor, this.view.stage.cursor ?? undefined); }
  fit() { this.view.stage.fit(); }
  help() { get("help").showModal(); }
  say(text) { get("message").textContent = text; }

  // Events ------------------------------------------------------------------------------------------------------------

  listen() {
    keepKeys();
    document.addEventListener("keydown", (event) => this.pressed(event));
    window.addEventListener("blur", () => { this.spaceIsDown = false; });
    document.addEventListener("keyup", (event) => { if (event.key === " ") this.spaceIsDown = false; });
    get("help-button").addEventListener("click", () => this.help());
    get("filter").addEventListener("change", () => { this.showRows(); get("filter").blur(); });
    get("track-button").addEventListener("click", () => (this.tracker.isRunning ? this.tracker.stop() : this.track()));
    get("copy").addEventListener("click", async () => {
      const isCopied = await navigator.clipboard.writeText(this.state.command).then(() => true, () => false);
      this.say(isCopied ? "copied" : "the browser did not copy it: select the command");
    });
    for (const id of ["slider", "frame-number"]) {
      get(id).addEventListener("input", () => this.seek(Number(get(id).value)));
      get(id).addEventListener("change", () => get(id).blur());
    }
    for (const button of get("answers").children) {
      button.addEventListener("click", () => this.answer(button.dataset.answer || null));
    }
    window.addEventListener("resize", () => this.showTimeline());
    window.addEventListener("beforeunload", (event) => { if (this.isSending) event.preventDefault(); });
  }

  pressed(event) {
    if (get("help").open || ["SELECT", "INPUT"].includes(event.target.tagName)) return;
    const isOnButton = event.target.tagName === "BUTTON" && ["Enter", " "].includes(event.key);
    if (event.key === " " && !isOnButton) {
      this.spaceIsDown = true;
      event.preventDefault();
    }
    const steps = stepInList(event), action = isOnButton ? undefined : actionOf(event, REVIEW_ACTIONS);
    if (!action && steps === undefined) return;
    event.preventDefault();
    // A held key shows every frame, as fast as they come.
    if (event.repeat && this.frame !== this.shownFrame) return;
    if (steps !== undefined) return this.step(steps);
    this.say("");
    const [, , name, ...given] = action;
    this[name](...given);
  }
}

new ReviewPage().start();
