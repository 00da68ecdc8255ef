"""A folder of frames to label: images with their neighbours, and label files in the form of the project.

labeled-data/<video>/img<8-digit frame number>.png; the label files have a row for each suggested frame, not for its
neighbours; suggestions.csv has the reason for each.
"""

import csv
import io
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import cv2
import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.cells import path_cell, path_of_cell
from jaxpose.data.labels import labels_checksum, read_labels
from jaxpose.errors import UserError
from jaxpose.labelling.label_layout import IMAGES_FOLDER, LabelLayout
from jaxpose.labelling.recordings import Recording
from jaxpose.labelling.selection import Choice
from jaxpose.phases import phase
from jaxpose.video.rotation import as_labelled, labelled_sizes_px
from jaxpose.video.video import read_chunks, scan

LIST_FILE = "suggestions.csv"
# Frames on either side of each suggested one, for networks that look at five frames.
_NEIGHBOURS = 2
_CHUNK_FRAMES = 8
_KEY = "df_with_missing"
_CHECKSUM = "labels_sha256"

# {(recording, frame): {view: {keypoint: (x, y)}}}
Points = Mapping[tuple[int, int], Mapping[str, Mapping[str, np.ndarray]]]


def refuse_used(out: Path) -> None:
    """Checks that a folder is absent or empty.

    Raises:
      UserError: it holds files, or is one.
    """
    if out.is_dir() and not any(out.iterdir()):
        return
    if os.path.lexists(out):
        raise UserError(f"--out is {out}, which exists already; its labels are never replaced: choose another folder")


def write_suggestions(
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    data: DataConfig,
    layout: LabelLayout | None,
    points: Points,
    h5: bool = False,
) -> int:
    """Writes the folder, complete or not at all, and returns the number of images.

    Args:
      out: the folder, absent or empty.
      recordings: the videos.
      choices: the frames to label.
      data: the sizes of the labelled images decide whether a rotation in a video file is applied.
      layout: of the label files; None writes none.
      points: predicted places of the keypoints; a frame without any gets empty cells.
      h5: write each label file as HDF5, too.

    Raises:
      UserError: a video is damaged before a frame that is needed.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        # A subfolder, because mkdtemp makes a folder that only its owner can read.
        folder = staging / "suggestions"
        images = 0
        for place, recording in enumerate(recordings):
            frames = {choice.frame for choice in choices if choice.recording == place}
            for video in recording.videos.values() if frames else ():
                images += _write_images(folder / IMAGES_FOLDER / video.stem, video, frames, data)
        files = _write_labels(folder, recordings, choices, layout, points, h5) if layout else []
        checksums = {image: digest for file in files for image, digest in read_checksums(file).items()}
        (folder / LIST_FILE).write_text(_list_text(recordings, choices, checksums), encoding="utf-8")
        os.replace(folder, out)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return images


def read_checksums(file: Path) -> dict[str, str]:
    """Returns the SHA-256 of the labels of each image in a label file, whatever the order of its columns."""
    labels, _ = read_labels(file, "ignore")
    rows = zip(labels.images, labels.keypoints_frame_px, labels.visibility, strict=True)
    return {image: labels_checksum(labels.keypoint_names, points, visibility) for image, points, visibility in rows}


def read_suggested(folder: Path) -> dict[str, str]:
    """Returns {image: SHA-256 of its labels} as a folder of suggestions was written; {} if it is none.

    Raises:
      OSError: its list cannot be read.
    """
    file = folder / LIST_FILE
    if not file.is_file():
        return {}
    with file.open(newline="", encoding="utf-8") as stream:
        return {path_of_cell(row.get("image") or ""): row.get(_CHECKSUM) or "" for row in csv.DictReader(stream)}


def image_of(video: Path, frame: int) -> str:
    """Returns the path of the image of a frame, relative to the project."""
    return f"{IMAGES_FOLDER}/{video.stem}/img{frame:08d}.png"


def _write_images(folder: Path, path: Path, frames: set[int], data: DataConfig) -> int:
    folder.mkdir(parents=True)
    video = as_labelled(scan(path), labelled_sizes_px(data))
    reach = range(-_NEIGHBOURS, _NEIGHBOURS + 1)
    wanted = {frame + offset for frame in frames for offset in reach if frame + offset >= 0}
    size_px = (video.width_px, video.height_px)
    reader = read_chunks(video, np.eye(2, 3), size_px, _CHUNK_FRAMES)
    written, number = set(), 0
    with phase(f"extracting frames of {path.name}", max(wanted) + 1, "frame") as progress:
        for chunk in reader:
            for frame in chunk:
                if number in wanted:
                    _, content = cv2.imencode(".png", frame[..., ::-1])
                    (folder / Path(image_of(path, number)).name).write_bytes(content.tobytes())
                    written.add(number)
                number += 1
            progress.update(len(chunk))
            if number > max(wanted):
                reader.close()
                break
    if absent := sorted(frames - written):
        raise UserError(f"frame {absent[0]} cannot be read: {reader.problem or f'{path} has {number} frames'}")
    return len(written)


def _write_labels(
    folder: Path, recordings: list[Recording], choices: list[Choice], layout: LabelLayout, points: Points, h5: bool
) -> list[Path]:
    files: dict[str, list[list[str]]] = {}
    for choice in sorted(choices, key=lambda choice: (choice.recording, choice.frame)):
        for view, video in recordings[choice.recording].videos.items():
            predicted = points.get((choice.recording, choice.frame), {}).get(view, {})
            cells = layout.cells(image_of(video, choice.frame), predicted)
            files.setdefault(layout.file(view, video.stem), []).append(cells)
    for name, rows in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows([*layout.header, *rows])
        if h5:
            _write_h5(file.with_suffix(".h5"), layout, rows)
    return [folder / name for name in files]


def _write_h5(file: Path, layout: LabelLayout, rows: list[list[str]]) -> None:
    """Writes rows as the table that DeepLabCut keeps beside its CSV files."""
    import pandas as pd

    first = layout.index_columns
    places = [column for column, (_, coord) in enumerate(layout.columns()) if coord in "xy"]
    names = [(layout.scorer, *layout.columns()[column]) for column in places]
    values = [[float(row[first + column] or "nan") for column in places] for row in rows]
    images = [tuple("/".join(row[:first]).split("/")) for row in rows]
    columns = pd.MultiIndex.from_tuples(names, names=["scorer", "bodyparts", "coords"])
    table = pd.DataFrame(values, index=pd.MultiIndex.from_tuples(images), columns=columns)
    table.to_hdf(file, key=_KEY, mode="w")


def _list_text(recordings: list[Recording], choices: list[Choice], checksums: Mapping[str, str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "frame", "score", "reason", _CHECKSUM])
    for choice in choices:
        score = "" if math.isnan(choice.score) else f"{choice.score:.3f}"
        for video in recordings[choice.recording].videos.values():
            image = image_of(video, choice.frame)
            writer.writerow([path_cell(image), choice.frame, score, choice.reason, checksums.get(image, "")])
    return text.getvalue()
