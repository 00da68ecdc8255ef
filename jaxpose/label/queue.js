// The list of images: filters, and only the rows in view as elements, so that any number of images scrolls.

import { ask } from "/requests.js";
import { beforePainting } from "/stage.js";

const ROW_PX = 24, SPARE_ROWS = 8;

// Filters whose images the server finds when they are chosen: those with the best rank first.
const WITH_REASONS = ["wrong", "suggested"];
// Filters of images without a label only.
const OF_OPEN = ["doubtful", "suggested"];

export class Queue {
  // `open` is called with the number of a clicked image, and `say` with a problem.
  constructor(open, say) {
    // {filter: for each moment, its score or rank there, null without}.
    this.scores = {};
    // {moment: why it is there} of the last filter with reasons.
    this.reasons = new Map();
    this.open = open;
    this.say = say;
    this.list = document.getElementById("list");
    this.rows = document.getElementById("rows");
    this.filter = document.getElementById("filter");
    this.video = document.getElementById("video");
    this.shown = [];
    this.current = -1;
    this.height = this.list.clientHeight;
    // Images with conflicts that the server keeps, and those that the user has flagged.
    this.disputed = new Set();
    this.flagged = new Set();
    // Images with points of this page that another browser or program has overruled.
    this.contested = new Set();
    this.draw = beforePainting(() => this.paint());
    // Kept, because asking the browser makes it lay out the page.
    this.top = 0;
    this.painted = [];
    this.list.addEventListener("scroll", () => { this.top = this.list.scrollTop; this.draw(); });
    new ResizeObserver(() => { this.height = this.list.clientHeight; this.draw(); }).observe(this.list);
    // Until the project is known, there is nothing to choose from.
    this.set([], [], [], 0);
    for (const select of [this.filter, this.video]) {
      select.addEventListener("change", async () => { select.blur(); await this.find(); this.choose(); });
    }
  }

