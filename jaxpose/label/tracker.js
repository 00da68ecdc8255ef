// The command that makes the tracks again: its button, its progress and its end. It runs on without the page.

import { ask } from "/requests.js";

const get = (id) => document.getElementById(id);

export class Tracker {
  // `say` shows a text to the user; `changed` is called with every new state.
  constructor(say, changed) {
    this.say = say;
    this.changed = changed;
    this.state = { name: "none", text: "" };
  }

  get isRunning() { return this.state.name === "running"; }

  // Takes the state that the server tells.
  show(state) {
    const before = this.state.name, text = get("tracking"), button = get("track-button");
    this.state = state;
    button.textContent = this.isRunning ? "Stop" : "Make the tracks again (Shift+T)";
    text.textContent = state.text;
    text.classList.toggle("bad", state.name === "failed");
    if (before === "running" && state.name === "failed") this.say(`the tracks are as before: ${state.text}`);
    this.changed();
  }

  start() { return this.send("/api/track"); }
  stop() { return this.send("/api/stop"); }

  async send(path) {
    get("track-button").disabled = true;
    const { status, content } = await ask(path, {});
    get("track-button").disabled = false;
    if (status === 200) this.show(content); else this.say(content.error);
  }
}
