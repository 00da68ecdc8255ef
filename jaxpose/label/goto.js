// A field to go to an image by its number in the list or by a part of its name.

// Images that a text may mean, at most so many are listed.
const MOST = 9;
const get = (id) => document.getElementById(id);

export class GoTo {
  // `go` is called with the number of the chosen image.
  constructor(queue, go) {
    this.queue = queue;
    this.go = go;
    this.dialog = get("goto");
    this.text = get("goto-text");
    this.text.addEventListener("input", () => this.find());
    this.dialog.addEventListener("keydown", (event) => {
      if (event.target !== this.text || event.key !== "Enter") return;
      event.preventDefault();
      get("goto-list").querySelector("button")?.click();
    });
  }

  ask() {
    const { shown, current } = this.queue, place = shown.indexOf(current);
    const here = place < 0 ? "" : `; this image is ${place + 1}`;
    get("goto-hint").textContent = shown.length ? `The list has the numbers 1 to ${shown.length}${here}.` : "The list is empty: a name finds the other images.";
    this.text.value = "";
    this.find();
    this.dialog.showModal();
  }

  // Lists the images that the text may mean: the one with this number, then those with this part in their names, those in
  // the list first.
  find() {
    const { images, shown } = this.queue, text = this.text.value.trim().toLowerCase(), found = new Set();
    const numbered = /^\d+$/.test(text) ? shown[Number(text) - 1] : undefined;
    if (numbered !== undefined) found.add(numbered);
    for (const numbers of text ? [shown, images.keys()] : []) {
      for (const number of numbers) {
        if (found.size >= MOST) break;
        if (images[number].toLowerCase().includes(text)) found.add(number);
      }
    }
    get("goto-list").replaceChildren(...[...found].map((number) => this.row(number)));
    get("goto-problem").textContent = text && !found.size ? "no image has this number, or this in its name" : "";
  }

  row(number) {
    const row = document.createElement("li"), button = document.createElement("button");
    const place = this.queue.shown.indexOf(number);
    button.type = "button";
    button.textContent = place < 0 ? `${this.queue.images[number]} (not in the list)` : `${place + 1}  ${this.queue.images[number]}`;
    button.addEventListener("click", () => {
      this.dialog.close();
      this.go(number);
    });
    row.append(button);
    return row;
  }
}
