"""Converts the labels of a project into the label files of other tools, with their images."""

import dataclasses
import datetime
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from jaxpose.codes import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.config import DataConfig
from jaxpose.conversion.places import refuse_absent_project, refuse_out
from jaxpose.data.checked_table import CheckedTable, check_table
from jaxpose.data.image_file import decode_image
from jaxpose.data.label_changes import changing_labels, write_all
from jaxpose.data.label_table import LabelTable
from jaxpose.data.project import LISTED_PROBLEMS
from jaxpose.errors import UserError
from jaxpose.extras import need
from jaxpose.files import read_bytes, write_atomic
from jaxpose.formats import coco_writer, sleap_labels
from jaxpose.formats.deeplabcut import label_file as deeplabcut
from jaxpose.formats.deeplabcut.h5_labels import IMAGES_FOLDER
from jaxpose.formats.lightning_pose import label_file as lightning_pose
from jaxpose.formats.nwb import NEEDS_START
from jaxpose.formats.project import read_label_table
from jaxpose.formats.written_labels import Holds, WrittenLabels
from jaxpose.quantities import count

CSV, DEEPLABCUT, COCO, SLP, NWB = "csv", "deeplabcut", "coco", "slp", "nwb"
SUFFIXES = {CSV: ".csv", COCO: ".json", SLP: ".slp", NWB: ".nwb"}
_EXTRAS = {DEEPLABCUT: "deeplabcut", SLP: "sleap", NWB: "nwb"}
_DEFAULT_SCORER = "jaxpose"
_HOLDS = {
    CSV: Holds(hidden=True, marks=True),
    DEEPLABCUT: Holds(),
    COCO: Holds(hidden=True, animal=True, edges=True),
    SLP: Holds(hidden=True, animal=True, edges=True, symmetries=True),
    NWB: Holds(animal=True, edges=True),
}
# What jaxpose does with a position that is marked as not visible, in each format that holds one.
_USE_OF_HIDDEN = {CSV: NOT_VISIBLE, COCO: VISIBLE, SLP: NOT_USED}
_USES = {
    VISIBLE: "trains them at their positions",
    NOT_VISIBLE: "trains the network to be unsure there",
    NOT_USED: "does not train them",
}


def convert_labels(
    data: DataConfig, form: str, out: Path, scorer: str = "", session_start: datetime.datetime | None = None
) -> list[str]:
    """Writes the labels of a project of one camera, and returns lines about what was written.

    Args:
      data: the project.
      form: csv, deeplabcut, coco, slp or nwb.
      out: the label file; for deeplabcut, the folder of a project.
      scorer: who labelled, "" for the one of the labels.
      session_start: for nwb, the time that the format asks for, with its time zone.

    Raises:
      UserError: the labels or an image cannot be used, a name cannot be kept, `out` lies in the project, or a file
        exists already; nothing is written then.
    """
    if form in SUFFIXES and not out.name.endswith(SUFFIXES[form]):
        raise UserError(f"--out is {out}; for {form} it must be a file whose name ends in {SUFFIXES[form]}")
    if form == NWB and session_start is None:
        raise UserError(NEEDS_START)
    refuse_absent_project(data.project)
    refuse_out(data.project, out)
    if form in _EXTRAS:
        need(_EXTRAS[form], str(out))
    table = read_label_table(data, with_hidden=True)
    checked = check_table(table, "", data)
    if checked.problems:
        lines = [f"{count(len(checked.problems), 'row')} of {table.file} cannot be used; fix them:"]
        raise UserError("\n".join([*lines, *checked.problems[:LISTED_PROBLEMS]]))
    rows = [row for row, _ in checked.images.values()]
    labels = _written(checked, rows, form, scorer)
    folder = out if form == DEEPLABCUT else out.parent
    sources = [table.paths[row] for row in rows]
    holds_images = out.name.endswith(sleap_labels.PACKAGE)
    copies = [] if holds_images else [folder / image for image in labels.images]
    folder.mkdir(parents=True, exist_ok=True)
    with changing_labels(folder):
        _refuse_existing([out] if form != DEEPLABCUT else deeplabcut.label_files(out, labels), sources, copies)
        for source, copy in zip(sources, copies, strict=bool(copies)):
            _copy(source, copy)
        _write(form, out, labels, copies or sources, session_start)
    written = f"{table.kind or table.file} -> {out}: {count(len(rows), 'labelled image')}"
    dropped = _dropped(checked, labels, form, holds_images)
    return [*table.notes, written, f"dropped: {'; '.join(dropped) or 'nothing'}", *_other_use(table, rows, form)]