  // Takes the moments of the project: the name of each, and the numbers of its images, one for each view, -1 without one;
  // with one camera, each image is a moment. `counts` are of the images, and `full` is the number of keypoints.
  set(images, moments, counts, full) {
    this.images = images;
    this.moments = moments.map((numbers) => numbers.filter((number) => number >= 0));
    this.counts = counts;
    this.full = full;
    // The folders below labeled-data/; only those directly in it are of a video.
    this.videos = images.map((image) => image.split("/").slice(0, -1).join("/").replace(/^labeled-data\//, ""));
    const names = [...new Set(this.videos)];
    const chosen = this.video.value;
    this.video.replaceChildren(new Option("all videos", ""), ...names.map((name) => new Option(name, name)));
    this.video.value = names.includes(chosen) ? chosen : "";
    this.video.parentElement.hidden = names.length < 2;
  }

  // Takes what the predictions are worth: the mean confidence and the largest error of each image, null without. A moment
  // has the worst of its images.
  rank(confidence, errorPx) {
    const worst = (scores, choose) => this.moments.map((numbers) => {
      const known = numbers.map((number) => scores[number] ?? null).filter((score) => score !== null);
      return known.length ? choose(...known) : null;
    });
    const scores = { doubtful: worst(confidence, Math.min), errors: worst(errorPx, Math.max) };
    this.scores = { ...this.scores, ...scores };
    for (const kind in scores) this.offer(kind, scores[kind].some((score) => score !== null));
  }

  // Offers a filter, or does not.
  offer(kind, isOffered) {
    const option = [...this.filter.options].find(({ value }) => value === kind);
    option.hidden = option.disabled = !isOffered;
  }

  // Asks for the images of the filter, and why each is there, if the server finds them.
  async find() {
    const kind = this.filter.value;
    this.reasons = new Map();
    if (!WITH_REASONS.includes(kind)) return;
    const { status, content } = await ask(`/api/reasons/${kind}`);
    const { found, problem } = status === 200 ? content : { found: [], problem: content.error };
    if (problem) this.say(problem);
    const moments = new Map(this.moments.flatMap((images, moment) => images.map((image) => [image, moment])));
    this.scores[kind] = this.moments.map(() => null);
    found.forEach(([image, reason], rank) => {
      const moment = moments.get(image);
      if (moment === undefined) return;
      this.scores[kind][moment] ??= rank;
      this.reasons.set(moment, [this.reasons.get(moment), reason].filter(Boolean).join("; "));
    });
  }

  countsOf(number) { return this.moments[number].map((image) => this.counts[image]); }
  isFlagged(number) { return this.moments[number].some((image) => this.flagged.has(image)); }
  isOpen(number) { return this.countsOf(number).includes(0); }

  isOf(kind, number) {
    const isOpen = this.isOpen(number);
    if (kind in this.scores) return (this.scores[kind][number] ?? null) !== null && (!OF_OPEN.includes(kind) || isOpen);
    if (kind === "flagged") return this.isFlagged(number);
    return kind === "all" || (kind === "unlabelled" ? isOpen : this.countsOf(number).some((count) => count !== 0));
  }

  isIn(number) {
    return this.isOf(this.filter.value, number) && (!this.video.value || this.videos[number] === this.video.value);
  }

  // Applies the filters; an image that is labelled later stays in the list until the next choice.
  choose() {
    this.shown = this.images.map((_, number) => number).filter((number) => this.isIn(number));
    const scores = this.scores[this.filter.value], sign = this.filter.value === "errors" ? -1 : 1;
    // The worst predictions first.
    if (scores) this.shown.sort((a, b) => sign * (scores[a] - scores[b]));
    this.rows.style.height = `${this.shown.length * ROW_PX}px`;
    // The event of a scroll may still be to come.
    this.top = this.list.scrollTop;
    this.select(this.current);
  }

  // Makes an image the current one, and brings it into view.
  select(number) {
    this.current = number;
    const place = this.shown.indexOf(number);
    if (place >= 0) {
      const top = place * ROW_PX, height = this.height;
      if (top < this.top || top + ROW_PX > this.top + height) this.list.scrollTop = this.top = top - height / 2;
    }
    this.draw();
  }

  // The image some steps away in the list, at most its first or last one.
  step(steps) {
    const place = this.shown.indexOf(this.current);
    if (place < 0) return this.shown[0] ?? this.current;
    return this.shown[Math.min(this.shown.length - 1, Math.max(0, place + steps))];
  }

  // The images some steps away from one in the list.
  near(number, steps) {
    const place = this.shown.indexOf(number);
    return place < 0 ? [] : steps.map((step) => this.shown[place + step]).filter((other) => other !== undefined);
  }

  // The next image without a label after the current one, first in the list, then anywhere; -1 without one.
  unlabelled(direction) {
    for (const numbers of [this.shown, this.images.map((_, number) => number)]) {
      const start = Math.max(0, numbers.indexOf(this.current)), length = numbers.length;
      for (let steps = 1; steps < length; steps++) {
        const number = numbers[(start + direction * steps + length * steps) % length];
        if (this.isOpen(number)) return number;
      }
    }
    return -1;
  }

  // Makes the rows in view; those that look as before stay.
  paint() {
    const first = Math.max(0, Math.floor(this.top / ROW_PX) - SPARE_ROWS);
    const last = Math.min(this.shown.length, first + Math.ceil(this.height / ROW_PX) + 2 * SPARE_ROWS);
    const numbers = this.shown.slice(first, last);
    const looks = numbers.map((number, place) => [first + place, number, number === this.current, this.isFlagged(number), ...this.sign(number)].join());
    const make = (place) => this.row(numbers[place], first + place);
    if (looks.length !== this.painted.length || parseInt(looks[0]) !== parseInt(this.painted[0])) {
      this.rows.replaceChildren(...numbers.map((_, place) => make(place)));
    } else {
      looks.forEach((look, place) => { if (look !== this.painted[place]) this.rows.children[place].replaceWith(make(place)); });
    }
    this.painted = looks;
  }

  row(number, place) {
    const row = document.createElement("div");
    row.className = "row";
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(number === this.current));
    if (number === this.current) row.id = "current-row";
    row.style.top = `${place * ROW_PX}px`;
    row.title = [this.images[number], this.reasons.get(number)].filter(Boolean).join(": ");
    const mark = document.createElement("span"), name = document.createElement("span");
    mark.className = "mark";
    const [sign, words] = this.sign(number);
    mark.textContent = sign;
    mark.setAttribute("aria-label", words);
    // The end of a long name tells images apart; the mark keeps its direction.
    name.textContent = `\u2066${this.images[number].replace(/^labeled-data\//, "")}\u2069`;
    row.append(mark, name);
    if (this.isFlagged(number)) {
      const flag = document.createElement("span");
      flag.className = "flag";
      flag.textContent = "\u2691";
      flag.setAttribute("aria-label", "flagged");
      mark.after(flag);
    }
    const score = this.scores[this.filter.value]?.[number] ?? null;
    if (score !== null && !WITH_REASONS.includes(this.filter.value)) {
      const value = document.createElement("span");
      value.className = "score";
      value.textContent = this.filter.value === "errors" ? `${score.toFixed(1)} px` : score.toFixed(2);
      mark.after(value);
    }
    row.addEventListener("click", () => this.open(number));
    return row;
  }

  sign(number) {
    const counts = this.countsOf(number);
    if (counts.some((count) => count < 0) || this.moments[number].some((image) => this.disputed.has(image) || this.contested.has(image))) return ["!", "look here"];
    if (counts.every((count) => count === 0)) return ["\u25cb", "no label"];
    return counts.some((count) => count < this.full) ? ["\u25d0", "some labels"] : ["\u25cf", "all labels"];
  }
}
