// A question with a list of answers: a digit, or a click, chooses one.

const get = (id) => document.getElementById(id);

export class Choices {
  constructor() {
    this.dialog = get("choices");
    this.dialog.addEventListener("keydown", (event) => {
      const button = [...get("choices-list").children][Number(event.key) - 1]?.firstChild;
      if (!button || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      button.click();
    });
  }

  get isOpen() { return this.dialog.open; }

  // Asks, and calls `chosen` with the number of the chosen answer.
  ask(question, answers, chosen) {
    get("choices-question").textContent = question;
    get("choices-list").replaceChildren(...answers.map((answer, number) => {
      const row = document.createElement("li"), button = document.createElement("button");
      button.type = "button";
      button.textContent = number < 9 ? `${number + 1}  ${answer}` : answer;
      button.addEventListener("click", () => {
        this.dialog.close();
        chosen(number);
      });
      row.append(button);
      return row;
    }));
    this.dialog.showModal();
  }
}
