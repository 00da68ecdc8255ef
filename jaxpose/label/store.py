"""The labels of a project while people change them: label files, edits that these lack, and conflicts.

The label files are the truth. An edit is in the journal when `edit` returns, and in the label files about a second
later. Files that another program changes are read again, and edits are merged with the change by image, animal and
keypoint.

The page names a point of an image by a number: a place for each animal that the image has had in this session, each
with all keypoints of the project. A new animal takes the first place after them.
"""

import dataclasses
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxpose.data.label_changes import ChangedMeanwhile, changing_labels, write_all
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER
from jaxpose.formats.project import SLEAP
from jaxpose.label.file_states import FileStates, file_signatures
from jaxpose.label.journal import Edit, Journal, as_point, by_animal, changes_by_file, known_places_px
from jaxpose.label.label_file import TRACK, LabelFile, Point, Points, Slot, give_place, revision_of
from jaxpose.label.predictions import Predictions
from jaxpose.label.project import AnyLabelFile, LabelProject
from jaxpose.label.sleap_file import SleapFile
from jaxpose.label.written_edits import WrittenEdits
from jaxpose.labelling.project_labels import refuse_other_labels

# Label files are written after this long without an edit, at the latest this long after the first one.
_REST_S, _LONGEST_S = 1.0, 5.0
_POLL_S = 0.25
# How often the label files are compared with what was read, and how long another program may take to write one.
_LOOK_S, _MOST_WAIT_S = 1.0, 60.0

_Key = tuple[str, str, str]


class Stale(Exception):
    """An edit was made on an older state of the image than the present one."""


