// The labels of one image: what the page shows, what the server has, and the sending of the difference.
//
// A point is {x, y, v, draft}: v is 2 (visible) or 1 (hidden), and a draft is not a label until it is confirmed or moved.
// A draft that was predicted has its confidence as p.

const RETRY_MS = 2000;
// The server will never take what it answers with one of these.
const FINAL = [400, 404, 413, 415, 422];
// Less confident predictions are no drafts: often the keypoint is not in the image.
const LEAST_CONFIDENCE = 0.1;

// Asks the server; a body makes it a POST. The status is 0 if there is no answer.
export async function ask(path, body) {
  const options = body === undefined ? {} : {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), keepalive: true,
  };
  try {
    const answer = await fetch(path, options);
    return { status: answer.status, content: await answer.json() };
  } catch {
    return { status: 0, content: { error: "jaxpose label does not answer; start it again" } };
  }
}

const same = (a, b) => a === b || (a && b && a.every((value, place) => value === b[place])) || (!a && !b);
const asPoint = (value) => value && { x: value[0], y: value[1], v: value[2], draft: false };
const asValue = (point) => (point && !point.draft ? [point.x, point.y, point.v] : null);

export class Frame {
  // `tell` is called with (frame, kind, text) after every change: kind is saved, saving, failed, refused or changed.
  constructor(number, state, tell) {
    this.number = number;
    this.tell = tell;
    this.ownConflicts = new Map();
    this.sending = null;
    this.take(state);
    this.points = state.points.map(asPoint);
    this.predict(state.predicted);
  }

  // Takes other predictions; without a label or another draft, the sure ones become drafts.
  predict(predicted) {
    this.predicted = predicted.map((value) => value && { x: value[0], y: value[1], v: 2, draft: true, p: value[2] });
    const isSure = (point) => point && point.p >= LEAST_CONFIDENCE;
    if (this.points.every((point) => !point || (point.draft && point.p !== undefined))) {
      this.points = this.points.map((_, k) => (isSure(this.predicted[k]) ? { ...this.predicted[k] } : null));
    }
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
    this.saved = state.points;
    this.revision = state.revision;
    this.problem = state.problem;
    this.canHide = state.can_hide;
    this.serverConflicts = new Map(state.conflicts);
  }

  // The points of the user that another browser or program has overruled, by keypoint.
  get conflicts() { return new Map([...this.serverConflicts, ...this.ownConflicts]); }

  get unsent() {
    const differing = this.points.map((point, k) => [k, asValue(point)]).filter(([k, value]) => !same(value, this.saved[k]));
    return Object.fromEntries(differing);
  }

  get isSaved() { return !this.sending && Object.keys(this.unsent).length === 0; }

  // Sends what the server lacks, one request at a time.
  send() {
    this.sending ??= this.sendAll().finally(() => { this.sending = null; });
    return this.sending;
  }

  async sendAll() {
    for (let points; Object.keys(points = this.unsent).length; ) {
      this.tell(this, "saving", "");
      const { status, content } = await ask(`/api/frame/${this.number}`, { revision: this.revision, points });
      if (status === 200) {
        this.take(content);
        for (const k of Object.keys(points)) this.ownConflicts.delete(Number(k));
      } else if (status === 409) {
        this.merge(content);
      } else if (FINAL.includes(status)) {
        for (const k of Object.keys(points)) this.points[k] = asPoint(this.saved[k]);
        return this.tell(this, "refused", content.error);
      } else {
        setTimeout(() => this.send(), RETRY_MS);
        return this.tell(this, "failed", content.error);
      }
    }
    this.tell(this, "saved", "");
  }

  // Takes over a state of the server; where both sides changed a keypoint, the server's point is shown and mine kept aside.
  merge(state) {
    state.points.forEach((theirs, k) => {
      const mine = asValue(this.points[k]);
      if (same(theirs, this.saved[k]) || same(mine, theirs)) return;
      if (!same(mine, this.saved[k])) this.ownConflicts.set(k, mine);
      this.points[k] = asPoint(theirs);
    });
    this.take(state);
    this.tell(this, "changed", "");
  }

  // Asks for the state anew; an answer that crosses an edit of this page is dropped.
  async reload() {
    const before = this.saved;
    const { status, content } = await ask(`/api/frame/${this.number}`);
    if (status === 200 && !this.sending && this.saved === before) this.merge(content);
  }

  // Ends a conflict by taking my point, or by keeping the other one.
  takeMine(k) {
    const mine = this.conflicts.get(k);
    this.ownConflicts.delete(k);
    this.serverConflicts.delete(k);
    this.points[k] = asPoint(mine);
    return this.send();
  }

  async keepTheirs(k) {
    this.ownConflicts.delete(k);
    if (this.serverConflicts.has(k)) {
      const { status, content } = await ask(`/api/frame/${this.number}/keep/${k}`, {});
      if (status === 200) this.take(content);
    }
    this.tell(this, "changed", "");
  }
}
