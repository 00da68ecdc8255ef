"""Opens the images of a label table and records the size and checksum of each, or why it cannot be used."""

import contextlib
import dataclasses
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose import cache
from jaxpose.config import DataConfig
from jaxpose.data.animals import image_of_row, number_animals, row_name
from jaxpose.data.boxes import BoxTable, box_file_of_labels, read_image_boxes
from jaxpose.data.image_file import (
    AUTO,
    DECODERS,
    NORMAL,
    UPRIGHT,
    ImageFacts,
    ValueRange,
    describe,
    image_facts,
    upright_size_px,
)
from jaxpose.data.label_files import moment_of_image
from jaxpose.data.label_table import EmptyImage, LabelTable
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes
from jaxpose.poses import VISIBLE
from jaxpose.terminal import count
from jaxpose.threads import map_in_threads
from jaxpose.video.recording import has_proportions

# Decides whether labels refer to upright or stored pixels where images have an EXIF orientation.
#
# Tools that run in a browser show images upright; many others show the stored pixels. The points do not reveal which,
# so the option `data.orientation` or the label file decides; jaxpose never guesses.


def decide_orientation(given: str, table: LabelTable, facts: Sequence[ImageFacts | None]) -> str:
    """Returns which pixels the labels of a table refer to: upright, stored, or auto (not needed, or unknown).

    A label file that gives the upright size of an image was made with upright images. The stored size proves nothing:
    several browser tools also write it.

    Args:
      given: `data.orientation`; any value except auto decides.
      table: n rows.
      facts: of the n images, None for unusable ones.
    """
    if given != AUTO:
        return given
    sizes_px = {
        (seen, one.stored_px, upright_size_px(one.stored_px, one.orientation))
        for row, one in enumerate(facts)
        if one and one.orientation != NORMAL and (seen := _seen_px(table, row))
    }
    is_upright = any(seen == upright != stored for seen, stored, upright in sizes_px)
    is_stored = any(seen == stored != upright for seen, stored, upright in sizes_px)
    return UPRIGHT if is_upright and not is_stored else AUTO


def refuse_undecided(table: LabelTable, row: int, facts: ImageFacts, decided: str) -> None:
    """Raises UserError if it is unknown which pixels of an oriented image the labels refer to."""
    if facts.orientation == NORMAL or decided != AUTO:
        return
    image = table.poses.frames[row]
    (width, height), (across, down) = facts.stored_px, upright_size_px(facts.stored_px, facts.orientation)
    raise UserError(
        f"{image} has {describe(facts.orientation)}; are its labels in pixels of the upright "
        f"image ({across} x {down}) or of the stored one ({width} x {height})? Give data.orientation=upright if the "
        "label tool showed it upright, as browsers do, or data.orientation=stored"
    )


def describe_orientation(given: str, decided: str, facts: Sequence[ImageFacts]) -> str:
    """Returns a sentence for the user, "" if no image has an orientation; arguments: see the functions above."""
    turned = sum(one.orientation != NORMAL for one in facts)
    if not turned or decided == AUTO:
        return ""
    why = "because the label file gives their upright size" if given == AUTO else f"by data.orientation={given}"
    return f"{count(turned, 'image')} with an EXIF orientation: labels and results are in {decided} pixels, {why}"


def _seen_px(table: LabelTable, row: int) -> tuple[int, int] | None:
    name = table.poses.frames[row]
    return table.sizes_px.get(name) or table.shown_sizes_px.get(name)


# Refuses links that lead out of a folder: someone else may have created them, and their target is not part of the
# folder.
#
# Links to folders are followed: labeled-data, or a folder in it, may be on another disk. A file that is a link must
# lead to a file in the project, in such a folder, or in the store of the git annex that holds the project.

_ANNEX = Path(".git", "annex", "objects")


def refuse_link_out_of_project(file: Path, name: str) -> None:
    """Checks that a project's file lies in the project.

    Args:
      file: the path; its folders may be links.
      name: of the file, relative to the project if inside it.

    Raises:
      UserError: the file itself is a link to somewhere else.
    """
    if not file.is_symlink():
        return
    depth = len(Path(name).parts) if str(file).endswith(name) else 1
    # Each folder between the project and the file may itself be a link.
    _refuse_outside(file, name, file.parents[depth - 1], list(file.parents[:depth]))