def _write(
    form: str, out: Path, labels: WrittenLabels, images: list[Path], session_start: datetime.datetime | None
) -> None:
    if form == DEEPLABCUT:
        write_all(out, deeplabcut.label_contents(out, labels), {})
    elif form == COCO:
        coco_writer.write_labels(out, labels)
    elif form == SLP:
        sleap_labels.write_slp(out, labels, images)
    elif session_start:
        sleap_labels.write_nwb(out, labels, images, session_start)
    else:
        lightning_pose.write_labels(out, labels)


def _dropped(checked: CheckedTable, labels: WrittenLabels, form: str, holds_images: bool) -> list[str]:
    """Returns what the project has and the new files do not."""
    # A package holds the images of its labelled frames only.
    dropped = labels.dropped(dataclasses.replace(_HOLDS[form], empty=not holds_images))
    if crops := sum(bool(checked.crop_px(row, image)) for row, image in checked.images.values()):
        dropped.append(f"the place of {count(crops, 'cropped image')} in their frames")
    return [*dropped, *checked.table.unread]


def _other_use(table: LabelTable, rows: list[int], form: str) -> list[str]:
    """Returns a line if training on the new files uses positions marked as not visible in another way."""
    if form not in _USE_OF_HIDDEN:
        return []
    hidden = _is_hidden(table)[rows]
    used = table.visibility[rows][hidden]
    changed = used[used != _USE_OF_HIDDEN[form]]
    if not changed.size:
        return []
    return [
        f"note: {count(changed.size, 'keypoint')} marked as not visible: jaxpose {_USES[int(changed[0])]} in the "
        f"project, and {_USES[_USE_OF_HIDDEN[form]]} in the new file"
    ]


def _is_hidden(table: LabelTable) -> np.ndarray:
    """Returns whether each keypoint has a position and is marked as not visible: (n, k) bool."""
    points = table.keypoints_image_px
    hidden = (table.visibility == NOT_VISIBLE) & np.isfinite(points[..., 0])
    return hidden if table.hidden_image_px is None else hidden | np.isfinite(table.hidden_image_px[..., 0])


def _written(checked: CheckedTable, rows: list[int], form: str, scorer: str) -> WrittenLabels:
    table = checked.table
    images = [_name(table, row, form) for row in rows]
    for image in images:
        if images.count(image) > 1:
            first, second, *_ = (table.images[row] for row, name in zip(rows, images, strict=True) if name == image)
            raise UserError(f"{first} and {second} would both be {image}; rename one of them")
    scorer = scorer or table.scorer or _DEFAULT_SCORER
    if form == DEEPLABCUT and ("/" in scorer or "\\" in scorer):
        raise UserError(f"{scorer!r} labelled, but this cannot be a part of a file's name; give --scorer NAME")
    points, hidden = table.keypoints_image_px, _is_hidden(table)
    if table.hidden_image_px is not None:
        points = np.where(hidden[..., None], table.hidden_image_px, points)
    return WrittenLabels(
        scorer=scorer,
        keypoint_names=table.keypoint_names,
        images=tuple(images),
        videos=tuple(table.videos[row] for row in rows),
        sizes_px=tuple(image.size_px for _, image in checked.images.values()),
        keypoints_image_px=points[rows],
        visibility=np.where(hidden, np.int8(NOT_VISIBLE), table.visibility)[rows],
        skeleton=table.skeleton,
    )


def _name(table: LabelTable, row: int, form: str) -> str:
    """Returns the path of an image from the folder of the new label file."""
    image, path = PurePosixPath(table.images[row]), table.paths[row]
    if path.parts[-len(image.parts) :] != image.parts:
        # A frame of a video, kept in the cache folder.
        return f"{IMAGES_FOLDER}/{table.videos[row]}/{image.stem}.png"
    if form == DEEPLABCUT and (len(image.parts) != 3 or image.parts[0] != IMAGES_FOLDER):
        return f"{IMAGES_FOLDER}/{table.videos[row] or 'images'}/{image.name}"
    return image.as_posix()


def _refuse_existing(files: list[Path], sources: list[Path], copies: list[Path]) -> None:
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists already; remove it, or choose another --out")
    for source, copy in zip(sources, copies, strict=bool(copies)):
        if copy.exists() and read_bytes(copy, most_bytes=None) != _content(source, copy.suffix):
            raise UserError(f"{copy} exists already and is another image than {source}; choose another --out")


def _copy(source: Path, copy: Path) -> None:
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, _content(source, copy.suffix))


def _content(source: Path, suffix: str) -> bytes:
    """Returns the bytes of an image, or those of the same pixels in another format."""
    data = read_bytes(source, most_bytes=None)
    if source.suffix == suffix:
        return data
    return cv2.imencode(suffix, cv2.cvtColor(decode_image(data), cv2.COLOR_RGB2BGR))[1].tobytes()
