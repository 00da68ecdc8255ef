"""Converts a project's labels into other tools' label files, with their images."""

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from jaxpose.config import DataConfig, project_folder
from jaxpose.data.checked_table import CheckedTable, check_table
from jaxpose.data.image_file import PixelRule, choose_white, decode_image, describe_white
from jaxpose.data.label_changes import changing_labels
from jaxpose.data.label_files import refuse_absent_project
from jaxpose.data.label_table import LabelTable, hidden_px, is_hidden
from jaxpose.data.project import refusal
from jaxpose.errors import UserError, need
from jaxpose.files import read_bytes, write_atomic
from jaxpose.formats import coco, sleap_files
from jaxpose.formats.deeplabcut import tables as deeplabcut
from jaxpose.formats.deeplabcut.project import is_project
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER
from jaxpose.formats.lightning_pose import tables as lightning_pose
from jaxpose.formats.nwb import NEEDS_START
from jaxpose.formats.project import read_label_table
from jaxpose.outputs import already_exist, output_folder
from jaxpose.poses import NOT_USED, NOT_VISIBLE, VISIBLE
from jaxpose.terminal import count, tally

# Checks where converted labels may be written.


def refuse_out(project: str, out: Path) -> None:
    """Checks that new label files do not change a project.

    Raises:
      UserError: `out` lies in the project folder, or a DeepLabCut project would get a label file that replaces its own
        labels when read.
    """
    path, folder = Path(project).expanduser(), project_folder(project).resolve()
    is_folder = path.is_dir() or path.suffix.lower() in (".yaml", ".yml")
    if is_folder and out.resolve().is_relative_to(folder):
        raise UserError(f"--out is {out}, in the project {folder} itself; choose a place outside of it")
    if out.name == DataConfig().labels and is_project(out.parent):
        raise UserError(
            f"--out is {out}, but {out.parent} is a DeepLabCut project, whose own labels would no longer be read; "
            "choose another place"
        )


# The output of a conversion of labels or predictions.


@dataclasses.dataclass(frozen=True)
class Target:
    """The output of a conversion.

    Attributes:
      form: a format of `label_files` or `prediction_tables`.
      out: a file with the form's suffix; for tables, or DeepLabCut labels, a folder.
      scorer: the labeller, or the network name in a DeepLabCut table; "" keeps the source's.
      session_start: for NWB, the time of the first frame, with time zone.
      overwrite: replaces files with other content.
    """

    form: str
    out: Path
    scorer: str = ""
    session_start: datetime.datetime | None = None
    overwrite: bool = False


CSV, DEEPLABCUT, COCO, SLP, NWB = "csv", "deeplabcut", "coco", "slp", "nwb"
SUFFIXES = {CSV: ".csv", COCO: ".json", SLP: ".slp", NWB: ".nwb"}
_EXTRAS = {DEEPLABCUT: "deeplabcut", SLP: "sleap", NWB: "nwb"}
_DEFAULT_SCORER = "jaxpose"

# Additional content that formats can store: positions and marks of keypoints that are not visible, the animal and its
# skeleton, and images without positions.
_HIDDEN, _MARKS, _ANIMAL, _EDGES, _SYMMETRIES, _EMPTY = range(6)
_HOLDS = {
    CSV: {_HIDDEN, _MARKS, _EMPTY},
    DEEPLABCUT: {_EMPTY},
    COCO: {_HIDDEN, _ANIMAL, _EDGES, _EMPTY},
    SLP: {_HIDDEN, _ANIMAL, _EDGES, _SYMMETRIES, _EMPTY},
    NWB: {_ANIMAL, _EDGES, _EMPTY},
}
# How jaxpose treats a position marked as not visible, in each format that can store it.
_USE_OF_HIDDEN = {CSV: NOT_VISIBLE, COCO: VISIBLE, SLP: NOT_USED}
_USES = {
    VISIBLE: "trains them at their positions",
    NOT_VISIBLE: "trains the network to be unsure there",
    NOT_USED: "does not train them",
}


