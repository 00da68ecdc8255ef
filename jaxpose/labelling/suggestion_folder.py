"""Writes and reads a folder of frames to label: images and label files in the project's format.

labeled-data/<video>/img<8-digit frame number>.png; for networks that see several frames, also the frames around each.
The label files have rows only for suggested frames; suggestions.csv gives the reasons.
"""

import csv
import dataclasses
import hashlib
import io
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.cells import path_cell, path_of_cell
from jaxpose.data.label_table import LabelTable
from jaxpose.data.labels import labels_checksum, read_labels
from jaxpose.errors import UserError
from jaxpose.files import was_cut_off, write_new
from jaxpose.formats import coco, sleap_files
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER
from jaxpose.formats.project import COCO, SLEAP
from jaxpose.labelling.project_labels import LabelLayout, ProjectLabels, h5_of_csv, image_of
from jaxpose.labelling.recordings import Choice, Recording
from jaxpose.outputs import has_same_files, write_folder
from jaxpose.poses import NOT_USED, VISIBLE, Poses
from jaxpose.progress import phase
from jaxpose.run.paths import CONFIG_FILE
from jaxpose.video.index import as_labelled, labelled_sizes_px
from jaxpose.video.video import Video, read_chunks, scan

# Label files of suggested frames in the project's format: CSV (and HDF5 next to it), SLEAP or COCO.

SLEAP_FILE, COCO_FILE = "suggestions.slp", "suggestions.json"


def write_label_files(
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    project: ProjectLabels,
    predicted: Poses | None,
    videos: Mapping[Path, Video],
    h5: bool,
) -> list[Path]:
    """Writes the label files of the chosen frames; returns those with checksums of labels.

    Args:
      out: the folder with the images.
      recordings: the videos.
      choices: the frames; written in video order.
      project: determines the form of the files.
      predicted: keypoints in the frames' images, in any order; None leaves the labels empty.
      videos: {path: video, oriented as shown} of the choices' recordings.
      h5: also writes each CSV file as HDF5.
    """
    choices = sorted(choices, key=lambda choice: (choice.recording, choice.frame))
    if project.layout:
        return _write_csv(out, recordings, choices, project.layout, predicted, h5)
    (table,) = project.tables[""]
    rows = [(recordings[choice.recording], choice.frame) for choice in choices]
    images = [image_of(recording.folders[""], frame) for recording, frame in rows]
    names, skeleton = table.poses.keypoint_names, table.poses.skeleton
    if predicted is None:
        empty = np.full((len(images), len(names), 2), np.nan)
        predicted = Poses.of_one_animal(names, images, empty, empty[..., 0], pixels="image")
    poses = predicted.at([predicted.frames.index(image) for image in images]).with_keypoints(names)
    if project.kind == SLEAP:
        poses = dataclasses.replace(poses, frames=[(recording.name, frame) for recording, frame in rows])
        shown = {recording.name: videos[recording.videos[""]] for recording, _ in rows}
        sleap_files.write_suggestions(out / SLEAP_FILE, project.path, poses, shown)
    else:
        assert project.kind == COCO
        shown = [videos[recording.videos[""]] for recording, _ in rows]
        sizes_px = {image: (video.width_px, video.height_px) for image, video in zip(images, shown, strict=True)}
        poses = dataclasses.replace(_one_a_row(poses), skeleton=skeleton)
        coco.write_labels(out / COCO_FILE, LabelTable(out / COCO_FILE, poses, scorer=table.scorer, sizes_px=sizes_px))
        # A file without labels has no checksums.
        return [out / COCO_FILE] if np.isfinite(poses.points_px).any() else []
    return []


def _one_a_row(poses: Poses) -> Poses:
    """Returns the labelled animals of all frames, one a row; a frame without one is a row without a position."""
    is_there = np.asarray(np.isfinite(poses.points_px[..., 0]).any(axis=2))
    is_first = np.arange(is_there.shape[1]) == 0
    rows, places = np.nonzero(is_there | (is_first & ~is_there.any(axis=1, keepdims=True)))
    points_px = poses.points_px[rows, places]
    visibility = np.where(np.isfinite(points_px[..., 0]), VISIBLE, NOT_USED).astype(np.int8)
    frames = [poses.frames[row] for row in rows.tolist()]
    return Poses.of_one_animal(poses.keypoint_names, frames, points_px, visibility=visibility, pixels="image")


