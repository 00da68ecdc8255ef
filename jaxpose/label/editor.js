// The edits of the shown labels, and their history: each action changes the points of the current animal or keypoint.
//
// `current` is a place in the points of the frame; it names an animal and one of its keypoints. An entry of the history has
// `changes`, [place, point before, point after], `tracks`, [animal, name before, name after], and `ended`, the conflicts that
// it ended: [place, point of this page].

import { isSameLabel } from "/frame.js";

const copyOf = (points) => points.map((point) => point && { ...point });
const asText = (point) => JSON.stringify(point ?? null);

export class Editor {
  // `page` has say(text), draw(), ringOf(place) and open(frame), which shows the image of another frame.
  constructor(page) {
    this.stage = null;
    this.page = page;
    this.frame = null;
    this.isOld = true;
    this.current = 0;
    this.hidesNext = false;
    this.undone = [];
    this.done = [];
    // The undo and redo that were asked for, one after the other.
    this.restored = Promise.resolve();
  }

  // Takes the project, as the server tells it.
  set(project) {
    this.partners = project.partners;
    this.individuals = project.individuals;
    // Those of a SLEAP file, null in another project.
    this.tracks = project.tracks;
    this.canAdd = project.can_add;
    this.size = project.keypoints.length;
  }

  // Takes the labels that are edited from now on, null without any, and the stage that shows them.
  show(frame, stage) {
    const animal = this.animal;
    this.stage = stage;
    this.frame = frame;
    this.isOld = false;
    this.hidesNext = false;
    if (!frame) return;
    const labelled = frame.animals().find((other) => frame.has(other)) ?? 0;
    // A named individual stays the current one in other images.
    this.current = this.firstOpen(this.individuals.length > 1 ? animal : labelled);
  }

  get animal() { return Math.floor(this.current / this.size) || 0; }
  get keypoint() { return this.current - this.animal * this.size || 0; }

  isOther(animal) { return animal !== this.animal; }

  // The animals to choose from: all individuals, or those with points and the current one.
  get animals() {
    if (!this.frame) return [];
    if (this.individuals.length > 1) return this.individuals.map((_, animal) => animal);
    return this.frame.animals().filter((animal) => this.frame.has(animal) || animal === this.animal);
  }

  get hasSeveral() { return this.animals.length > 1; }

  nameOf(animal) { return this.individuals[animal] || this.frame?.names[animal] || `animal ${animal + 1}`; }

  // Until another image has come, nothing changes the labels of the one before.
  get canEdit() { return this.takes(this.frame, this.stage); }

  takes(frame, stage) { return Boolean(frame && !this.isOld && stage.picture && !frame.problem); }

  // Changes the points of the frame by a function, and keeps the change for undo; equal kinds in a row are one change.
  change(alter, kind = "") {
    if (this.canEdit) this.changeFrame(this.frame, alter, kind);
  }

  changeFrame(frame, alter, kind = "") {
    const before = copyOf(frame.points), names = this.tracks && frame.knownTracks;
    alter(frame.points);
    const all = copyOf(frame.points).map((point, place) => [place, before[place], point]);
    const changes = all.filter(([, earlier, later]) => asText(earlier) !== asText(later));
    if (!changes.length) return;
    const last = this.done.at(-1), conflicts = frame.conflicts;
    const ended = changes.map(([place]) => [place, conflicts.get(place)]).filter(([place]) => conflicts.has(place));
    const goesOn = kind && !ended.length && last?.kind === kind && last.frame === frame && !this.undone.length && asText(last.changes[0][2]) === asText(changes[0][1]);
    if (goesOn) last.changes[0][2] = changes[0][2];
    else this.done.push({ frame, changes, tracks: [], ended, kind, names });
    for (const [place, mine] of ended) frame.endConflict(place, mine);
    this.keep(frame);
  }

  // Sends a new edit, which is in the history.
  keep(frame) {
    this.undone = [];
    frame.isInHistory = true;
    this.send(frame);
  }

  send(frame) {
    if (frame === this.frame) this.page.draw();
    frame.send();
  }

  undo() { return this.queue(() => this.restore(this.done, this.undone, "before")); }
  redo() { return this.queue(() => this.restore(this.undone, this.done, "after")); }

