// The labels of one image: what the page shows, what the server has, and the sending of the difference.
//
// `points` has a place for each keypoint of each animal: those of the first animal, then those of the second, and so on.
// A point is {x, y, v, draft}: v is 2 (visible) or 1 (hidden), and a draft is not a label until it is confirmed or moved.
// A draft that was predicted has its confidence as p.

import { ask } from "/requests.js";

const RETRY_MS = 2000;
// The server will never take what it answers with one of these.
const FINAL = [400, 404, 413, 415, 422];
// Points of one request, if more are not of one animal: a browser and the server take only so many bytes.
const MOST_POINTS = 500;
// Less confident predictions are no drafts: often the keypoint is not in the image.
const LEAST_CONFIDENCE = 0.1;

const same = (a, b) => a === b || (a && b && a.every((value, place) => value === b[place])) || (!a && !b);
const asPrediction = (value) => value && { x: value[0], y: value[1], v: 2, draft: true, p: value[2] };
const asPoint = (value) => value && { x: value[0], y: value[1], v: value[2], draft: false };
const asValue = (point) => (point && !point.draft ? [point.x, point.y, point.v] : null);
// Whether two points are the same label; a draft is none.
export const isSameLabel = (a, b) => Boolean(same(asValue(a), asValue(b)));
// Whether a point is the label that the server has as this value.
export const isLabel = (point, value) => Boolean(same(asValue(point), value));

export class Frame {
  // `size` is the number of keypoints of an animal. `tell` is called with (frame, kind, text) after every change: kind is
  // saved, saving, failed, refused or changed.
  constructor(number, state, size, tell) {
    this.number = number;
    this.size = size;
    // Animals that were deleted: a new one does not take their place in the file.
    this.removed = new Set();
    // Whether the history of edits has it.
    this.isInHistory = false;
    this.tell = tell;
    this.ownConflicts = new Map();
    // The points of conflicts that an edit has ended, until the server has the edit.
    this.ended = new Map();
    // {animal: track} of those that were given here.
    this.given = new Map();
    // Animals that came back: their tracks are sent, whatever the server has.
    this.back = new Set();
    this.isSending = false;
    // What was sent without an answer, {points, tracks} each: the server may have it.
    this.unanswered = [];
    this.take(state);
    this.points = state.points.map(asPoint);
    this.predict(state.predicted);
  }

  animalOf(place) { return Math.floor(place / this.size); }
  animals() { return Array.from({ length: this.points.length / this.size }, (_, animal) => animal); }
  places(animal) { return Array.from({ length: this.size }, (_, k) => animal * this.size + k); }
  has(animal) { return this.places(animal).some((place) => this.points[place]); }

  hasLabel(animal) { return this.places(animal).some((place) => asValue(this.points[place])); }

  // Makes places for an animal and those before it.
  extend(animal) { while (this.points.length < (animal + 1) * this.size) this.points.push(null); }

  // An animal without points that was not deleted, a new one if there is none.
  freeAnimal() {
    const free = this.animals().find((animal) => !this.has(animal) && !this.removed.has(animal)) ?? this.animals().length;
    this.extend(free);
    return free;
  }

  // Takes other predictions; the sure ones of an animal without a label or another draft become drafts.
  predict(predicted) {
    this.predicted = predicted.map(asPrediction);
    if (this.predicted.length) this.extend(this.animalOf(this.predicted.length - 1));
    for (const animal of this.animals()) {
      const places = this.places(animal), points = places.map((place) => this.points[place]);
      if (points.some((point) => point && !(point.draft && point.p !== undefined))) continue;
      for (const place of places) this.points[place] = this.draftOf(place);
    }
  }

  // The prediction of a place as a draft, null unless it is sure.
  draftOf(place) {
    const point = this.predicted[place];
    return point && point.p >= LEAST_CONFIDENCE ? { ...point } : null;
  }

  // A point of the history as it comes back: instead of a prediction of an earlier run, that of the present one.
  returning(point, place) {
    const isEarlier = point?.draft && point.p !== undefined && !this.predicted.some((one) => one && one.x === point.x && one.y === point.y);
    return isEarlier ? this.draftOf(place) : point && { ...point };
  }