def _write_csv(
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    layout: LabelLayout,
    predicted: Poses | None,
    h5: bool,
) -> list[Path]:
    files: dict[str, list[list[str]]] = {}
    names = predicted.keypoint_names if predicted else ()
    points_px = dict(zip(predicted.frames, predicted.points_px, strict=True)) if predicted else {}
    individuals = layout.individuals or ("",)
    for choice in choices:
        for view, folder in recordings[choice.recording].folders.items():
            image = image_of(folder, choice.frame)
            of_image = {
                (individual, name): point
                for individual, points in zip(individuals, points_px.get(image, ()), strict=False)
                for name, point in zip(names, points, strict=True)
            }
            cells = layout.cells(image, of_image)
            files.setdefault(layout.file(view, folder), []).append(cells)
    for name, rows in files.items():
        file = out / name
        file.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*layout.header, *rows])
        write_new(file, text.getvalue().encode())
        if h5:
            write_new(file.with_suffix(".h5"), h5_of_csv(text.getvalue().encode(), layout))
    return [out / name for name in files]


LIST_FILE = "suggestions.csv"
_CHUNK_FRAMES = 8
_CHECKSUM, _RUN = "labels_sha256", "run"


def refuse_used(out: Path, overwrite: bool, new: Path | None = None) -> None:
    """Checks that a folder is absent, empty, or left by a killed command that wrote the same.

    Args:
      out: the folder.
      overwrite: it may hold earlier suggestions with unchanged labels.
      new: the content to write, once known.

    Raises:
      UserError: it holds files, or is a file.
    """
    if not os.path.lexists(out) or (out.is_dir() and not any(out.iterdir())):
        return
    if has_same_files(new, out) if new else was_cut_off(Path(os.path.realpath(out))):
        return
    if not overwrite or not (out / LIST_FILE).is_file():
        rule = "--overwrite replaces it, or " * (out / LIST_FILE).is_file()
        raise UserError(f"--out is {out}, which already exists: {rule}choose another folder")
    if not _is_untouched(out):
        raise UserError(f"--out is {out}, whose labels may have been corrected: merge them, or choose another folder")


def write_suggestions(
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    data: DataConfig,
    project: ProjectLabels | None,
    predicted: Poses | None,
    *,
    radius: int,
    h5: bool = False,
    run: Path | None = None,
    overwrite: bool = False,
) -> int:
    """Writes the folder atomically and returns the number of images.

    Args:
      out: the folder.
      recordings: the videos.
      choices: the frames to label.
      data: has the sizes of labelled images, which decide whether to apply a video file's rotation.
      project: determines the form of the label files; None writes none.
      predicted: keypoints in the frames' images; None leaves the labels empty.
      radius: number of frames to write on either side of each chosen frame.
      h5: also writes each label file as HDF5.
      run: the only run whose predictions chose the frames; None = no run, or several.
      overwrite: as in `refuse_used`.

    Raises:
      UserError: a video is damaged before a needed frame, or the folder holds other files.
    """
    with write_folder(out, overwrite=True) as folder:
        images, videos = 0, dict[Path, Video]()
        for place, recording in enumerate(recordings):
            frames = {choice.frame for choice in choices if choice.recording == place}
            for view, path in recording.videos.items() if frames else ():
                videos[path] = as_labelled(scan(path), labelled_sizes_px(data))
                images_folder = folder / IMAGES_FOLDER / recording.folders[view]
                images += _write_images(images_folder, videos[path], recording.crop_px, frames, radius)
        files = write_label_files(folder, recordings, choices, project, predicted, videos, h5) if project else []
        checksums = {image: digest for file in files for image, digest in read_checksums(file).items()}
        write_new(folder / LIST_FILE, _list_text(recordings, choices, checksums, run).encode())
        refuse_used(out, overwrite, folder)
    return images


