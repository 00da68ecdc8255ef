"""A project in which the frames of a project's videos have the labels of an ensemble.

The baseline that a teacher must beat: train, predict, filter by agreement, train again.
"""

import csv
import shutil
from collections.abc import Iterator
from pathlib import Path

import av
import cv2
import numpy as np

import jaxpose
from jaxpose.pose.metrics import spread_px

# Frames of all videos together, and the share of each keypoint's points that count: those with the least spread over
# the members.
FRAMES, KEPT_SHARE = 160, 0.7


def make_project(source: Path, rows: np.ndarray, ensemble: Path, project: Path, seed: int) -> Path:
    """Makes the project, with copies of the labels so that half of a batch has them; returns its split file.

    Args:
      source: the project of the labels; none of its other rows trains.
      rows: the rows of its label file that train.
      ensemble: the run folder of an ensemble that learned them.
      project: the folder to make; its content is replaced.
      seed: chooses the frames.
    """
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(source / "labeled-data", project / "labeled-data")
    (project / "videos").mkdir()
    lines = (source / "CollectedData.csv").read_text().splitlines()
    table, sets = lines[:3], []
    frames = list(_drawn_frames(source, seed))
    copies = max(1, round(len(frames) / len(rows)))
    for row, line in enumerate(lines[3:]):
        path, _, cells = line.partition(",")
        table.append(line)
        sets.append((path, "train" if row in rows else "unused"))
        for copy in range(1, copies if row in rows else 1):
            name = Path(path).with_name(f"copy{copy}_{Path(path).name}").as_posix()
            shutil.copy(source / path, project / name)
            table.append(f"{name},{cells}")
            sets.append((name, "train"))
    (project / "labeled-data" / "of_videos").mkdir()
    for number, (frame, points) in enumerate(zip(frames, _agreed_points_px(ensemble, frames), strict=True)):
        name = f"labeled-data/of_videos/img{number:05d}.png"
        cv2.imwrite(str(project / name), frame[..., ::-1])
        table.append(",".join((name, *("" if np.isnan(value) else f"{value:.3f}" for value in points.ravel()))))
        sets.append((name, "train"))
    (project / "CollectedData.csv").write_text("".join(f"{line}\n" for line in table))
    with (project / "split.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows((("path", "set"), *sets))
    return project / "split.csv"


def _drawn_frames(source: Path, seed: int) -> Iterator[np.ndarray]:
    """Yields about as many frames (h, w, 3) of each video, drawn at random."""
    videos = sorted(path for path in (source / "videos").iterdir() if path.suffix in (".mp4", ".avi"))
    rng = np.random.default_rng(seed)
    for video, numbers in zip(videos, np.array_split(np.arange(FRAMES), len(videos)), strict=True):
        if len(numbers):
            with av.open(str(video)) as container:
                found = list(container.decode(video=0))
            for index in sorted(rng.choice(len(found), min(len(numbers), len(found)), replace=False)):
                yield found[index].to_ndarray(format="rgb24")


def _agreed_points_px(ensemble: Path, frames: list[np.ndarray]) -> np.ndarray:
    """Returns the median over members (frames, k, 2), NaN where they do not agree."""
    members = np.stack([jaxpose.load(run).predict(frames)[0] for run in sorted((ensemble / "members").iterdir())])
    spread = spread_px(members)
    agrees = spread <= np.quantile(spread, KEPT_SHARE, axis=0)
    return np.where(agrees[..., None], np.median(members, 0), np.nan)
