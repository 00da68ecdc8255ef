"""The label files of suggested frames in the form of the project: CSV (and HDF5 beside it), SLEAP or COCO."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpose.codes import NOT_USED, VISIBLE
from jaxpose.files import write_new
from jaxpose.formats import coco_writer, sleap_suggestions
from jaxpose.formats.project import COCO, SLEAP
from jaxpose.formats.written_labels import WrittenLabels
from jaxpose.labelling.label_h5 import h5_of_csv
from jaxpose.labelling.label_layout import IMAGES_FOLDER, LabelLayout
from jaxpose.labelling.project_labels import ProjectLabels
from jaxpose.labelling.recordings import Recording
from jaxpose.labelling.selection import Choice
from jaxpose.video.video import Video

SLEAP_FILE, COCO_FILE = "suggestions.slp", "suggestions.json"

# {(recording, frame): {view: {keypoint: (x, y, confidence)}}}, in pixels of the image.
Points = Mapping[tuple[int, int], Mapping[str, Mapping[str, np.ndarray]]]


def image_of(folder: str, frame: int) -> str:
    """Returns the path of the image of a frame, relative to the project, by the name of its folder of images."""
    return f"{IMAGES_FOLDER}/{folder}/img{frame:08d}.png"


def write_label_files(
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    project: ProjectLabels,
    points: Points,
    videos: Mapping[Path, Video],
    h5: bool,
) -> list[Path]:
    """Writes the label files of the chosen frames, and returns the CSV files among them.

    Args:
      out: the folder with the images.
      recordings: the videos.
      choices: the frames, written in their order in the videos.
      project: whose form the files have.
      points: predictions; a frame without any gets no labels.
      videos: {path: video} of the recordings of the choices, as their frames are shown.
      h5: write each CSV file as HDF5, too.
    """
    choices = sorted(choices, key=lambda choice: (choice.recording, choice.frame))
    if project.layout:
        return _write_csv(out, recordings, choices, project.layout, points, h5)
    (table,) = project.tables[""]
    rows = [(recordings[choice.recording], choice.frame) for choice in choices]
    arrays = [_array(points.get((choice.recording, choice.frame), {}).get("", {}), table.keypoint_names)
              for choice in choices]  # fmt: skip
    shown = [videos[recording.videos[""]] for recording, _ in rows]
    if project.kind == SLEAP:
        frames = [
            sleap_suggestions.SuggestedFrame(
                recording.name, video.path, (video.expected_frames, video.height_px, video.width_px), frame, of_frame
            )
            for (recording, frame), video, of_frame in zip(rows, shown, arrays, strict=True)
        ]
        sleap_suggestions.write_suggestions(out / SLEAP_FILE, project.path, frames)
    else:
        assert project.kind == COCO
        keypoints_px = np.array(arrays)[..., :2]
        labels = WrittenLabels(
            scorer=table.scorer,
            keypoint_names=table.keypoint_names,
            images=tuple(image_of(recording.name, frame) for recording, frame in rows),
            videos=tuple(recording.name for recording, _ in rows),
            sizes_px=tuple((video.width_px, video.height_px) for video in shown),
            keypoints_image_px=keypoints_px,
            visibility=np.where(np.isfinite(keypoints_px[..., 0]), VISIBLE, NOT_USED).astype(np.int8),
            skeleton=table.skeleton,
        )
        coco_writer.write_labels(out / COCO_FILE, labels)
    return []


def _array(of_frame: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    """Returns the predictions (k, 3) of a frame by the names of the keypoints, NaN without one."""
    return np.stack([of_frame.get(name, np.full(3, np.nan)) for name in names])


def _write_csv(
    out: Path, recordings: list[Recording], choices: list[Choice], layout: LabelLayout, points: Points, h5: bool
) -> list[Path]:
    files: dict[str, list[list[str]]] = {}
    for choice in choices:
        for view, folder in recordings[choice.recording].folders.items():
            predicted = points.get((choice.recording, choice.frame), {}).get(view, {})
            cells = layout.cells(image_of(folder, choice.frame), predicted)
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