  // Forgets predictions outside of the picture; `covers` returns whether a place is on it.
  dropOutside(covers) {
    this.predicted.forEach((point, k) => {
      if (!point || covers([point.x, point.y])) return;
      this.predicted[k] = null;
      if (this.points[k]?.draft && this.points[k].p !== undefined) this.points[k] = null;
    });
  }

  take(state) {
    this.takeNames(state.animals);
    this.saved = state.points;
    this.revision = state.revision;
    this.problem = state.problem;
    this.canHide = state.can_hide;
    this.serverConflicts = new Map(state.conflicts);
    for (const animal of state.removed) this.removed.add(animal);
  }

  // Takes the names of the animals; one that is given here and not sent yet stays, unless it was changed elsewhere.
  takeNames(theirs) {
    const before = this.savedNames ?? [], mine = this.names ?? [];
    const isOld = (name, animal) => name === (before[animal] ?? "") || this.unanswered.some(({ tracks }) => name === tracks[animal]);
    const isNew = (name, animal) => mine[animal] !== undefined && mine[animal] !== (before[animal] ?? "") && isOld(name, animal);
    const isKept = (name, animal) => this.back.has(animal) || isNew(name, animal);
    // The server may not know the last animals yet.
    const all = Array.from({ length: Math.max(theirs.length, mine.length) }, (_, animal) => theirs[animal] ?? "");
    this.names = all.map((name, animal) => (isKept(name, animal) ? mine[animal] : name));
    this.savedNames = all;
    // A track that was saved here, and is another one now.
    this.overruled = [...this.given.entries()].filter(([animal, name]) => all[animal] !== name && this.names[animal] !== name).map(([animal]) => animal);
    for (const animal of this.overruled) this.given.delete(animal);
  }

  // Gives an animal a track: the name shows at once.
  giveTrack(animal, name) {
    while (this.names.length <= animal) this.names.push("");
    this.names[animal] = name;
    this.given.set(animal, name);
  }

  // Gives an animal that comes back the track that it had; the server forgets that of an animal without points.
  giveBackTrack(animal, name) {
    this.giveTrack(animal, name);
    this.back.add(animal);
  }

  // The tracks that the server has, by animal; undefined for an animal that it does not have yet.
  get knownTracks() { return this.animals().map((animal) => (this.isUnsent(animal) ? undefined : this.names[animal] ?? "")); }

  // Whether an animal has points of which the server has none: its track is not known yet.
  isUnsent(animal) {
    return this.hasLabel(animal) && !this.places(animal).some((place) => this.saved[place]);
  }

  get unsentTracks() {
    const isSent = (name, animal) => name === (this.savedNames[animal] ?? "") && !this.back.has(animal);
    return Object.fromEntries(this.names.map((name, animal) => [animal, name]).filter(([animal, name]) => !isSent(name, animal)));
  }

  // The points of the user that another browser or program has overruled, by keypoint.
  get conflicts() {
    return new Map([...this.serverConflicts, ...this.ownConflicts].filter(([place]) => !this.ended.has(place)));
  }

  // An edit of a point ends its conflict; an undo of the edit, or its refusal, begins it again.
  endConflict(place, mine) {
    this.ended.set(place, mine);
    this.ownConflicts.delete(place);
  }

  beginConflict(place, mine) {
    this.ended.delete(place);
    this.ownConflicts.set(place, mine);
  }

  get unsent() {
    const differing = this.points.map((point, k) => [k, asValue(point)]).filter(([k, value]) => !same(value, this.saved[k]));
    return Object.fromEntries(differing);
  }

  get isSaved() { return !this.isSending && !this.hasUnsent; }
  get hasUnsent() { return this.unanswered.length > 0 || Object.keys(this.unsent).length > 0 || Object.keys(this.unsentTracks).length > 0; }

  // Sends what the server lacks, one request at a time.
  send() { if (!this.isSending) this.sendAll(); }

  async sendAll() {
    clearTimeout(this.retry);
    this.isSending = true;
    let failure = "";
    while (this.hasUnsent && !failure) failure = await this.sendOnce();
    this.isSending = false;
    if (failure) this.retry = setTimeout(() => this.send(), RETRY_MS);
    this.tell(this, failure ? "failed" : "saved", failure);
  }

