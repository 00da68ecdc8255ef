"""The label files of suggested frames in the form of the project: CSV (and HDF5 beside it), SLEAP or COCO."""

import csv
import dataclasses
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpose.codes import NOT_USED, VISIBLE
from jaxpose.data.label_table import LabelTable
from jaxpose.files import write_new
from jaxpose.formats import coco_writer, sleap_suggestions
from jaxpose.formats.project import COCO, SLEAP
from jaxpose.labelling.label_h5 import h5_of_csv
from jaxpose.labelling.label_layout import IMAGES_FOLDER, LabelLayout
from jaxpose.labelling.project_labels import ProjectLabels
from jaxpose.labelling.recordings import Recording
from jaxpose.labelling.selection import Choice
from jaxpose.poses import Poses
from jaxpose.video.video import Video

SLEAP_FILE, COCO_FILE = "suggestions.slp", "suggestions.json"


def image_of(folder: str, frame: int) -> str:
    """Returns the path of the image of a frame, relative to the project, by the name of its folder of images."""
    return f"{IMAGES_FOLDER}/{folder}/img{frame:08d}.png"


def write_label_files(
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    project: ProjectLabels,
    predicted: Poses | None,
    videos: Mapping[Path, Video],
    h5: bool,
) -> list[Path]:
    """Writes the label files of the chosen frames, and returns the CSV files among them.

    Args:
      out: the folder with the images.
      recordings: the videos.
      choices: the frames, written in their order in the videos.
      project: whose form the files have.
      predicted: keypoints in the images of the frames, in any order; None leaves the labels empty.
      videos: {path: video} of the recordings of the choices, as their frames are shown.
      h5: write each CSV file as HDF5, too.
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
        sleap_suggestions.write_suggestions(out / SLEAP_FILE, project.path, poses, shown)
    else:
        assert project.kind == COCO
        visibility = np.where(np.isfinite(poses.points_px[..., 0]), VISIBLE, NOT_USED).astype(np.int8)
        poses = dataclasses.replace(poses, visibility=visibility, skeleton=skeleton)
        shown = [videos[recording.videos[""]] for recording, _ in rows]
        sizes_px = {image: (video.width_px, video.height_px) for image, video in zip(images, shown, strict=True)}
        coco_writer.write_labels(
            out / COCO_FILE, LabelTable(out / COCO_FILE, poses, scorer=table.scorer, sizes_px=sizes_px)
        )
    return []


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
    points_px = dict(zip(predicted.frames, predicted.points_px[:, 0], strict=True)) if predicted else {}
    for choice in choices:
        for view, folder in recordings[choice.recording].folders.items():
            image = image_of(folder, choice.frame)
            cells = layout.cells(image, dict(zip(names, points_px.get(image, ()), strict=True)))
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