class Store:
    """The labels of a project; one process at a time has a store of it.

    Attributes:
      project: the project.
      predictions: of its images, None without.
      images: names in the order of the queue; an image that another program adds to a label file comes last.
      context_images: number of images left out, because they are the context of labelled ones.
      absent: {video: (number of its images that are not listed, why the first cannot be shown)}.
      adding: the lock of what writes new images.
      has_several: whether images have several animals.
      problem: why label files cannot be written or read at the moment, "" if they can.
    """

    def __init__(self, project: LabelProject, predictions: Predictions | None = None):
        """Reads the labels, and writes what a killed session left in its journal.

        Args:
          project: the project.
          predictions: of its images, which are no labels; None for those in the label file, if it has any.

        Raises:
          UserError: a label file or the journal cannot be understood.
          OSError: a file cannot be read or written.
        """
        self.project, self.predictions, self.problem = project, predictions, ""
        self._lock, self._writing, self.adding = threading.RLock(), threading.Lock(), threading.Lock()
        self._files: dict[Path, AnyLabelFile] = {}
        self._states = FileStates()
        self._backed_up: set[Path] = set()
        self._written = WrittenEdits()
        self._pending, self._conflicts = dict[_Key, Edit](), dict[_Key, Edit]()
        self.absent: Mapping[str, tuple[int, str]] = {}
        self._places: dict[str, list[str | None]] = {}
        self._version, self._changed_at = 0, dict[int, int]()
        self._prediction_version = 0
        self._first_edit_s = self._last_edit_s = 0.0
        for file in project.files:
            self._states.take(file)
            self._files[file] = found = project.first_read(file)
            if isinstance(found, SleapFile):
                self.absent = found.absent
                if found.predicted and not predictions:
                    self.predictions = Predictions(file, found.predicted, project)
        self.has_several = self._find_several()
        rows = [image for file in self._files.values() for image in file.images]
        self.images, self.context_images = project.images(rows)
        self._ids = {image: number for number, image in enumerate(self.images)}
        self._moments: dict[str, list[int]] = {}
        for image in self.images:
            self.refuse_second(image)
            self._join_moment(image)
        self._journal = Journal(project.journal_file)
        self.recovered = self._recover()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._keep_files, daemon=True)
        self._thread.start()

    # What the page asks.

    def frame(self, number: int) -> dict[str, Any]:
        """Returns the state of an image as JSON: `points` and `predicted`, `revision` and others.

        Each has K entries for each animal, in the order of `animals`, which has their names; `removed` are the places
        of deleted ones, which no other animal takes. A conflict is [place in `points`, point]: an edit that does not
        fit a change from outside, which `points` has.
        """
        with self._lock:
            image = self.images[number]
            of_file, animals, (poses, named) = self._file(image), self._animals(image), self._named_poses(image)
            empty = [(place, animal) for place, animal in enumerate(animals) if animal and not any(poses[place])]
            removed = [place for place, animal in empty if of_file.is_deleted(image, animal)]
            predicted = self.predictions and self.predictions.shown(image, poses, self.has_several, removed)
            names = self.project.keypoint_names
            kept = [edit for edit in self._conflicts.values() if edit.image == image]
            places = [animals.index(edit.animal) * len(names) + names.index(edit.keypoint) for edit in kept]
            return {
                "points": sum(poses, []),
                "animals": named,
                "removed": removed,
                "revision": revision_of(poses, named),
                "problem": of_file.problems.get(image, ""),
                "can_hide": of_file.can_hide,
                "conflicts": [[place, edit.after] for place, edit in zip(places, kept, strict=True)],
                "predicted": predicted or [],
            }

    def tracks(self) -> list[str] | None:
        """Returns the names of the tracks of a SLEAP file, None for another one."""
        with self._lock:
            (found, *_) = [file.tracks for file in self._files.values() if isinstance(file, SleapFile)] or [None]
            return None if found is None else list(dict.fromkeys(found))

    def moments(self) -> list[list[int]]:
        """Returns the numbers of the images of each moment, in the order of the views; -1 where a view has none."""
        with self._lock:
            return [list(numbers) for numbers in self._moments.values()]

    def moment(self, number: int) -> list[int]:
        """Returns the moment of an image, as in `moments`."""
        with self._lock:
            return list(self._moments[self.project.moment_of(self.images[number])])

    def path_of(self, number: int) -> Path:
        """Returns the file of an image; raises UserError without a usable one."""
        with self._lock:
            of_file = self._file(self.images[number])
        return of_file.path_of(self.project.folder, self.images[number])

    def scores(self) -> dict[str, list[float | None]]:
        """Returns as JSON, of each image, the mean confidence and the largest error (px) of its predictions."""
        with self._lock:
            found = self.predictions
            if not found:
                return {"confidence": [], "error_px": []}
            errors = [found.error_px(image, self._poses(image), self.has_several) for image in self.images]
            return {"confidence": list(map(found.confidence, self.images)), "error_px": errors}

    def take(self, predictions: Predictions | None) -> None:
        """Shows other predictions from now on."""
        with self._lock:
            self.predictions = predictions
            self._prediction_version += 1

    def label_files(self) -> list[Path]:
        """Returns the label files that exist."""
        with self._lock:
            return sorted(file for file in self._files if file.is_file())

    def add(self, image: str) -> int:
        """Adds an image, if it is new, and returns its number; raises UserError as `refuse_second`."""
        with self._lock:
            self._know(image)
            return self._ids[image]

    def refuse_second(self, image: str) -> None:
        """Raises UserError if the moment of an image has another image of the same view."""
        if not (view := self.project.view_of(image)):
            return
        with self._lock:
            numbers = self._moments.get(self.project.moment_of(image))
            first = numbers[self.project.views.index(view)] if numbers else -1
            if first not in (-1, self._ids.get(image)):
                # Only the view's end of a folder may be spelled in two ways; both look alike in print.
                raise UserError(
                    f"{image} and {self.images[first]} are images of the view {view} at one moment: keep one of the "
                    "folders, whose names differ in Unicode form"
                )

    def counts(self) -> list[int]:
        """Returns the number of labelled keypoints of each image; -1 if its row cannot be used."""
        with self._lock:
            return [self._count(image) for image in self.images]

    def changes(self, since: int) -> dict[str, Any]:
        """Returns as JSON what has changed after a version: {image number: labelled keypoints}, and what is unsaved."""
        with self._lock:
            changed = [number for number, version in self._changed_at.items() if version > since]
            return {
                "version": self._version,
                "images": len(self.images),
                "counts": {number: self._count(self.images[number]) for number in changed},
                "conflicts": sorted({self._ids[edit.image] for edit in self._conflicts.values()}),
                "unwritten": len(self._pending),
                "predictions": self._prediction_version,
                "problem": self.problem,
            }

    def edit(
        self, number: int, revision: str, changes: Mapping[int, Point | None], tracks: Mapping[int, str] | None = None
    ) -> dict[str, Any]:
        """Changes points of an image; when this returns, the edit is on the disk.

        Args:
          number: of the image.
          revision: of the state on which the edit was made.
          changes: {place as in `frame`: new point}; one after all animals adds an animal.
          tracks: {place in `animals`: its track in a SLEAP file, "" for none}; new animals get that of a prediction.

        Returns:
          The new state, as `frame`.

        Raises:
          Stale: the image has changed since.
          UserError: the label file has no place for the edit.
          OSError: the disk is full, or fails; nothing has changed.
        """
        with self._lock:
            image = self.images[number]
            if revision != revision_of(*self._named_poses(image)):
                raise Stale
            edits = [self._edit(image, self._slot(image, place), changes[place]) for place in sorted(changes)]
            size = len(self.project.keypoint_names)
            given = {self._slot(image, animal * size)[0]: name for animal, name in (tracks or {}).items()}
            if isinstance(of_file := self._file(image), SleapFile):
                given |= of_file.tracks_of_new(image, self._points(image), edits, self._names(image), given)
            edits += [self._edit(image, (animal, TRACK), name) for animal, name in given.items()]
            self._journal.append(edits)
            for edit in edits:
                self._conflicts.pop(edit.key, None)
                self._apply(edit)
            self.has_several = self.has_several or len(self._labelled(image)) > 1
            return self.frame(number)

    def drop_conflict(self, number: int, place: int) -> dict[str, Any]:
        """Keeps the point from outside instead of a conflicting edit; returns the state, as `frame`.

        Raises:
          OSError: the journal cannot be written.
        """
        with self._lock:
            key = self.images[number], *self._slot(self.images[number], place)
            if key in self._conflicts:
                left = [edit for other, edit in self._conflicts.items() if other != key]
                self._journal.replace([*self._pending.values(), *left])
                del self._conflicts[key]
                self._touch(key[0])
            return self.frame(number)

    # Files.

    def flush(self, is_last: bool = False) -> None:
        """Writes all edits to the label files, when no other program writes one.

        Args:
          is_last: no edit follows.

        Raises:
          UserError: a label file cannot be understood, keeps changing, or has other labels than its HDF5 file.
          OSError: a file cannot be written; the edits stay in the journal.
        """
        end_s = time.monotonic() + _MOST_WAIT_S
        while not self._flush(is_last):
            if time.monotonic() > end_s:
                raise UserError(f"another program has been writing labels of {self.project.path} for a minute: end it")
            time.sleep(_POLL_S)

    def _flush(self, is_last: bool) -> bool:
        """Writes all edits to the label files; returns False, and writes none, if another program writes one."""
        with self._writing, changing_labels(self.project.folder):
            if not self._look():
                return False
            with self._lock:
                written = dict(self._pending)
                changes, tracks = changes_by_file(written.values(), self.project.file_of)
                files = {file: self._base(file).changed(of_file) for file, of_file in changes.items()}
                for file, of_tracks in tracks.items():
                    found = files[file]
                    assert isinstance(found, SleapFile)
                    files[file] = found.retracked(of_tracks)
                if is_last:
                    ends = {file: found.final() for file, found in (self._files | files).items()}
                    files |= {file: found for file, found in ends.items() if found is not self._files[file]}
            if files:
                contents = {file: found.content() for file, found in files.items()}
                h5 = {}
                if self.project.is_deeplabcut:
                    tables = {file: found for file, found in files.items() if isinstance(found, LabelFile)}
                    h5 = {file.with_suffix(".h5"): found.h5(contents[file]) for file, found in tables.items()}
                before = {file: self._files[file].content() if self._states.has(file) else None for file in files}
                try:
                    write_all(self.project.folder, {**contents, **h5}, {}, self._backed_up, before)
                except ChangedMeanwhile:
                    return False
                self._backed_up |= {*contents, *h5}
            with self._lock:
                self._files |= files
                self._written.add(written.values())
                for file in files:
                    self._states.take(file)
                left = [edit for key, edit in self._pending.items() if edit != written.get(key)]
                self._pending = {edit.key: self._edit_of(edit.image, edit.slot, edit.after) for edit in left}
                self._journal.replace([*self._pending.values(), *self._conflicts.values()])
        return True

    def close(self) -> None:
        """Writes all edits to the label files and ends; raises as `flush`."""
        self._is_closing.set()
        self._thread.join()
        self.flush(is_last=True)

    def _keep_files(self) -> None:
        """Writes and reads label files while the page is open."""
        looked_s, are_whole = time.monotonic(), True
        while not self._is_closing.wait(_POLL_S):
            now = time.monotonic()
            is_due = self._pending and (now - self._last_edit_s > _REST_S or now - self._first_edit_s > _LONGEST_S)
            if not is_due and are_whole and now - looked_s < _LOOK_S:
                continue
            looked_s = now
            try:
                if is_due:
                    self.flush()
                    self._first_edit_s = time.monotonic()
                else:
                    with self._writing:
                        are_whole = self._look()
                self.problem = ""
            except UserError as error:
                self.problem = str(error)
            except OSError as error:
                self.problem = f"{error.filename}: {error.strerror}"
            except Exception as error:
                self.problem = f"labels are only in {self._journal.file}, because of an error of the program: {error}"
                raise

    def _look(self) -> bool:
        """Merges the changes of other programs; returns False while one may be writing; `_writing` is held.

        Raises:
          UserError: a file cannot be understood.
        """
        known = set(self._files)
        if self.project.is_deeplabcut:
            known |= set(self.project.folder.glob(f"{IMAGES_FOLDER}/*/CollectedData_{self.project.scorer}.csv"))
        are_whole = True
        for file in known:
            of_file, signatures = self._files.get(file), file_signatures(file)
            if not self._states.has_changed(file, signatures, of_file and of_file.content):
                continue
            if self._states.is_being_written(file, signatures):
                are_whole = False
                continue
            if signatures[0][0] is None and of_file and of_file.points:
                raise UserError(f"{file} has vanished; put it back")
            if self.project.is_deeplabcut:
                refuse_other_labels(self.project.folder, file)
            found = self.project.read(file)
            with self._lock:
                self._merge(file, found)
                self._states.take(file, signatures)
        return are_whole

    def _merge(self, file: Path, found: AnyLabelFile) -> None:
        """Takes over a label file that another program has changed; raises UserError as `refuse_second`."""
        old = self._base(file)
        # In the order of the file, so that new images come in that order.
        images = dict.fromkeys([*old.images, *found.images])
        for image in images:
            self._know(image)
        self._files[file] = found
        for image in images:
            is_other = old.points.get(image) != found.points.get(image) or old.animals(image) != found.animals(image)
            if is_other or image in found.problems:
                self._touch(image)
        edits = [edit for edit in self._pending.values() if self.project.file_of(edit.image) == file]
        for edit in edits:
            del self._pending[edit.key]
        lost = self._written.take_lost(images, found, [*edits, *self._conflicts.values()])
        if self._settle([*lost, *edits]) or lost:
            # Later edits in the journal have the new ids.
            self._journal.replace([*self._pending.values(), *self._conflicts.values()])

    def _settle(self, edits: Iterable[Edit]) -> bool:
        """Applies edits to label files that may have changed since: each is pending, done or a conflict.

        Args:
          edits: in their order; the label file may have the point before or after any of them.

        Returns:
          Whether an animal has another id than in its edits.
        """
        animals, is_moved = by_animal(edits), False
        ids = [(of_animal[0].image, of_animal[0].animal) for of_animal in animals]
        for of_animal, (image, animal) in zip(animals, ids, strict=True):
            now, places = self._animal_now(of_animal, ids), self._animals(image)
            is_moved |= now not in (None, animal)
            if now is not None and now not in places and animal in places:
                # The page goes on with it in its place.
                places[places.index(animal)] = now
            chains: dict[str, list[Edit]] = {}
            for edit in of_animal:
                chains.setdefault(edit.keypoint, []).append(edit)
            ends = {**(of_animal[0].was or {}), **{name: chain[-1].after for name, chain in chains.items()}}
            # Nothing is left to do for a removed animal that the file no longer has.
            if now is not None or any(ends.values()):
                for chain in chains.values():
                    self._settle_chain(chain, now)
            self._touch(image)
        return is_moved

    def _settle_chain(self, chain: Sequence[Edit], now: str | None) -> None:
        """Applies the edits of one keypoint; `now` is the id of the animal, None if the file does not have it."""
        first, after = chain[0], chain[-1].after
        edit = dataclasses.replace(first, animal=first.animal if now is None else now, after=after)
        theirs = self._theirs(edit.image, edit.slot)
        has_place = now is not None and not self._file(edit.image).obstacle(edit.image, edit.slot, as_point(after))
        is_free = has_place and any(theirs in (one.before, one.after) for one in chain)
        if edit.keypoint == TRACK and not is_free:
            # The page shows the track that another program gave the animal.
            return
        if not is_free:
            self._keep(self._conflicts, edit)
        elif theirs != after:
            self._keep(self._pending, self._edit_of(edit.image, edit.slot, after))

    def _animal_now(self, edits: Sequence[Edit], ids: Iterable[tuple[str, str]]) -> str | None:
        """Returns the id that the animal of some edits has now in its image, None if the label file lacks it.

        An animal that was new gets another id if its own one has been given away; `ids` are those of other such ones.
        """
        image, animal, of_file = edits[0].image, edits[0].animal, self._file(edits[0].image)
        if isinstance(of_file, LabelFile):
            return animal
        found = of_file.find_animal(image, animal, known_places_px(edits), is_new := edits[0].was is None)
        if not is_new or found and not of_file.obstacle(image, (found, edits[0].keypoint), None):
            return found or None
        self._animals(image)
        places = {one: list(animals) for one, animals in self._places.items()}
        for one, other in ids:
            places.setdefault(one, []).append(other)
        return of_file.new_animal(image, places)

    def _keep(self, edits: dict[_Key, Edit], edit: Edit) -> None:
        """Keeps an edit; its animal has a place in the image."""
        edits[edit.key] = edit
        give_place(self._animals(edit.image), edit.animal)

    # Edits in memory; the lock is held.

    def _recover(self) -> int:
        """Applies the edits that a killed session left, and returns their number."""
        edits = self._journal.read()
        for edit in edits:
            image, slot = edit.image, edit.slot
            if self.project.is_one_file and not self._file(image).obstacle(image, slot, None):
                self._know(image)
            if image not in self._ids or slot[1] not in (*self.project.keypoint_names, TRACK):
                raise UserError(
                    f"{self._journal.file} has a label of {slot[1]} in {image}, which the project no longer has: put "
                    "the image back, or copy the file and remove it"
                )
        # The killed session may have written any of its points to the label file.
        self._settle(edits)
        self.flush()
        return len({edit.key for edit in edits})

    def _edit(self, image: str, slot: Slot, value: Point | str | None) -> Edit:
        of_file = self._file(image)
        if slot[1] == TRACK and not isinstance(of_file, SleapFile):
            raise UserError(f"the animals of {of_file.file} have no tracks: only those of SLEAP files have some")
        if obstacle := of_file.obstacle(image, slot, as_point(value)):
            raise UserError(obstacle)
        return self._edit_of(image, slot, value)

    def _edit_of(self, image: str, slot: Slot, value: Point | str | None) -> Edit:
        """Returns the edit that gives the label file a point, or an animal a track."""
        of_file, was = self._file(image), dict[str, Point]()
        if not isinstance(of_file, LabelFile):
            known = of_file.points.get(image, {})
            was = {name: point for (animal, name), point in known.items() if animal == slot[0] and point}
            if slot[0] not in of_file.animals(image):
                return Edit(image, *slot, "" if slot[1] == TRACK else None, value, None)
        return Edit(image, *slot, self._theirs(image, slot), value, was)

    def _theirs(self, image: str, slot: Slot) -> Point | str | None:
        """Returns the point in the label file, or the track."""
        if slot[1] == TRACK:
            return self._file(image).animals(image).get(slot[0], "")
        return self._file(image).points.get(image, {}).get(slot)

    def _apply(self, edit: Edit) -> None:
        now = time.monotonic()
        self._first_edit_s = self._first_edit_s if self._pending else now
        self._last_edit_s = now
        self._keep(self._pending, edit)
        self._touch(edit.image)

    def _base(self, file: Path) -> AnyLabelFile:
        """Returns the content of a label file, without edits."""
        if file not in self._files:
            self._states.take(file)
            self._files[file] = self.project.read(file)
        return self._files[file]

    def _file(self, image: str) -> AnyLabelFile:
        return self._base(self.project.file_of(image))

    def _points(self, image: str) -> Points:
        points = dict(self._file(image).points.get(image, {}))
        if self._pending and image in self._places:
            animals = [animal for animal in self._places[image] if animal is not None]
            keys = ((image, animal, name) for animal in animals for name in self.project.keypoint_names)
            edits = map(self._pending.get, keys)
            points |= {edit.slot: as_point(edit.after) for edit in edits if edit}
        return {slot: point for slot, point in points.items() if point}

    def _names(self, image: str) -> dict[str, str]:
        """Returns {animal: its name} of an image, with the edits."""
        names = self._file(image).animals(image)
        if self._pending and self.project.kind == SLEAP:
            for animal in filter(None, self._places.get(image, ())):
                if (edit := self._pending.get((image, animal, TRACK))) and isinstance(edit.after, str):
                    names = {**names, animal: edit.after}
        return names

    def _animals(self, image: str) -> list[str | None]:
        """Returns the animals of an image, each in the place that it keeps for the session; None for one to come."""
        places = self._places.setdefault(image, [])
        for animal in self.project.individuals or self._file(image).animals(image):
            give_place(places, animal)
        if not places:
            places.append(None)
        return places

    def _slot(self, image: str, place: int) -> Slot:
        """Returns the slot of a place in the points of an image; a new animal gets an id."""
        number, keypoint = divmod(place, len(self.project.keypoint_names))
        places = self._animals(image)
        places += [None] * (number + 1 - len(places))
        if (animal := places[number]) is None:
            of_file = self._file(image)
            assert not isinstance(of_file, LabelFile)  # All individuals have places.
            animal = places[number] = of_file.new_animal(image, self._places)
        return animal, self.project.keypoint_names[keypoint]

    def _poses(self, image: str) -> list[list[Point | None]]:
        points, names = self._points(image), self.project.keypoint_names
        return [[points.get((animal or "", name)) for name in names] for animal in self._animals(image)]

    def _named_poses(self, image: str) -> tuple[list[list[Point | None]], list[str]]:
        names = self._names(image)
        return self._poses(image), [names.get(animal or "", "") for animal in self._animals(image)]

    def _labelled(self, image: str) -> set[str]:
        """Returns the animals with a point in an image."""
        return {animal for animal, _ in self._points(image)}

    def _find_several(self) -> bool:
        """Returns whether an image has labels of several animals, or half of the predicted images several animals."""
        if len(self.project.individuals) > 1:
            return True
        images = (points for file in self._files.values() for points in file.points.values())
        is_labelled = any(len({animal for (animal, _), point in points.items() if point}) > 1 for points in images)
        return is_labelled or bool(self.predictions and self.predictions.has_several)

    def _know(self, image: str) -> None:
        if image not in self._ids:
            self.refuse_second(image)
            self._ids[image] = len(self.images)
            self.images.append(image)
            self._join_moment(image)

    def _join_moment(self, image: str) -> None:
        views = self.project.views
        numbers = self._moments.setdefault(self.project.moment_of(image), [-1] * max(1, len(views)))
        numbers[views.index(self.project.view_of(image)) if views else 0] = self._ids[image]

    def _count(self, image: str) -> int:
        return -1 if image in self._file(image).problems else len(self._points(image))

    def _touch(self, image: str) -> None:
        self._version += 1
        self._changed_at[self._ids[image]] = self._version
