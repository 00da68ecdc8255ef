"""Projects of other tools, written with their own libraries: two videos whose frames show their own numbers."""

from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import yaml

from tests.painted_videos import plain, write

FRAMES, LABELLED = 20, (3, 7, 12)
KEYPOINTS = ("nose", "left_ear", "right_ear", "tail")
SIZE_PX = (64, 48)
# The crop of the second video as DeepLabCut has it: x1, x2, y1, y2.
CROP = (16, 56, 8, 40)
HEADER = ["scorer", "bodyparts", "coords"]


def points_px(video: int) -> np.ndarray:
    """Returns labels (3, 4, 2) in frame pixels, all inside of the crop, with gaps."""
    points = np.random.default_rng(video).uniform((18, 10), (54, 38), (len(LABELLED), len(KEYPOINTS), 2)).round(3)
    points[1, 2] = np.nan
    return points


def deeplabcut_project(folder: Path, kind: str = "csv", scorer: str = "me") -> dict[str, np.ndarray]:
    """Writes a DeepLabCut project; the images and labels of the second video are crops.

    Args:
      folder: a new folder.
      kind: csv, h5 or both.
      scorer: who labelled.

    Returns:
      {image: labels (4, 2) in pixels of the whole frame}.
    """
    (folder / "videos").mkdir(parents=True)
    expected, video_sets = {}, {}
    for number, name in enumerate(("day1", "day2")):
        frames = plain(write(folder / "videos" / f"{name}.mp4", FRAMES, size_px=SIZE_PX, offset=100 * number))
        x1, x2, y1, y2 = CROP if number else (0, SIZE_PX[0], 0, SIZE_PX[1])
        video_sets[rf"C:\recordings\{name}.mp4"] = {"crop": f"{x1}, {x2}, {y1}, {y2}"}
        images = folder / "labeled-data" / name
        images.mkdir(parents=True)
        for frame in LABELLED:
            cv2.imwrite(str(images / f"img{frame:02}.png"), frames[frame, y1:y2, x1:x2, ::-1])
        points = points_px(number)
        write_labels(images, points - (x1, y1), kind, scorer)
        names = [f"labeled-data/{name}/img{frame:02}.png" for frame in LABELLED]
        expected |= dict(zip(names, points, strict=True))
    config = {"Task": "test", "scorer": scorer, "multianimalproject": False, "video_sets": video_sets}
    config |= {"bodyparts": list(KEYPOINTS), "skeleton": [["nose", "tail"]], "cropping": False}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return expected


def write_labels(folder: Path, points: np.ndarray, kind: str, scorer: str) -> None:
    """Writes the label files of a folder of images as DeepLabCut does: with pandas."""
    columns = pd.MultiIndex.from_product([[scorer], KEYPOINTS, ["x", "y"]], names=HEADER)
    rows = [("labeled-data", folder.name, f"img{frame:02}.png") for frame in LABELLED[: len(points)]]
    table = pd.DataFrame(points.reshape(len(points), -1), index=pd.MultiIndex.from_tuples(rows), columns=columns)
    if kind != "h5":
        table.to_csv(folder / f"CollectedData_{scorer}.csv")
    if kind != "csv":
        table.to_hdf(folder / f"CollectedData_{scorer}.h5", key="df_with_missing", mode="w")