def refuse_link_out(file: Path, name: str, folder: Path) -> None:
    """Checks that a file lies in a folder, even if folders on the way are links.

    Raises:
      UserError: it lies elsewhere.
    """
    _refuse_outside(file, name, folder, [folder])


def _refuse_outside(file: Path, name: str, folder: Path, allowed: list[Path]) -> None:
    target = Path(os.path.realpath(file))
    real = Path(os.path.realpath(folder))
    roots = [Path(os.path.realpath(place)) for place in allowed]
    roots += [place / _ANNEX for place in (real, *real.parents) if (place / _ANNEX).is_dir()]
    if not any(target.is_relative_to(root) for root in roots):
        raise UserError(f"{name} is a link to {target}, outside of {folder}; copy the file itself to {folder}")


# Checks that a labelled image lies in the project, is intact and contains its keypoints.
#
# The cache folder keeps the checksums and facts of intact images, so they are not decoded again.

# Joins the image size and the points outside, in the reason why a row is refused.
OUTSIDE_OF_IT = " pixels; outside of it: "
_MARGIN_PX = 0.5
# For the message about a missing image: how many levels above the label file's folder are searched.
_ABOVE = 2


@dataclasses.dataclass(frozen=True)
class LabelledImage:
    """An intact image.

    Attributes:
      size_px: (width, height) of the labels' pixels.
      facts: about the file.
      byte_count: the file size.
      checksum: its SHA-256, hexadecimal.
      pixel_checksum: SHA-256 of the pixels that the labels refer to: equal for equal pictures.
      box_px: (x, y, width, height) of the part that the network sees, () without boxes.
    """

    size_px: tuple[int, int]
    facts: ImageFacts
    byte_count: int
    checksum: str
    pixel_checksum: str
    box_px: tuple[int, ...] = ()


def check_image(path: Path, name: str, known: dict[str, ImageFacts]) -> LabelledImage:
    """Returns an image in stored pixels and adds its facts to `known`; images already there are not decoded.

    Args:
      path: the file.
      name: of the image in its table; a path relative to the project if inside it.
      known: facts of intact images by checksum.

    Raises:
      UserError: the name or a link leads out of the project, or the file is unreadable or damaged.
    """
    refuse_name_outside(name)
    try:
        content = read_bytes(path, most_bytes=None)
    except (FileNotFoundError, NotADirectoryError):
        folder = str(path).removesuffix(name)
        is_below = folder != str(path)
        reason = f"{name} does not exist in {folder.rstrip('/')}" if is_below else f"{path} does not exist"
        for above in Path(folder).parents[:_ABOVE] if is_below else ():
            if (above / name).is_file():
                raise UserError(
                    f"{reason}, but in {above}: move the label file there; one in CSV can also stay, with "
                    f"data.project={above} and its name in data.labels"
                ) from None
        raise UserError(f"{reason}: put it there, or remove its labels") from None
    except (OSError, NotRegularFile) as error:
        raise UserError(f"{name} cannot be read: {error.strerror}") from None
    refuse_link_out_of_project(path, name)
    checksum = hashlib.sha256(content).hexdigest()
    try:
        facts = known.get(checksum) or image_facts(content)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    known[checksum] = facts
    return LabelledImage(facts.stored_px, facts, len(content), checksum, facts.stored_checksum)