  // Does something after the undo and redo before it, which may wait for another image.
  queue(work) {
    this.restored = this.restored.then(work, work);
    return this.restored;
  }

  // Takes the last entry of a history to another one, and its frame to the state before or after it.
  async restore(from, to, side) {
    if (!from.length) return this.page.say(side === "before" ? "nothing to undo" : "nothing to redo");
    // An entry that joins the one before is undone and redone together with it.
    const entries = [from.pop()];
    while (from.length && (side === "before" ? entries.at(-1) : from.at(-1)).joins) entries.push(from.pop());
    to.push(...entries);
    for (const { frame } of entries) await this.page.open(frame);
    if (entries.every((entry) => this.isAsLeft(entry, side))) {
      for (const entry of entries) this.restoreEntry(entry, side);
    } else {
      to.splice(to.indexOf(entries[0]), entries.length);
      this.page.say(`not ${side === "before" ? "undone" : "redone"}: these labels have changed since, elsewhere or because a change was refused`);
    }
  }

  // Whether the labels are still those that an entry left; others are not this history's to change.
  isAsLeft({ frame, changes, tracks }, side) {
    const left = side === "before" ? 2 : 1;
    return changes.every((change) => isSameLabel(frame.points[change[0]], change[left])) &&
      tracks.every((track) => (frame.names[track[0]] ?? "") === track[left]);
  }

  restoreEntry(entry, side) {
    const { frame, changes, tracks, ended, names } = entry, wanted = side === "before" ? 1 : 2;
    entry.kind = "";
    const had = frame.animals().filter((animal) => frame.hasLabel(animal));
    for (const change of changes) frame.points[change[0]] = frame.returning(change[wanted] ?? null, change[0]);
    // A deleted animal comes back with its track.
    const back = side === "before" ? frame.animals().filter((animal) => !had.includes(animal) && frame.hasLabel(animal)) : [];
    for (const animal of back) if (names?.[animal] !== undefined) frame.giveBackTrack(animal, names[animal]);
    for (const track of tracks) frame.giveTrack(track[0], track[wanted]);
    for (const [place, mine] of ended) if (side === "before") frame.beginConflict(place, mine); else frame.endConflict(place, mine);
    const [place] = changes[0] ?? [];
    if (place !== undefined && frame === this.frame && frame.animalOf(place) !== this.animal) this.current = place;
    this.send(frame);
  }

  put(points, place, at, v) {
    const [x, y] = this.stage.inside(at);
    points[place] = { x, y, v, draft: false };
  }

  // Places the current keypoint at (x, y) of the image.
  place(at) {
    const v = this.hidesNext ? 1 : this.frame.points[this.current]?.v ?? 2;
    this.hidesNext = false;
    this.change((points) => this.put(points, this.current, at, v));
  }

  placeHere() { if (this.canEdit) this.place(this.stage.target()); }

  // Goes on to the next keypoint of the animal without a label.
  advance() {
    this.current = this.frame?.places(this.animal).find((place) => place > this.current && this.isOpen(place)) ?? this.current;
    this.page.draw();
  }

  isOpen(place) { return !this.frame.points[place] || this.frame.points[place].draft; }

  // The first keypoint of an animal without a label, or its first one.
  firstOpen(animal) { return this.frame.places(animal).find((place) => this.isOpen(place)) ?? animal * this.size; }

  choose(place) {
    this.current = place;
    this.hidesNext = false;
    this.page.draw();
  }

  chooseKeypoint(k) { this.choose(this.animal * this.size + k); }

  nextKeypoint(steps) { this.chooseKeypoint((this.keypoint + steps + this.size) % this.size); }

  // Animals -----------------------------------------------------------------------------------------------------------

  chooseAnimal(animal) { if (this.frame) this.choose(this.firstOpen(animal)); }

  nextAnimal(steps) {
    const animals = this.animals, place = animals.indexOf(this.animal);
    if (animals.length < 2) return this.page.say("this image has no other animal");
    this.chooseAnimal(animals[(place + steps + animals.length) % animals.length]);
  }

  addAnimal() {
    if (!this.canEdit) return;
    if (this.individuals.length > 1) {
      const free = this.individuals.findIndex((_, animal) => !this.frame.has(animal));
      return free >= 0 ? this.chooseAnimal(free) : this.page.say(`all ${this.individuals.length} individuals of the project have points`);
    }
    if (!this.canAdd) return this.page.say("the label file of this project has columns for one animal");
    this.chooseAnimal(this.frame.freeAnimal());
    this.page.say("place the first point of the new animal");
  }

