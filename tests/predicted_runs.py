"""Run folders with tables of predictions that no network made: true tracks with planted failures."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from jaxpose import config as c
from jaxpose.checksums import write_csv
from jaxpose.data.animals import place_names
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES, draw_look, walk
from jaxpose.files import sha256_of
from jaxpose.formats.lightning_pose.tables import PredictionWriter
from jaxpose.prediction.index import COLUMNS, DETECTIONS
from jaxpose.run.identity import write_config
from tests import painted_videos
from tests.index_row import row

Tables = Mapping[Path, tuple[np.ndarray, np.ndarray]]


def walking_project(folder: Path, videos: int, frames: int, labelled: int) -> Path:
    """A project whose labels follow `true_track`, with videos of that length; their frames show only their numbers.

    Frame i of a video is labelled for `labelled` random i; the images do not exist.
    """
    (folder / "videos").mkdir(parents=True)
    rows = {}
    for number in range(videos):
        video = painted_videos.write(folder / "videos" / f"session{number:02d}.mp4", frames, size_px=(128, 128))
        truth = true_track(video, frames)
        for frame in sorted(np.random.default_rng(number).choice(frames, labelled, replace=False).tolist()):
            rows[f"labeled-data/{video.stem}/img{frame:08d}.png"] = truth[frame].ravel()
    columns = pd.MultiIndex.from_product(
        [["synthetic"], KEYPOINT_NAMES, ["x", "y"]], names=["scorer", "bodyparts", "coords"]
    )
    pd.DataFrame.from_dict(rows, orient="index", columns=columns).to_csv(folder / "CollectedData.csv")
    return folder


def true_track(video: Path, frames: int) -> np.ndarray:
    """The true keypoints (n, k, 2) of a video of `walking_project`, in a frame of 128 px."""
    rng = np.random.default_rng([7, int(video.stem[-2:])])
    joints = walk(rng, frames, 128, draw_look(rng, 128).size)
    return np.stack([joints[name] for name in KEYPOINT_NAMES], axis=1)


def planted_failures(truth: np.ndarray, seed: int, stretches: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Predictions (n, k, 2) with small noise and 12 stretches of large errors by turns of four kinds; confidence.

    A keypoint that is elsewhere for one frame, left and right swapped, a keypoint that rests while the animal goes on,
    and a whole pose that lies elsewhere.
    """
    rng = np.random.default_rng(seed)
    count, keypoints = truth.shape[:2]
    predicted = truth + rng.normal(0, 0.6, truth.shape)
    confidence = np.clip(rng.normal(0.9, 0.03, (count, keypoints)), 0, 1)
    left, right = (
        [place for place, name in enumerate(KEYPOINT_NAMES) if name.startswith(side)] for side in ("left", "right")
    )
    starts = (np.arange(stretches) + 0.5) * count / stretches + rng.integers(-6, 7, stretches)
    for number, start in enumerate(starts.astype(int).tolist()):
        point = int(rng.integers(keypoints))
        away = rng.choice([-1, 1], 2) * rng.uniform(15, 25, 2)
        if number % 4 == 0:
            predicted[start, point] += away
        elif number % 4 == 1:
            predicted[start : start + 4, left + right] = predicted[start : start + 4, right + left]
        elif number % 4 == 2:
            predicted[start : start + 5, point] = predicted[start, point] + away
            confidence[start : start + 5, point] = 0.2
        else:
            predicted[start : start + 2] += away
    return predicted, confidence


def predicted_run(folder: Path, project: Path, tables: Tables, **data: object) -> Path:
    """A run of a project with whole tables of videos: {video: (keypoints (n, k, 2), confidence (n, k))}.

    With `animals` and `body_size_px`, a run of several: (n, a, k, 2) and (n, a, k); it holds the config of a finder.
    """
    config = c.Config(data=c.DataConfig(project=str(project), keypoint_names=KEYPOINT_NAMES))
    config.data.input_width_px = config.data.input_height_px = 64
    for name, value in data.items():
        setattr(config.data, name, value)
    folder.mkdir(parents=True)
    write_config(folder / "config.json", config)
    if config.data.animals > 1:
        (folder / "finder").mkdir()
        finder = dataclasses.replace(config, model=dataclasses.replace(config.model, kind="finder"))
        write_config(folder / "finder" / "config.json", finder)
    lines, names, animals = [], config.data.keypoint_names, place_names(config.data.animals)
    for video, (keypoints, confidence) in tables.items():
        table = folder / "video_preds" / f"{video.stem}{DETECTIONS * bool(animals)}.csv"
        with PredictionWriter(table, names, "heatmap_tracker", individuals=animals) as writer:
            writer.append(range(len(keypoints)), keypoints, confidence)
        place, digest = f"video_preds/{table.name}", sha256_of(table)[:16]
        done = row(path=str(video), size=video.stat().st_size, table=place, table_sha256=digest)
        lines.append([getattr(done, column) for column in COLUMNS])
    write_csv(folder / "index.csv", pd.DataFrame(lines, columns=COLUMNS).to_csv(index=False))
    return folder
