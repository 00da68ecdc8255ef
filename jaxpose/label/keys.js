// Every action of the pages with its keys; F1 lists these tables.

// What both pages have.
const LOOKS = [
  [["H"], "hide all points, or show them", "togglePoints"],
  [["B"], "next contrast and brightness", "contrast"],
  [["Z"], "magnifier on or off", "toggleMagnifier"],
  [["+", "="], "zoom in", "zoom", 1.25],
  [["-"], "zoom out", "zoom", 0.8],
  [["0"], "whole picture", "fit"],
  [["F1", "?"], "this list", "help"],
];

// [keys, words, name of the method of the page or its editor, its arguments].
export const ACTIONS = [
  [["D"], "next image", "step", 1],
  [["A"], "previous image", "step", -1],
  [["Shift+D"], "10 images forward", "step", 10],
  [["Shift+A"], "10 images back", "step", -10],
  [["J"], "go to an image by its number in the list or a part of its name; in a video, to a frame", "askWhere"],
  [["G"], "frames of a video by number, or back to the images", "toggleVideo"],
  [["N"], "next image without labels", "unlabelled", 1],
  [["Shift+N"], "previous image without labels", "unlabelled", -1],
  [["O"], "next image with labels that look wrong", "nextWrong"],
  [["Enter"], "confirm hollow points, of all cameras; next image without labels. In a video: label this frame", "confirm"],
  [["Q"], "next camera", "nextView", 1],
  [["Shift+Q"], "previous camera", "nextView", -1],
  [["S"], "next keypoint", "nextKeypoint", 1],
  [["W"], "previous keypoint", "nextKeypoint", -1],
  [["E"], "next animal", "nextAnimal", 1],
  [["Shift+E"], "previous animal", "nextAnimal", -1],
  [["I"], "add an animal", "addAnimal"],
  [["Shift+X", "Shift+Delete"], "delete the animal", "removeAnimal"],
  [["M"], "change the identity of the animal, in this image", "changeIdentity"],
  [["Shift+R"], "confirm the hollow points of the animal; next animal", "confirmAnimal"],
  [["P"], "place the keypoint at the cursor, or in the middle of the view", "placeHere"],
  [["V"], "hidden, or visible again", "hide"],
  [["X", "Delete"], "absent: no label; next keypoint", "remove"],
  [["C"], "copy missing points from the previous image", "copy"],
  [["L"], "swap left and right", "swap"],
  [["ArrowLeft"], "move the point by 1 px", "nudge", -1, 0],
  [["ArrowRight"], "", "nudge", 1, 0],
  [["ArrowUp"], "", "nudge", 0, -1],
  [["ArrowDown"], "", "nudge", 0, 1],
  [["Shift+ArrowLeft"], "move the point by 0.1 px", "nudge", -0.1, 0],
  [["Shift+ArrowRight"], "", "nudge", 0.1, 0],
  [["Shift+ArrowUp"], "", "nudge", 0, -0.1],
  [["Shift+ArrowDown"], "", "nudge", 0, 0.1],
  [["Ctrl+ArrowLeft"], "move the point by 10 px", "nudge", -10, 0],
  [["Ctrl+ArrowRight"], "", "nudge", 10, 0],
  [["Ctrl+ArrowUp"], "", "nudge", 0, -10],
  [["Ctrl+ArrowDown"], "", "nudge", 0, 10],
  [["Ctrl+Z"], "undo", "undo"],
  [["Ctrl+Shift+Z", "Ctrl+Y"], "redo", "redo"],
  [["R"], "take the ring of the keypoint, or its prediction; in a conflict, your point", "takeMine"],
  [["K"], "conflict: keep the other point", "keepTheirs"],
  [["T"], "show where the predictions of labelled points are", "togglePredictions"],
  [["F"], "flag the image, or remove its flag; a filter lists flagged images", "toggleFlag"],
  [["U"], "onion skin: the labels of the previous labelled image, drawn faintly, on or off", "toggleOnion"],
  [["Shift+T"], "train a network with these labels, then predict the other images", "train"],
  ...LOOKS,
];