  removeAnimal() {
    if (!this.canEdit) return;
    const animal = this.animal;
    if (!this.frame.has(animal)) return this.page.say("this animal has no point");
    this.change((points) => this.frame.places(animal).forEach((place) => { points[place] = null; }));
    this.frame.removed.add(animal);
    if (this.individuals.length < 2) this.current = this.firstOpen(this.frame.animals().find((other) => this.frame.has(other)) ?? animal);
    this.page.say(`deleted ${this.nameOf(animal)}; Ctrl+Z brings it back`);
    this.page.draw();
  }

  // Asks which animal the current one is; of two individuals, it is the other.
  changeIdentity() {
    if (!this.canEdit) return;
    if (this.tracks) return this.chooseTrack();
    const others = this.individuals.map((_, animal) => animal).filter((animal) => animal !== this.animal);
    if (!others.length) return this.page.say("the animals of this project have no names");
    if (others.length === 1) return this.exchange(others[0]);
    this.page.choices.ask(`${this.nameOf(this.animal)} is`, others.map((animal) => this.nameOf(animal)), (choice) => this.exchange(others[choice]));
  }

  // Asks for the track of a SLEAP instance: those of the other animals first.
  chooseTrack() {
    const { frame, animal } = this, own = frame.names[animal] ?? "";
    if (!frame.has(animal)) return this.page.say("this animal has no point");
    if (frame.places(animal).some((place) => frame.points[place]?.draft)) return this.page.say("confirm the hollow points first: Shift+R");
    if (frame.predicted.some(Boolean) && frame.animals().some((one) => frame.isUnsent(one))) return this.page.say("a new animal of this image is not saved yet, so its track is not known: try again");
    const names = [...new Set([...frame.names, ...this.tracks])].filter((name) => name && name !== own);
    const others = own ? ["no track"] : [];
    this.page.choices.ask(`${own || this.nameOf(animal)} is`, names, (choice) => this.setTrack(names[choice]), {
      others, other: () => this.setTrack(""), named: (name) => this.setTrack(name),
    });
  }

  // Gives the current animal a track; another animal of the image with this track gets that of the current one.
  setTrack(name) {
    const { frame, animal } = this, own = frame.names[animal] ?? "";
    if (!this.canEdit || name === own) return;
    const other = name ? frame.names.findIndex((known, one) => known === name && one !== animal && frame.has(one)) : -1;
    const changes = [[animal, own, name], ...(other >= 0 ? [[other, name, own]] : [])];
    this.done.push({ frame, changes: [], tracks: changes, ended: [], kind: "" });
    for (const [one, , after] of changes) frame.giveTrack(one, after);
    this.page.say(other >= 0 ? `${name} and ${own || "the animal without a track"} are exchanged in this image` : name ? `the animal is ${name} in this image` : "the animal has no track in this image");
    this.keep(frame);
  }

  // The animal gets the points of another one, and that one its points.
  exchange(other) {
    const animal = this.animal, { frame, size } = this;
    if (!this.canEdit || !(frame.has(animal) || frame.has(other))) return this.page.say("neither animal has a point");
    this.change((points) => {
      for (let k = 0; k < size; k++) [points[animal * size + k], points[other * size + k]] = [points[other * size + k], points[animal * size + k]];
    });
    this.choose(other * size + this.keypoint);
    this.page.say(`${this.nameOf(animal)} and ${this.nameOf(other)} have exchanged their points in this image`);
  }

  // Keypoints ---------------------------------------------------------------------------------------------------------

  hide() {
    if (!this.canEdit) return;
    if (!this.frame.canHide) return this.page.say("this label file has no \"visible\" columns, so it cannot mark hidden points; X leaves a point out");
    const place = this.current, point = this.frame.points[place];
    if (point) return this.change((points) => { points[place] = { x: point.x, y: point.y, v: 3 - point.v, draft: false }; });
    this.hidesNext = !this.hidesNext;
    this.page.draw();
  }

  remove() {
    this.change((points) => { points[this.current] = null; });
    this.hidesNext = false;
    if (this.canEdit) this.chooseKeypoint(Math.min(this.keypoint + 1, this.size - 1));
  }

