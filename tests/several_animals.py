"""A small project with two animals, written as other tools write it."""

import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pandas as pd

NAMES, ANIMALS, SIZE_PX = ("nose", "left_ear", "right_ear"), ("male", "female"), (96, 64)
IMAGES = tuple(f"labeled-data/{video}/img{number:03}.png" for video in "ab" for number in range(0, 60, 10))
# Of the images, one has no animal and another one has only the first.
EMPTY, ALONE = 4, 7
LEVELS = ["scorer", "individuals", "bodyparts", "coords"]


def make_images(folder: Path) -> np.ndarray:
    """Writes the images; returns the points (12, 2, 3, 2) of both animals, NaN where absent."""
    rng = np.random.default_rng(0)
    points = np.full((len(IMAGES), 2, len(NAMES), 2), np.nan)
    for row, image in enumerate(IMAGES):
        picture = rng.integers(40, 90, (SIZE_PX[1], SIZE_PX[0], 3), np.uint8)
        for animal in range(0 if row == EMPTY else 1 if row == ALONE else 2):
            # The animals change sides, and touch the border of the frame in some images.
            left = 14 + 55 * ((animal + row) % 2) + rng.integers(-12, 13)
            pose = np.array([(left, 8), (left + 4, 20), (left + 12, 28)]) + [0, rng.integers(-6, 30)]
            points[row, animal] = pose
            for (x, y), grey in zip(pose.tolist(), (250, 200, 150), strict=True):
                cv2.circle(picture, (x, y), 2, (grey, 255 - grey, grey), -1)
        (folder / image).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / image), picture)
    # Labels need not be complete.
    points[1, 0, 2] = np.nan
    return points


def make_table(points: np.ndarray, animals: Sequence[int], index: pd.Index) -> pd.DataFrame:
    """The labels as DeepLabCut's table, with the individuals in the given order."""
    columns = pd.MultiIndex.from_product([["me"], [ANIMALS[animal] for animal in animals], NAMES, ["x", "y"]])
    columns.names = LEVELS
    return pd.DataFrame(points[:, list(animals)].reshape(len(points), -1), index=index, columns=columns)


def csv_project(folder: Path, animals: Sequence[int] = (0, 1)) -> Path:
    """A folder with images and CollectedData.csv."""
    points = make_images(folder)
    make_table(points, animals, pd.Index(IMAGES)).to_csv(folder / "CollectedData.csv")
    return folder


def deeplabcut_project(folder: Path, animals: Sequence[int] = (0, 1), suffix: str = ".h5") -> Path:
    """A project of DeepLabCut with the labels of both videos."""
    points = make_images(folder)
    for video in "ab":
        rows = [row for row, image in enumerate(IMAGES) if image.split("/")[1] == video]
        index = pd.MultiIndex.from_tuples([tuple(IMAGES[row].split("/")) for row in rows])
        table, file = make_table(points[rows], animals, index), folder / "labeled-data" / video / "CollectedData_me"
        if suffix == ".csv":
            table.to_csv(file.with_suffix(suffix))
        else:
            table.to_hdf(file.with_suffix(suffix), key="df_with_missing", mode="w")
    (folder / "config.yaml").write_text(
        "Task: t\nscorer: me\nmultianimalproject: true\nvideo_sets: {}\nbodyparts: MULTI!\n"
        f"individuals: [{', '.join(ANIMALS)}]\nuniquebodyparts: []\nmultianimalbodyparts: [{', '.join(NAMES)}]\n"
    )
    return folder


def coco_file(folder: Path, animals: Sequence[int] = (0, 1)) -> Path:
    """A file of COCO next to the images, with one animal after the other, and a crowd."""
    points, annotations = make_images(folder), []
    for animal in animals:
        for row in np.flatnonzero(np.isfinite(points[:, animal, 0, 0])).tolist():
            cells = [[0, 0, 0] if np.isnan(x) else [x, y, 2] for x, y in points[row, animal].tolist()]
            annotation = {"id": len(annotations) + 1, "image_id": row + 1, "category_id": 1, "iscrowd": 0}
            annotations.append(annotation | {"keypoints": sum(cells, []), "num_keypoints": 3})
    annotations.append({"id": 99, "image_id": 1, "category_id": 1, "iscrowd": 1, "keypoints": [1, 1, 2] * 3})
    images = [
        {"id": row + 1, "file_name": image, "width": SIZE_PX[0], "height": SIZE_PX[1]}
        for row, image in enumerate(IMAGES)
    ]
    categories = [{"id": 1, "name": "mouse", "keypoints": list(NAMES), "skeleton": []}]
    file = folder / "labels.json"
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return file


def sleap_file(folder: Path, animals: Sequence[int] = (0, 1)) -> Path:
    """A .slp whose tracks are the animals."""
    import sleap_io

    points = make_images(folder)
    skeleton, tracks = sleap_io.Skeleton(list(NAMES)), [sleap_io.Track(name) for name in ANIMALS]
    video = sleap_io.Video.from_filename([str(folder / image) for image in IMAGES])
    frames = [
        sleap_io.LabeledFrame(
            video=video,
            frame_idx=row,
            instances=[
                sleap_io.Instance.from_numpy(points[row, animal], skeleton=skeleton, track=tracks[animal])
                for animal in animals
                if np.isfinite(points[row, animal]).any()
            ],
            is_negative=row == EMPTY,
        )
        for row in range(len(IMAGES))
    ]
    labels = sleap_io.Labels(frames, videos=[video], skeletons=[skeleton], tracks=tracks)
    file = folder / "labels.slp"
    labels.save(str(file))
    return file
