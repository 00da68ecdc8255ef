// The training of a network: its button, its progress and its end. The processes run on without the page.

import { ask } from "/requests.js";

const get = (id) => document.getElementById(id);

export class Training {
  // `say` shows a text to the user.
  constructor(say) {
    this.say = say;
    this.button = get("train-button");
    this.state = { name: "none", text: "", share: 0 };
  }

  get isRunning() { return this.state.name === "training" || this.state.name === "predicting"; }

  // Takes the state that the server tells.
  show(state) {
    const before = this.state.name, text = get("training"), share = get("training-share");
    this.state = state;
    this.button.hidden = false;
    this.button.textContent = this.isRunning ? "Stop training" : "Train (Shift+T)";
    this.button.title = this.isRunning ? "saves the run and stops it" : state.command;
    text.textContent = text.title = share.title = state.text;
    text.classList.toggle("bad", state.name === "failed");
    share.hidden = !this.isRunning;
    share.value = state.share;
    if (before === "predicting" && state.name === "done") this.say("trained: hollow points are the new predictions; Enter confirms them");
    if (before !== state.name && state.name === "failed") this.say(`failed: ${state.text}`);
  }

  // Starts a training.
  async start() {
    if (this.isRunning) return this.say("training is running; the button stops it");
    await this.send("/api/train");
  }

  // The button: starts a training, or stops the running one.
  press() { return this.isRunning ? this.send("/api/stop") : this.start(); }

  async send(path) {
    this.button.disabled = true;
    const { status, content } = await ask(path, {});
    this.button.disabled = false;
    if (status === 200) this.show(content); else this.say(content.error);
  }
}