  // Sends once, and takes the answer; returns why the server has not judged it, "" if it has.
  async sendOnce() {
    const { points, tracks } = this.nextToSend;
    this.tell(this, "saving", "");
    const { status, content } = await ask(`/api/frame/${this.number}`, { revision: this.revision, points, tracks });
    if (status === 200) {
      // A track may have been given anew meanwhile.
      for (const [animal, name] of Object.entries(tracks)) {
        this.savedNames[animal] = name;
        this.back.delete(Number(animal));
      }
      this.take(content);
      for (const k of Object.keys(points)) this.ended.delete(Number(k));
    } else if (status === 409) {
      this.merge(content);
    } else if (FINAL.includes(status)) {
      this.takeBack(points, tracks);
      this.tell(this, "refused", content.error);
    } else {
      this.unanswered.push({ points, tracks });
      return content.error || `jaxpose label answered ${status}`;
    }
    this.unanswered = [];
    return "";
  }

  // The next points and tracks to send: those of as many whole animals as one request takes.
  get nextToSend() {
    const all = Object.entries(this.unsent), tracks = Object.entries(this.unsentTracks);
    const animalOf = ([k]) => this.animalOf(Number(k));
    const end = all.length > MOST_POINTS ? Math.max(animalOf(all[MOST_POINTS]), animalOf(all[0]) + 1) : Infinity;
    const isNext = (animal) => animal < end;
    return {
      points: Object.fromEntries(all.filter((entry) => isNext(animalOf(entry)))),
      tracks: Object.fromEntries(tracks.filter(([animal]) => isNext(Number(animal)))),
    };
  }

  // Takes back what was sent; what was changed since then stays.
  takeBack(points, tracks) {
    for (const [k, value] of Object.entries(points)) {
      if (same(asValue(this.points[k]), value)) this.points[k] = asPoint(this.saved[k] ?? null);
      if (this.ended.has(Number(k))) this.beginConflict(Number(k), this.ended.get(Number(k)));
    }
    for (const [animal, name] of Object.entries(tracks)) {
      if (this.names[animal] !== name) continue;
      this.names[animal] = this.savedNames[animal] ?? "";
      this.given.delete(Number(animal));
      this.back.delete(Number(animal));
    }
  }

  // Takes over a state of the server; where both sides changed a keypoint, the server's point is shown and mine kept aside.
  merge(state) {
    this.extend(state.animals.length - 1);
    const isMine = (place) => this.unanswered.some(({ points }) => place in points && same(state.points[place], points[place]));
    // Two browsers may have begun another animal in the same place: their points are not mixed.
    const begun = new Set(this.animals().filter((animal) => animal > 0 && !this.savedNames[animal] &&
      this.places(animal).every((place) => !this.saved[place]) && this.places(animal).some((place) => state.points[place] && !isMine(place))));
    this.points.forEach((point, place) => {
      const mine = asValue(point), theirs = state.points[place] ?? null;
      const isBegun = begun.has(this.animalOf(place));
      if (!isBegun && (isMine(place) || same(theirs, this.saved[place]))) return;
      if (isBegun) this.predicted[place] = asPrediction(state.predicted[place] ?? null);
      if (same(mine, theirs) && !(isBegun && point?.draft)) return;
      if (!same(mine, this.saved[place])) this.beginConflict(place, mine);
      this.points[place] = asPoint(theirs);
    });
    this.take(state);
    this.tell(this, "changed", "");
    for (const animal of this.overruled) this.tell(this, "refused", `the track of an animal was also changed elsewhere: it is ${this.names[animal] || "none"} now`);
  }

  // Asks for the state, and takes it unless it crosses an edit of this page; returns {isTaken, error}.
  async merging(path, body) {
    const before = this.saved;
    const { status, content } = await ask(path, body);
    const isTaken = status === 200 && !this.isSending && this.saved === before;
    if (isTaken) this.merge(content);
    return { isTaken, error: status === 200 ? "" : content.error };
  }

  // Asks for the state anew; returns whether it was taken.
  async reload() { return (await this.merging(`/api/frame/${this.number}`)).isTaken; }

  // My point in a conflict.
  mine(place) { return asPoint(this.conflicts.get(place)); }

  // Ends a conflict by keeping the other point; returns why it could not, "" if it could.
  async keepTheirs(place) {
    if (this.serverConflicts.has(place)) {
      const { error } = await this.merging(`/api/frame/${this.number}/keep/${place}`, {});
      if (error) return error;
      this.serverConflicts.delete(place);
    }
    this.ownConflicts.delete(place);
    return "";
  }
}
