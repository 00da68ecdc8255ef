"""Finished runs that a test writes as tables, without training: for what reads a run folder."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxpose import config as c
from jaxpose.checksums import write_csv
from jaxpose.formats.lightning_pose.tables import write_errors, write_predictions
from jaxpose.prediction.index import COLUMNS, DONE, Row
from jaxpose.run.identity import write_config
from jaxpose.run.status import write_evaluated


def write_run(
    folder: Path, names: Sequence[str], sets: Mapping[str, str], errors_px: np.ndarray, confidence: np.ndarray
) -> Path:
    """Writes a run of some labelled frames, {image: set}, with errors and confidence (n, k); its project is absent."""
    config = c.resolve(c.Config(data=c.DataConfig(project="/projects/absent", keypoint_names=tuple(names))))
    config.data.input_width_px = config.data.input_height_px = 64
    folder.mkdir()
    write_config(folder / "config.json", config)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("path", "bytes", "sha256", "set", "labels_sha256"))
    writer.writerows(
        (image, 1, f"{place:064x}", name, f"{place:064x}") for place, (image, name) in enumerate(sets.items())
    )
    write_csv(folder / "split.csv", text.getvalue())
    images, of_rows = list(sets), list(sets.values())
    write_errors(folder / "predictions_pixel_error.csv", images, names, errors_px, of_rows)
    points = np.stack([np.nan_to_num(errors_px), np.zeros(errors_px.shape)], axis=-1)
    write_predictions(folder / "predictions.csv", images, names, points, confidence, sets=of_rows)
    checksums = [f"{place:064x}" for place in range(len(images))]
    write_evaluated(folder, ["predictions.csv", "predictions_pixel_error.csv"], images, checksums, checksums)
    return folder


def write_video(run: Path, name: str, names: Sequence[str], keypoints_px: np.ndarray, confidence: np.ndarray) -> None:
    """Writes the predictions of a video that does not exist, (n, k, 2) and (n, k), as the only one of the run."""
    (run / "video_preds").mkdir(exist_ok=True)
    write_predictions(run / "video_preds" / f"{name}.csv", range(len(confidence)), names, keypoints_px, confidence)
    row = Row(
        f"/videos/{name}.mp4", 1, "0.0", "0", "0", len(confidence), len(confidence), 1.0, DONE, "",
        f"video_preds/{name}.csv", 1, "", "0", "",
    )  # fmt: skip
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerow(dataclasses.asdict(row))
    write_csv(run / "index.csv", text.getvalue())