def read_checksums(file: Path) -> dict[str, str]:
    """Returns the SHA-256 of each image's labels in a CSV or COCO file, regardless of column order."""
    is_coco = file.suffix.lower() == ".json"
    table = coco.read_labels(file, DataConfig(missing="ignore")) if is_coco else read_labels(file, "ignore")
    poses, individuals = table.poses, (*table.poses.individuals, "")
    rows = zip(poses.frames, *poses.labels(), np.asarray(poses.identity)[:, 0].tolist(), strict=True)
    found = {image.name: dict[str, str]() for image in table.without_animals}
    for image, points, visibility, number in rows:
        digest = labels_checksum(poses.keypoint_names, points, visibility)
        found.setdefault(image, {})[individuals[number]] = digest
    return {image: _checksum(of_image) for image, of_image in found.items()}


def _checksum(digests: Mapping[str, str]) -> str:
    """Returns the checksum of an image from those of its animals, {individual: checksum}; "" names a single one."""
    if list(digests) == [""]:
        return digests[""]
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def read_suggested(folder: Path) -> dict[str, str]:
    """Returns {image: SHA-256 of its labels} as written to a suggestion folder; {} for other folders.

    A project may have an unrelated file with the same name.

    Raises:
      OSError: the list cannot be read.
    """
    return {path_of_cell(row["image"] or ""): row[_CHECKSUM] or "" for row in _read_list(folder)}


def read_suggesting_run(folder: Path) -> Path | None:
    """Returns the run whose predictions chose the frames of a suggestion folder, if it still exists.

    Raises:
      OSError: the folder's list cannot be read.
    """
    runs = {path_of_cell(row.get(_RUN) or "") for row in _read_list(folder)} - {""}
    run = Path(runs.pop()) if len(runs) == 1 else None
    return run if run and (run / CONFIG_FILE).is_file() else None


def _read_list(folder: Path) -> list[dict[str, str | None]]:
    """Returns the rows of a suggestion list, [] if there is none by jaxpose."""
    file = folder / LIST_FILE
    if not file.is_file():
        return []
    try:
        with file.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except (UnicodeDecodeError, csv.Error):
        return []
    return [row for row in rows if {"image", _CHECKSUM} <= row.keys()]


def _is_untouched(folder: Path) -> bool:
    """Returns whether the label files of suggestions are unchanged; False if unknown."""
    suggested = read_suggested(folder)
    files = [file for file in folder.rglob("*") if file.is_file() and file.suffix != ".png" and file.name != LIST_FILE]
    if any(file.suffix not in (".csv", ".h5") for file in files):
        return False
    found = {image: check for file in files if file.suffix == ".csv" for image, check in read_checksums(file).items()}
    return not files or found == suggested


def _write_images(folder: Path, video: Video, crop_px: tuple[int, ...], frames: set[int], radius: int) -> int:
    """Writes frames and `radius` neighbours on either side, cropped to (x, y, width, height) if given.

    Returns:
      The number of images.
    """
    folder.mkdir(parents=True)
    size_px = (video.width_px, video.height_px)
    x, y, width, height = crop_px or (0, 0, *size_px)
    reach = range(-radius, radius + 1)
    wanted = {frame + offset for frame in frames for offset in reach if frame + offset >= 0}
    reader = read_chunks(video, np.eye(2, 3), size_px, _CHUNK_FRAMES)
    written, number = set(), 0
    with phase(f"extracting frames of {video.path.name}", max(wanted) + 1, "frame") as progress:
        for chunk in reader:
            for frame in chunk:
                if number in wanted:
                    _, content = cv2.imencode(".png", frame[y : y + height, x : x + width, ::-1])
                    write_new(folder / PurePosixPath(image_of(folder.name, number)).name, content.tobytes())
                    written.add(number)
                number += 1
            progress.update(len(chunk))
            if number > max(wanted):
                reader.close()
                break
    if absent := sorted(frames - written):
        raise UserError(f"frame {absent[0]} cannot be read: {reader.problem or f'{video.path} has {number} frames'}")
    return len(written)


def _list_text(
    recordings: list[Recording], choices: list[Choice], checksums: Mapping[str, str], run: Path | None
) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    of_run = path_cell(os.path.abspath(run)) if run else ""
    writer.writerow(["image", "frame", "score", "reason", _CHECKSUM, _RUN])
    for choice in choices:
        score = "" if math.isnan(choice.score) else f"{choice.score:.3f}"
        for name in recordings[choice.recording].folders.values():
            image = image_of(name, choice.frame)
            writer.writerow([path_cell(image), choice.frame, score, choice.reason, checksums.get(image, ""), of_run])
    return text.getvalue()