def convert_labels(data: DataConfig, target: Target) -> list[str]:
    """Writes the labels of a one-camera project; returns lines about the written files.

    Args:
      data: the project.
      target: the output.

    Raises:
      UserError: the labels or an image cannot be used, a name cannot be kept, `out` lies in the project, or a file
        already exists with other content; then writes no label file.
    """
    form, out = target.form, target.out
    if form in SUFFIXES and not out.name.endswith(SUFFIXES[form]):
        raise UserError(f"--out is {out}; for {form} it must be a file whose name ends in {SUFFIXES[form]}")
    if form == NWB and target.session_start is None:
        raise UserError(NEEDS_START)
    refuse_absent_project(data.project)
    refuse_out(data.project, out)
    if form in _EXTRAS:
        need(_EXTRAS[form], str(out))
    table = read_label_table(data, with_hidden=True)
    checked = check_table(table, "", data)
    if not checked.images or (checked.problems and data.on_bad_frame == "stop"):
        raise UserError(refusal([table.file], checked.problems, len(checked.images)))
    rows = [row for row, _ in checked.images.values()]
    table = table.at(rows)
    rule = PixelRule(checked.orientation, data.white or choose_white(checked.ranges()))
    folder = out if form == DEEPLABCUT else out.parent
    holds_images = out.name.endswith(sleap_files.PACKAGE)
    sizes_px = [image.size_px for _, image in checked.images.values()]
    labels = _written(table, sizes_px, form, target.scorer)
    copies = [] if holds_images else [folder / image for image in labels.poses.frames]
    labels = dataclasses.replace(labels, paths=tuple(copies) or table.paths)
    folder.mkdir(parents=True, exist_ok=True)
    with changing_labels(folder), output_folder(folder, target.overwrite) as new:
        if not target.overwrite:
            files = [out] if form != DEEPLABCUT else deeplabcut.label_files(out, labels)
            _refuse_existing(files, table.paths, copies, rule)
        for source, copy in zip(table.paths, copies, strict=bool(copies)):
            _copy(source, copy, rule)
        _write_files(new, labels, target)
    written = f"{table.kind or table.file} -> {out}: {count(len(rows), 'labelled image')}"
    dropped = _dropped(checked, labels, form, holds_images)
    notes = [
        *map("left out: {}".format, checked.problems),
        *table.notes,
        *checked.notes,
        *filter(None, [describe_white(checked.ranges(), rule.white)[0]]),
    ]
    return [*notes, written, f"dropped: {'; '.join(dropped) or 'nothing'}", *_other_use(table, form)]


def _write_files(folder: Path, labels: LabelTable, target: Target) -> None:
    """Writes a target's label files into another folder."""
    file = folder / target.out.name
    if target.form == DEEPLABCUT:
        deeplabcut.write_labels(folder, labels)
    elif target.form == COCO:
        coco.write_labels(file, labels)
    elif target.form == SLP:
        sleap_files.write_labels_slp(file, labels)
    elif target.session_start:
        sleap_files.write_nwb(file, labels, target.session_start)
    else:
        lightning_pose.write_labels(file, labels)


def _dropped(checked: CheckedTable, labels: LabelTable, form: str, holds_images: bool) -> list[str]:
    """Returns the project's content that the new files lack."""
    # A package holds only the images of labelled frames.
    holds, skeleton = _HOLDS[form] - ({_EMPTY} if holds_images else set()), labels.poses.skeleton
    hidden, placed, marks = is_hidden(labels.poses), np.isfinite(labels.keypoints_image_px[..., 0]), labels.visibility
    numbers = {
        "position* of keypoints that are not visible": hidden.sum() * (_HIDDEN not in holds),
        "mark* of keypoints as not visible": ((marks == NOT_VISIBLE) & ~placed).sum() * (_MARKS not in holds),
        "position* of keypoints that are not used": ((marks == NOT_USED) & placed).sum() * (_MARKS not in holds),
        "image* without a position": (~((marks == VISIBLE) | hidden).any(axis=1)).sum() * (_EMPTY not in holds),
        "edge* of the skeleton": len(skeleton.edges) * (_EDGES not in holds),
        "symmetric pair* of the skeleton": len(skeleton.symmetries) * (_SYMMETRIES not in holds),
    }
    dropped = tally({noun: int(number) for noun, number in numbers.items()})
    if skeleton.animal and _ANIMAL not in holds:
        dropped.append(f"the animal's name {skeleton.animal}")
    if crops := sum(bool(checked.crop_px(row, image)) for row, image in checked.images.values()):
        dropped.append(f"the place of {count(crops, 'cropped image')} in their frames")
    return [*dropped, *checked.table.unread]