// Those of the review of tracks.
export const REVIEW_ACTIONS = [
  [["N"], "next place without an answer", "open", 1],
  [["Shift+N"], "previous place without an answer", "open", -1],
  [["S"], "next place", "step", 1],
  [["W"], "previous place", "step", -1],
  [["1"], "same: each track shows the same animal in both frames", "answer", "same"],
  [["2"], "different: a track shows different animals in the two frames", "answer", "different"],
  [["3"], "swap: the two tracks have exchanged their animals between the frames", "answer", "swap"],
  [["X"], "swap the two tracks from the shown frame on, where no place is listed", "swapHere"],
  [["Backspace", "Delete"], "take back the answer", "answer", null],
  [["Ctrl+Z"], "undo", "undo"],
  [["Ctrl+Shift+Z", "Ctrl+Y"], "redo", "redo"],
  [["Shift+T"], "make the tracks again with the answers", "track"],
  [["F"], "the frame before the decision, or the one after it", "toggleFrame"],
  [["D"], "next frame", "move", 1],
  [["A"], "previous frame", "move", -1],
  [["Shift+D"], "10 frames forward", "move", 10],
  [["Shift+A"], "10 frames back", "move", -10],
  ...LOOKS,
];

// What a held key does again and again; anything else is done once, because nobody could see what it is done to.
const REPEATED = ["step", "move", "unlabelled", "open", "nextView", "nextKeypoint", "nextAnimal", "nudge", "undo", "redo", "zoom"];

// Writes a table into the element; the four directions of an arrow key share a row.
export function listKeys(body, actions = ACTIONS) {
  for (const [keys, words] of actions) {
    if (!words) continue;
    const row = document.createElement("tr"), head = document.createElement("th"), cell = document.createElement("td");
    keys.forEach((key, place) => {
      const shown = document.createElement("kbd");
      shown.textContent = key.replace("ArrowLeft", "arrows");
      head.append(...(place ? [" or "] : []), shown);
    });
    cell.textContent = words;
    row.append(head, cell);
    body.append(row);
  }
}

// The entry of a key event in a table, undefined without one. The letter on a key counts; on keyboards without these letters,
// such as Cyrillic ones, and for digits that need Shift, as on French ones, it is the place of the key.
export function actionOf(event, actions = ACTIONS) {
  if (event.altKey || event.getModifierState("AltGraph")) return undefined;
  const find = (key, isShifted) => {
    const name = [(event.ctrlKey || event.metaKey) && "Ctrl", isShifted && "Shift", key].filter(Boolean).join("+");
    return actions.find(([keys]) => keys.includes(name));
  };
  const { key, code, shiftKey } = event, isSign = key.length === 1 && key.toUpperCase() === key.toLowerCase();
  const isOther = key.length === 1 && (code.startsWith("Digit") ? !/[a-z0-9]/i.test(key) : code.startsWith("Key") && key > "\u007f");
  const place = isOther ? code.at(-1) : "";
  const found = find(key.length === 1 ? key.toUpperCase() : key, shiftKey && !isSign) ?? (place && find(place, shiftKey));
  return found && !(event.repeat && !REPEATED.includes(found[2])) ? found : undefined;
}

// A click leaves the keys to the picture: on a button that has been clicked, Enter would click again.
export function keepKeys() {
  document.addEventListener("mousedown", (event) => {
    if (event.target.closest("button") && !event.target.closest("dialog")) event.preventDefault();
  });
}

// The steps in a list that an arrow key means while the list has the focus; undefined for other keys and places.
export function stepInList(event) {
  if (event.target.id !== "list" || !event.key.startsWith("Arrow")) return undefined;
  return { ArrowUp: -1, ArrowDown: 1 }[event.key] ?? 0;
}
