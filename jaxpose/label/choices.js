// A question with a list of answers: a digit, or a click, chooses one. Some questions also take a name.

// More answers are only in the list of names.
const MOST = 9;
const get = (id) => document.getElementById(id);

export class Choices {
  constructor() {
    this.dialog = get("choices");
    this.name = get("choices-name");
    this.dialog.addEventListener("keydown", (event) => {
      if (event.target === this.name) return event.key === "Enter" && this.takeName(event);
      const button = /^[1-9]$/.test(event.key) && [...get("choices-list").children][Number(event.key) - 1]?.firstChild;
      if (!button || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      button.click();
    });
  }

  // Asks, and calls `chosen` with the number of the chosen answer. `others` are answers without a digit, for which it
  // calls `other`, and `named` is called with a name that is typed, if there is one.
  ask(question, answers, chosen, { others = [], other = null, named = null } = {}) {
    get("choices-question").textContent = question;
    get("choices-list").replaceChildren(
      ...answers.slice(0, named ? MOST : answers.length).map((answer, number) => this.row(number < MOST ? `${number + 1}  ${answer}` : answer, () => chosen(number))),
      ...others.map((answer) => this.row(answer, other)),
    );
    this.named = named;
    get("choices-other").hidden = !named;
    get("choices-names").replaceChildren(...(named ? answers : []).map((answer) => new Option(answer)));
    this.name.value = "";
    this.dialog.showModal();
  }

  row(text, act) {
    const row = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      this.dialog.close();
      act();
    });
    row.append(button);
    return row;
  }

  takeName(event) {
    event.preventDefault();
    const name = this.name.value.trim();
    if (!name) return;
    this.dialog.close();
    this.named(name);
  }
}