def _other_use(table: LabelTable, form: str) -> list[str]:
    """Returns a line if training would treat positions marked as not visible differently."""
    if form not in _USE_OF_HIDDEN:
        return []
    used = table.visibility[is_hidden(table.poses)]
    changed = used[used != _USE_OF_HIDDEN[form]]
    if not changed.size:
        return []
    return [
        f"note: {count(changed.size, 'keypoint')} marked as not visible: jaxpose {_USES[int(changed[0])]} in the "
        f"project, and {_USES[_USE_OF_HIDDEN[form]]} in the new file"
    ]


def _written(table: LabelTable, sizes_px: list[tuple[int, int]], form: str, scorer: str) -> LabelTable:
    """Returns the table with the new file's names, marks and sizes; its points have all positions."""
    images, poses = [_name(table, row, form) for row in range(len(table.paths))], table.poses
    for image in images:
        if images.count(image) > 1:
            first, second, *_ = (old for old, new in zip(poses.frames, images, strict=True) if new == image)
            raise UserError(f"{first} and {second} would both be {image}; rename one of them")
    scorer = scorer or table.scorer or _DEFAULT_SCORER
    if form == DEEPLABCUT and ("/" in scorer or "\\" in scorer):
        raise UserError(f"the scorer is {scorer!r}, which cannot be part of a file name; give --scorer NAME")
    hidden = hidden_px(poses)[:, None]
    poses = dataclasses.replace(
        poses,
        frames=tuple(images),
        points_px=np.where(np.isnan(hidden), poses.points_px, hidden),
        visibility=np.where(is_hidden(poses), np.int8(NOT_VISIBLE), table.visibility)[:, None],
        columns={},
    )
    return dataclasses.replace(table, poses=poses, scorer=scorer, sizes_px=dict(zip(images, sizes_px, strict=True)))


def _name(table: LabelTable, row: int, form: str) -> str:
    """Returns an image's path relative to the new label file's folder."""
    image, path = PurePosixPath(table.poses.frames[row]), table.paths[row]
    if path.parts[-len(image.parts) :] != image.parts:
        # A video frame in the cache folder.
        return f"{IMAGES_FOLDER}/{table.videos[row]}/{image.stem}.png"
    if form == DEEPLABCUT and (len(image.parts) != 3 or image.parts[0] != IMAGES_FOLDER):
        return f"{IMAGES_FOLDER}/{table.videos[row] or 'images'}/{image.name}"
    return image.as_posix()


def _refuse_existing(files: list[Path], sources: Sequence[Path], copies: list[Path], rule: PixelRule) -> None:
    """Refuses files that an interrupted run of this command cannot have left: it copies the images first."""
    existing = [file for file in files if file.exists()]
    if existing and not all(copy.exists() for copy in copies):
        raise already_exist(existing)
    for source, copy in zip(sources, copies, strict=bool(copies)):
        if copy.exists() and read_bytes(copy, most_bytes=None) != _content(source, copy.suffix, rule):
            raise UserError(
                f"{copy} already exists and differs from {source}: --overwrite replaces it; or choose another --out"
            )


def _copy(source: Path, copy: Path, rule: PixelRule) -> None:
    content = _content(source, copy.suffix, rule)
    if not copy.exists() or read_bytes(copy, most_bytes=None) != content:
        copy.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(copy, content)


def _content(source: Path, suffix: str, rule: PixelRule) -> bytes:
    """Returns the bytes of an image, or of the same pixels in another format."""
    data = read_bytes(source, most_bytes=None)
    if source.suffix == suffix:
        return data
    return cv2.imencode(suffix, cv2.cvtColor(decode_image(data, rule), cv2.COLOR_RGB2BGR))[1].tobytes()