def refuse_name_outside(name: str) -> None:
    """Raises UserError if the name of an image, which must be relative to its project, leads out of it."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in parts:
        place = "/".join(
            ["labeled-data", *[part for part in parts if part not in ("/", "..") and part[1:] != ":"][-2:]]
        )
        raise UserError(
            f"{name} lies outside of the project folder, and the project has no such image: put it at {place} in the "
            "project"
        )


def check_places(table: LabelTable, row: int, size_px: tuple[int, int], crop_px: tuple[int, ...]) -> None:
    """Raises UserError if the crop or a visible keypoint lies outside an image of (width, height) px."""
    name, (width, height) = table.poses.frames[row], size_px
    if crop_px and (crop_px[0] + crop_px[2] > width or crop_px[1] + crop_px[3] > height):
        raise UserError(f"{name} has {width} x {height} pixels; data.crop_px = {crop_px} reaches beyond it")
    keypoints = table.keypoints_image_px[row]
    if outside := find_outside(keypoints, table.visibility[row], size_px):
        places = [name_place(table.poses.keypoint_names[k], keypoints[k]) for k in outside]
        raise UserError(f"{name} has {width} x {height}{OUTSIDE_OF_IT}{', '.join(places)}")


def find_outside(keypoints_px: np.ndarray, visibility: np.ndarray, size_px: tuple[int, int]) -> list[int]:
    """Returns the indices of visible keypoints (k, 2) outside an image of (width, height) px."""
    # An image of width w covers [-0.5, w - 0.5]; a label on its edge may be rounded outwards.
    low, high = -0.5 - _MARGIN_PX, np.array(size_px) - 0.5 + _MARGIN_PX
    outside = (visibility == VISIBLE) & ((keypoints_px < low) | (keypoints_px > high)).any(axis=-1)
    return np.flatnonzero(outside).tolist()


def name_place(name: str, point_px: np.ndarray) -> str:
    """Returns a keypoint and its place (2,) as text for the reason of a refused row."""
    return f"{name} ({point_px[0]:g}, {point_px[1]:g})"


def known_images(label_file: Path) -> dict[str, ImageFacts]:
    """Returns {checksum: facts} of the images that were intact when the label file was last read."""
    noted = cache.read_note(_note_key(label_file))
    if not isinstance(noted, dict):
        return {}
    return {checksum: facts for checksum, value in noted.items() if (facts := _facts(value))}


def note_images(label_file: Path, noted: dict[str, ImageFacts], images: Iterable[LabelledImage]) -> None:
    """Keeps the checksums and facts of intact images for `known_images`, if any are new."""
    found = {image.checksum: image.facts for image in images}
    if not found.keys() <= noted.keys():
        # On failure, images are decoded again.
        with contextlib.suppress(OSError):
            cache.write_note(_note_key(label_file), found)


def _facts(value: Any) -> ImageFacts | None:
    """Returns the image facts in a note (the fields of `ImageFacts` in order), None for other content."""
    try:
        (width, height), stored, upright, orientation, values = value
        is_known = min(width, height) > 0 and orientation in range(1, 9) and type(stored) is type(upright) is str
        values = values and ValueRange(*values)
        return ImageFacts((width, height), stored, upright, orientation, values) if is_known else None
    except (TypeError, ValueError):
        return None


def _note_key(label_file: Path) -> str:
    return hashlib.sha256(repr(("intact images", DECODERS, str(label_file))).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class CheckedTable:
    """The rows of a view.

    Attributes:
      view: its name, "" with only one camera.
      table: the rows.
      images: {moment: (row, image)} of the usable rows; with several animals in an image, {row name: (row, image)}.
      problems: of the other rows.
      orientation: the labels' pixels, as in `PixelRule`.
      notes: sentences for the user about the images.
      animals: number of each row's animal in its image, from 1; () if a row is an image.
      without_animals: {image: (its entry in the table, image)} of the usable images without any, if there are several.
    """

    view: str
    table: LabelTable
    images: dict[str, tuple[int, LabelledImage]]
    problems: list[str]
    orientation: str
    notes: tuple[str, ...]
    animals: tuple[int, ...] = ()
    without_animals: dict[str, tuple[EmptyImage, LabelledImage]] = dataclasses.field(default_factory=dict)

    def ranges(self) -> list[ValueRange]:
        """Returns the values of the usable images of more than 8 bits."""
        return [image.facts.values for _, image in self.images.values() if image.facts.values]

    def crop_px(self, row: int, image: LabelledImage) -> tuple[int, ...]:
        """Returns the crop (x, y, width, height) of the frame that an image shows, () for a whole frame."""
        crop_px = tuple(self.table.crops_px.get(self.table.videos[row], ()))
        return crop_px if crop_px[2:] == image.size_px else ()

    def size_notes(self, has_crops: bool) -> list[str]:
        """Returns a sentence for each video whose images differ in size from its frames.

        Args:
          has_crops: whether any image of the project is a crop; otherwise no video is cropped.
        """
        notes = []
        if has_crops and "*" in self.table.crops_px:
            x, y, width, height = self.table.crops_px["*"]
            notes.append(f"videos without labels are predicted in the crop of {width} x {height} px at ({x}, {y})")
        by_video: dict[str, list[tuple[int, LabelledImage]]] = {}
        for row, image in self.images.values():
            by_video.setdefault(self.table.videos[row], []).append((row, image))
        for video, of_video in by_video.items():
            crops = [crop for row, image in of_video if (crop := self.crop_px(row, image))]
            frame_px = self.table.frame_sizes_px.get(video)
            resized = [image for row, image in of_video if not self.crop_px(row, image) and image.size_px != frame_px]
            if crops:
                x, y, width, height = crops[0]
                notes.append(
                    f"{video}: {count(len(crops), 'image')} show the crop of {width} x {height} px at ({x}, {y}) of "
                    "their frames; results are in pixels of whole frames"
                    + "; the others are whole, and the video is predicted in the crop"
                    * (len(crops) < len(of_video))
                )
            if frame_px and resized:
                notes.append(describe_resized(video, len(resized), frame_px))
        return notes


def describe_resized(video: str, images: int, frame_px: tuple[int, int]) -> str:
    """Returns a sentence about images of a video that differ from the size (width, height) of its frames."""
    return (
        f"{video}: {count(images, 'image')} have another size than the frames of the video "
        f"({frame_px[0]} x {frame_px[1]} px), in the same proportions; they count as whole frames"
    )


def check_table(table: LabelTable, view: str, data: DataConfig) -> CheckedTable:
    """Opens every image of a table; images found intact before are not decoded again.

    Args:
      table: the rows of a view.
      view: its name, "" with only one camera.
      data: has the crop or the boxes, and the number of threads.

    Raises:
      UserError: the box file cannot be read, or an image has more animals than `data.animals`.
    """
    table, animals = _animals_of(table, data)
    boxes = read_image_boxes(box_file_of_labels(data, table.file.name, view)) if data.boxes else None
    noted = known_images(table.file)
    known = dict(noted)
    opened = _open_images(table, bool(animals), data.threads, known)
    facts = [None if isinstance(image, str) else image.facts for image in opened]
    orientation = decide_orientation(data.orientation, table, facts)

    def check(row: int, image: LabelledImage) -> tuple[str, LabelledImage] | str:
        try:
            moment = moment_of_image(table.poses.frames[row], view)
            moment = row_name(moment, animals[row]) if animals else moment
            refuse_undecided(table, row, image.facts, orientation)
            image = dataclasses.replace(
                image,
                size_px=image.facts.size_px(orientation),
                pixel_checksum=image.facts.pixel_checksum(orientation),
            )
            refuse_resized(table, row, image.facts, orientation)
            _refuse_unknown_part(table, row, image.size_px)
            check_places(table, row, image.size_px, data.crop_px)
            if boxes:
                image = dataclasses.replace(image, box_px=_box(*boxes, table.poses.frames[row], image.size_px))
        except UserError as error:
            return f"{table.sources[row]}: {error}"
        return moment, image

    images, problems, first_of = {}, list(table.problems), dict[str, int]()
    entries = table.entries or range(len(opened))
    for row, image in enumerate(opened):
        checked = image if isinstance(image, str) else check(row, image)
        if isinstance(checked, str):
            problems += [checked] * bool(checked)
        else:
            moment, image = checked
            first = first_of.setdefault(image_of_row(moment) if animals else moment, row)
            if entries[first] != entries[row]:
                name = table.poses.frames[row]
                problems.append(f"{table.sources[row]}: {name} is already labelled in {table.sources[first]}")
            else:
                images[moment] = row, image
    listed = [empty for empty in table.without_animals if empty.is_marked or data.unlabelled_animals == "background"]
    empty = _open_empty(listed, orientation, known, images) if animals else {}
    note_images(table.file, noted, (image for _, image in (*images.values(), *empty.values())))
    used = [image.facts for _, image in images.values()]
    notes = tuple(filter(None, [describe_orientation(data.orientation, orientation, used)]))
    return CheckedTable(view, table, images, problems, orientation, notes, animals, empty)


def _open_empty(
    listed: Sequence[EmptyImage], orientation: str, known: dict[str, ImageFacts], labelled: Iterable[str]
) -> dict[str, tuple[EmptyImage, LabelledImage]]:
    """Returns the images without animals that can be used; others, such as missing ones, are left out."""
    found, seen = {}, {*map(image_of_row, labelled)}
    for empty in listed:
        with contextlib.suppress(UserError):
            image = check_image(empty.path, empty.name, known)
            size_px = image.facts.size_px(orientation)
            image = dataclasses.replace(image, size_px=size_px, pixel_checksum=image.facts.pixel_checksum(orientation))
            if empty.name not in seen and (image.facts.orientation == NORMAL or orientation != AUTO):
                found[empty.name] = empty, image
    return found


def _open_images(
    table: LabelTable, is_several: bool, threads: int, known: dict[str, ImageFacts]
) -> list[LabelledImage | str]:
    """Returns the image of each row, or the problem: "" for all but the first of several animals in an image."""

    def open_image(row: int) -> LabelledImage | str:
        try:
            return check_image(table.paths[row], table.poses.frames[row], known)
        except UserError as error:
            return f"{table.sources[row]}: {error}"

    rows = range(len(table.poses.frames))
    if not is_several:
        return list(map_in_threads(open_image, rows, threads, "checking images"))
    first = {path: row for row, path in reversed(list(enumerate(table.paths)))}
    files = list(first.values())
    opened = dict(zip(files, map_in_threads(open_image, files, threads, "checking images"), strict=True))
    of_rows = [(row, opened[first[path]]) for row, path in enumerate(table.paths)]
    return ["" if isinstance(image, str) and row not in opened else image for row, image in of_rows]


def _animals_of(table: LabelTable, data: DataConfig) -> tuple[LabelTable, tuple[int, ...]]:
    """Returns the table, and the numbers of its animals if images may have several; see `number_animals`."""
    if data.animals and table.most_animals > data.animals:
        most = f"{table.most_animals} labelled animals"
        raise UserError(
            f"data.animals is {data.animals}, but {table.file} has an image with {most}: leave data.animals out"
        )
    is_several = max(data.animals, table.most_animals) > 1
    if is_several and data.boxes:
        raise UserError(
            f"data.boxes is {data.boxes!r}, and {table.file} has several animals in an image, whose boxes are made "
            "from their labels: leave it out"
        )
    return number_animals(table) if is_several else (table, ())


def _box(boxes: BoxTable, rows: dict[str, int], image: str, size_px: tuple[int, int]) -> tuple[int, ...]:
    """Returns the box of an image of (width, height) px; raises UserError if it has none."""
    if image not in rows:
        raise UserError(f"{image} has no row in {boxes.file}")
    return boxes.inside(rows[image], size_px)


def refuse_resized(table: LabelTable, row: int, facts: ImageFacts, orientation: str) -> None:
    """Raises UserError if an image does not have the size that the label tool saw.

    Args:
      table, row: the image.
      facts: of the image; label files may give its upright or stored size.
      orientation: for the message.
    """
    name, size_px = table.poses.frames[row], facts.size_px(orientation)
    labelled_px = table.sizes_px.get(name, size_px)
    if labelled_px not in (facts.size_px(UPRIGHT), facts.stored_px):
        raise UserError(
            f"{name} has {size_px[0]} x {size_px[1]} pixels, but it was labelled with {labelled_px[0]} x "
            f"{labelled_px[1]}; put the original back, or scale the labels with it"
        )


def _refuse_unknown_part(table: LabelTable, row: int, size_px: tuple[int, int]) -> None:
    """Refuses images that are neither frames of the video (resized or not) nor its crop: what do they show?"""
    image, video = table.poses.frames[row], table.videos[row]
    crop_px, frame_px = table.crops_px.get(video), table.frame_sizes_px.get(video)
    (width, height), (frame_width, frame_height) = size_px, frame_px or size_px
    if has_proportions(size_px, (frame_width, frame_height)) or (crop_px and tuple(crop_px[2:]) == size_px):
        return
    crop = f", and their crop {crop_px[2]} x {crop_px[3]}" if crop_px else ""
    raise UserError(
        f"{image} has {width} x {height} pixels, but the frames of its video {video} have "
        f"{frame_width} x {frame_height}{crop}; correct the crop of the video (in DeepLabCut: config.yaml), or put the "
        "original image back"
    )


def sorted_problems(checked: CheckedTable) -> list[str]:
    """Returns the problems of a view's rows, in the order of the file."""
    return sorted(checked.problems, key=_place)


def _place(problem: str) -> tuple[str, int]:
    """Returns the file and the line of a problem, "FILE:LINE: reason"."""
    match = re.match(r"(.*?)(\d{1,9})(?: \([^()]*\))?: ", problem)
    return (match[1], int(match[2])) if match else (problem, 0)