  // Copies the points of another frame that are missing here, those of an animal with a name to the one of this name.
  copy(other) {
    const target = (place) => {
      const animal = other ? other.animalOf(place) : 0, name = other.names[animal];
      const same = name ? this.frame.names.indexOf(name) : -1;
      return place + (same < 0 ? 0 : same - animal) * this.size;
    };
    const isMissing = (point, place) => point && !this.frame.points[target(place)] && this.stage.covers([point.x, point.y]);
    if (!this.canEdit || !other?.points.some(isMissing)) return this.page.say("the previous image has no point that is missing here");
    this.change((points) => {
      const found = other.points.map((point, place) => [point, place]).filter((entry) => isMissing(...entry));
      this.frame.extend(this.frame.animalOf(Math.max(...found.map(([, place]) => target(place)))));
      for (const [point, place] of found) points[target(place)] = { x: point.x, y: point.y, v: point.v, draft: true };
    });
    this.page.say("hollow points are not labels yet: Enter confirms all of them; moving a point confirms it");
  }

  swap() {
    if (this.partners.every((other, k) => other === k)) return this.page.say("no two keypoint names form a left and right pair");
    const first = this.animal * this.size;
    this.change((points) => {
      const before = copyOf(points);
      this.partners.forEach((other, k) => { points[first + k] = before[first + other]; });
    });
  }

  nudge(dx, dy) {
    const place = this.current, point = this.frame?.points[place];
    if (!point) return this.page.say("place the keypoint first: click, or P");
    this.change((points) => this.put(points, place, [point.x + dx, point.y + dy], point.v), `nudge ${place}`);
  }

  // Makes the hollow points labels, of one animal of the frame or of all.
  confirm(animal, frame = this.frame, stage = this.stage) {
    const places = animal === undefined ? frame?.points.map((_, place) => place) : frame?.places(animal);
    if (!this.takes(frame, stage) || !places.some((place) => frame.points[place]?.draft)) return false;
    this.changeFrame(frame, (points) => {
      for (const place of places) {
        if (points[place]) points[place] = { x: points[place].x, y: points[place].y, v: points[place].v, draft: false };
      }
    });
    return true;
  }

  // Makes the hollow points of all views labels, as one change.
  confirmAll(views) {
    let count = 0;
    for (const { frame, stage } of views) if (this.confirm(undefined, frame, stage) && count++) this.done.at(-1).joins = true;
  }

  confirmAnimal() {
    if (!this.canEdit) return;
    if (!this.confirm(this.animal)) return this.page.say("this animal has no hollow point");
    if (this.hasSeveral) this.nextAnimal(1);
  }

  // The conflict that is shown: the place of a point, undefined without one.
  conflict() { return [...(this.frame?.conflicts.keys() ?? [])][0]; }

  takeMine() {
    const place = this.conflict();
    if (place !== undefined) return this.isOld ? undefined : this.takeMineIn(this.frame, place);
    const predicted = this.frame?.predicted[this.current], ring = this.page.ringOf(this.current);
    if (ring === null) return this.page.say("where the ring is now is not known yet: press R again");
    if (!(predicted || ring) || !this.canEdit) return this.page.say("there is no prediction of this keypoint");
    this.place(ring ?? [predicted.x, predicted.y]);
    this.advance();
  }

  // Ends a conflict: my point becomes the label, unless the other one is equal by now.
  takeMineIn(frame, place) {
    const mine = frame.mine(place);
    if (isSameLabel(frame.points[place], mine)) return this.keepTheirs();
    return this.changeFrame(frame, (points) => { points[place] = mine; });
  }

  keepTheirs() {
    const place = this.conflict(), { frame } = this;
    if (place !== undefined) return this.queue(() => this.keepTheirsIn(frame, place));
  }

  // Ends a conflict without a change of the label; an undo brings back my point as the other choice.
  async keepTheirsIn(frame, place) {
    if (!frame.conflicts.has(place)) return;
    const mine = frame.conflicts.get(place), problem = await frame.keepTheirs(place);
    if (problem) return this.page.say(`the conflict is as before: ${problem}`);
    this.done.push({ frame, changes: [], tracks: [], ended: [[place, mine]], kind: "" });
    this.keep(frame);
  }
}
