// The column at the side: the animals of the image, the keypoints with their state, and conflicts with other programs.

import { colourOf } from "/stage.js";

const get = (id) => document.getElementById(id);

export class Side {
  constructor(editor) {
    this.editor = editor;
    this.states = [];
    this.shownAnimals = "";
    get("add-animal").addEventListener("click", () => editor.addAnimal());
    get("remove-animal").addEventListener("click", () => editor.removeAnimal());
    get("change-identity").addEventListener("click", () => editor.changeIdentity());
  }

  // Takes the names of the keypoints.
  set(names) { this.names = names; }

  paint() {
    this.paintAnimals();
    this.paintKeypoints();
    this.paintConflicts();
  }

  // The list comes with the second animal.
  paintAnimals() {
    const editor = this.editor, animals = editor.hasSeveral ? editor.animals : [];
    get("animals-box").hidden = !editor.frame || !(editor.canAdd || animals.length);
    get("remove-animal").hidden = !animals.length;
    get("change-identity").hidden = editor.individuals.length < 2 && !(editor.tracks && animals.length);
    get("animals").hidden = get("animals-title").hidden = !animals.length;
    const rows = animals.map((animal) => [animal, editor.nameOf(animal), this.stateOf(animal), animal === editor.animal]);
    if (JSON.stringify(rows) === this.shownAnimals) return;
    this.shownAnimals = JSON.stringify(rows);
    get("animals").replaceChildren(...rows.map(([animal, name, state, isCurrent]) => {
      const row = listRow(name, colourOf(animal), () => editor.chooseAnimal(animal));
      show(row.firstChild, name, state, isCurrent);
      return row;
    }));
    get("animals").querySelector("[aria-current=true]")?.scrollIntoView({ block: "nearest" });
  }

  // How many points an animal has; with a question mark if some are not labels yet.
  stateOf(animal) {
    const points = this.editor.frame.places(animal).map((place) => this.editor.frame.points[place]).filter(Boolean);
    return points.length ? `${points.length}${points.some((point) => point.draft) ? "?" : ""}` : "";
  }

  paintKeypoints() {
    const list = get("keypoints"), { frame, current, hidesNext } = this.editor;
    if (!list.children.length) {
      list.replaceChildren(...this.names.map((name, k) => listRow(name, colourOf(k), () => this.editor.chooseKeypoint(k))));
    }
    this.names.forEach((name, k) => {
      const place = this.editor.animal * this.names.length + k, point = frame?.points[place], isCurrent = place === current;
      const armed = isCurrent && hidesNext && !point ? "next: hidden" : "";
      const state = armed || (!point ? "" : point.draft ? `${point.p?.toFixed(2) ?? "confirm"}?` : point.v === 1 ? "hidden" : "placed");
      if (this.states[k] === `${state} ${isCurrent}`) return;
      this.states[k] = `${state} ${isCurrent}`;
      show(list.children[k].firstChild, name, state || "no label", isCurrent, state);
      if (isCurrent) list.children[k].scrollIntoView({ block: "nearest" });
    });
  }

  paintConflicts() {
    const box = get("conflicts"), editor = this.editor, place = editor.conflict();
    const mine = place === undefined ? undefined : editor.frame.conflicts.get(place), shown = JSON.stringify([editor.frame?.number, place, mine]);
    // Buttons keep their focus, and an alert is not read out again.
    if (shown === this.shownConflict) return;
    this.shownConflict = shown;
    box.replaceChildren();
    if (place === undefined) return;
    const text = document.createElement("p");
    const whose = editor.hasSeveral ? `${editor.nameOf(editor.frame.animalOf(place))}: ` : "";
    const name = this.names[place % this.names.length];
    text.textContent = `${whose}${name} was also changed elsewhere. ${mine ? "The red square is your point." : "You removed it."}`;
    const buttons = [["Take mine (R)", () => editor.takeMine()], ["Keep the other (K)", () => editor.keepTheirs()]];
    box.append(text, ...buttons.map(([words, act]) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = words;
      button.addEventListener("click", act);
      return button;
    }));
  }
}

function listRow(name, colour, act) {
  const row = document.createElement("li"), button = document.createElement("button");
  button.type = "button";
  for (const [kind, text] of [["swatch", ""], ["name", name], ["state", ""]]) {
    const part = document.createElement("span");
    part.className = kind;
    part.textContent = text;
    button.append(part);
  }
  button.title = name;
  button.firstChild.style.background = colour;
  button.addEventListener("click", act);
  row.append(button);
  return row;
}

function show(button, name, words, isCurrent, state = words) {
  button.setAttribute("aria-current", String(isCurrent));
  button.setAttribute("aria-label", words ? `${name}, ${words}` : name);
  button.lastChild.textContent = state;
}
