// The mouse on the stage: a click places or chooses a keypoint, a drag moves a point or pans, the wheel zooms.

const DRAG_PX = 3;
// How much faster two fingers on a touchpad zoom than a wheel, and the logarithm of the largest zoom of one event.
const PINCH = 7, MOST_TURN = 0.7;

export class Pointer {
  // `page` has say(text), draw(), editor, spaceIsDown, chooseView(view) and isVideo, whether frames of a video are shown.
  constructor(view, page) {
    const stage = view.stage;
    this.view = view;
    this.stage = stage;
    this.page = page;
    this.drag = null;
    // {pointer: its place on the stage} of the buttons and fingers that are down.
    this.held = new Map();
    const element = stage.element;
    element.addEventListener("pointerdown", (event) => this.down(event));
    element.addEventListener("pointermove", (event) => this.moved(event));
    element.addEventListener("pointerup", (event) => this.up(event));
    element.addEventListener("pointercancel", (event) => { this.held.delete(event.pointerId); this.cancel(); });
    element.addEventListener("pointerleave", () => { stage.cursor = null; });
    element.addEventListener("contextmenu", (event) => event.preventDefault());
    element.addEventListener("wheel", (event) => {
      event.preventDefault();
      // Two fingers on a touchpad come as small turns with Ctrl.
      const speed = (event.deltaMode ? 0.05 : 0.0015) * (event.ctrlKey ? PINCH : 1), turn = -event.deltaY * speed;
      // Wheel events have whole pixels only; the cursor is more exact.
      stage.zoom(Math.exp(Math.min(MOST_TURN, Math.max(-MOST_TURN, turn))), stage.cursor ?? stage.place(event));
    }, { passive: false });
  }

  get editor() { return this.page.editor; }

  down(event) {
    if (event.isPrimary) this.held.clear();
    this.held.set(event.pointerId, this.stage.place(event));
    // A second finger: neither of them was meant to place a point.
    if (!event.isPrimary) return this.cancel();
    this.stage.element.focus({ preventScroll: true });
    const at = this.stage.place(event);
    const pans = event.button !== 0 || this.page.spaceIsDown;
    // A click into another view makes it the current one.
    const chooses = !pans && this.editor.stage !== this.stage;
    if (chooses) this.page.chooseView(this.view);
    // The labels that may change: another image may come before the button is released.
    const frame = this.editor.canEdit ? this.editor.frame : null;
    this.drag = { pans, at, start: at, place: pans ? -1 : this.stage.hit(at), hasMoved: false, chooses, frame };
    this.stage.element.setPointerCapture(event.pointerId);
    this.stage.element.classList.toggle("panning", pans);
  }

  // Whether a drag may change the labels that are shown.
  canEdit(drag) { return this.editor.canEdit && this.editor.frame === drag.frame; }

  // Ends the moving of a point, puts it back, and returns where it was moved to; undefined if it was not.
  endMoving({ before, moved, frame, place }) {
    // Another browser may have changed it meanwhile.
    if (!before || frame.points[place] !== moved) return undefined;
    frame.points[place] = before;
    return moved;
  }

  // Two fingers on the screen zoom and pan; the picture stays under them.
  pinch(pointer, at) {
    const middle = ([a, b]) => a.map((value, axis) => (value + b[axis]) / 2), span = ([a, b]) => Math.hypot(a[0] - b[0], a[1] - b[1]);
    const before = [...this.held.values()], after = [...this.held.set(pointer, at).values()];
    const [from, to] = [middle(before), middle(after)];
    this.stage.pan(to[0] - from[0], to[1] - from[1]);
    if (span(before) && span(after)) this.stage.zoom(span(after) / span(before), to);
  }

  moved(event) {
    const at = this.stage.place(event), drag = this.drag, editor = this.editor;
    if (this.held.size === 2 && this.held.has(event.pointerId)) return this.pinch(event.pointerId, at);
    this.stage.cursor = at;
    if (!drag) return this.stage.magnify();
    drag.hasMoved ||= Math.hypot(at[0] - drag.start[0], at[1] - drag.start[1]) > DRAG_PX;
    if (drag.pans) {
      this.stage.pan(at[0] - drag.at[0], at[1] - drag.at[1]);
    } else if (drag.place >= 0 && drag.hasMoved && this.canEdit(drag)) {
      // Shown at once, and one change at the end.
      const points = drag.frame.points, point = points[drag.place];
      if (!point || (drag.before && point !== drag.moved)) return;
      drag.before ??= point;
      const first = this.stage.toStage([drag.before.x, drag.before.y]);
      editor.put(points, drag.place, this.stage.toImage(first.map((value, axis) => value + at[axis] - drag.start[axis])), drag.before.v);
      drag.moved = points[drag.place];
      editor.current = drag.place;
      this.page.draw();
    }
    drag.at = at;
  }

  cancel() {
    const drag = this.drag, moved = drag && this.endMoving(drag);
    this.drag = null;
    this.stage.element.classList.remove("panning");
    // What was sent on the way is taken back.
    if (moved) drag.frame.send();
  }

  up(event) {
    this.held.delete(event.pointerId);
    const drag = this.drag, editor = this.editor, moved = drag && this.endMoving(drag);
    if (!event.isPrimary) return;
    this.drag = null;
    this.stage.element.classList.remove("panning");
    if (this.page.isVideo && !drag?.pans) this.page.say("Enter makes this frame an image to label");
    // What was sent on the way is taken back.
    if (moved && !this.canEdit(drag)) drag.frame.send();
    if (!drag || drag.pans || !this.canEdit(drag)) return;
    const at = this.stage.toImage(this.stage.place(event));
    if (drag.before) {
      if (moved) editor.change((points) => { points[drag.place] = moved; });
    } else if (drag.place >= 0 && (editor.frame.points[editor.current] || editor.frame.animalOf(drag.place) !== editor.animal)) {
      // All placed, or a point of another animal: a click on a point chooses it.
      editor.choose(drag.place);
    } else if (!drag.hasMoved && this.stage.covers(at) && !(drag.chooses && editor.frame.points[editor.current])) {
      editor.place(at);
      editor.advance();
    }
  }
}
