"""The data sets of `few_labels.py`: projects with more labels than are learned from."""

import argparse
import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose import config as c
from jaxpose.data.synthetic import make_project

# Those that both views of the mouse show.
MOUSE_PARTS = ("paw1LH", "paw2LF", "paw3RF", "paw4RH", "tailBase", "tailMid", "nose")
BATCH = 16


@dataclasses.dataclass(frozen=True)
class LabelledSet:
    """A data set with more labels than are learned from.

    Attributes:
      project: a copy of the project, with one label file.
      drawable: label rows to draw from.
      choice: label rows by which options may be chosen.
      test: label rows by which none was.
      base: the config without the labels' split.
    """

    project: Path
    drawable: np.ndarray
    choice: np.ndarray
    test: np.ndarray
    base: c.Config


def _base(project: Path, size_px: tuple[int, int], **augment: Any) -> c.Config:
    return c.Config(
        data=c.DataConfig(
            project=str(project), input_width_px=size_px[0], input_height_px=size_px[1], resize="stretch"
        ),
        augment=c.AugmentConfig(preset="dlc", **augment),
        model=c.ModelConfig(backbone="resnet18", width=16),
        optim=c.OptimConfig(lr=2e-3, schedule="cosine"),
        train=c.TrainConfig(batch_size=BATCH),
        eval=c.EvalConfig(predict_videos="no"),
        mesh=c.MeshConfig(cpu_threads=1),
        log=c.LogConfig(tensorboard=False, report=False),
    )


def mouse(given: argparse.Namespace, seed: int) -> LabelledSet:
    """90 frames of a mouse and its mirror image: 10 to choose by, 80 to draw from, tested on those not drawn."""
    order = np.random.default_rng([1, seed]).permutation(90)
    drawable = order[10:]
    config = _base(given.project, (128, 128))
    config.losses.pca_multiview.views = tuple(
        ",".join(f"{part}_{view}" for part in MOUSE_PARTS) for view in ("top", "bot")
    )
    return LabelledSet(given.project, drawable, order[:10], drawable, config)


def lips(given: argparse.Namespace, seed: int) -> LabelledSet:
    """Lips of speakers: 227 frames of some to draw from and choose by, tested on 392 frames of others.

    The folder is `Lips` of the public repository articulateinstruments/DeepLabCut-for-Speech-Production.
    """
    project = given.work / "lips"
    if not project.exists():
        _make_lips(given.project, project)
    rows = np.arange(227 + 392)
    return LabelledSet(project, rows[:227], rows[:227], rows[227:], _base(project, (128, 96)))


def _make_lips(source: Path, project: Path) -> None:
    """Makes one project of a folder for each recording, with the test frames last; no video is of a test speaker."""
    unfinished = project.with_name("lips.unfinished")
    tested = source / "labeled-data" / "LipTest_COMBINED_TEST"
    # Other folders' names say that their speaker is also tested, or that they were held out.
    of_training = [
        table.parent
        for table in sorted(source.glob("labeled-data/*/CollectedData_AW.csv"))
        if re.fullmatch(r"\d{3}_[a-z]+|File162", table.parent.name)
    ]
    lines: list[str] = []
    for folder in [*of_training, tested]:
        shutil.copytree(folder, unfinished / "labeled-data" / folder.name, dirs_exist_ok=True)
        header, rows = np.split((folder / "CollectedData_AW.csv").read_text().splitlines(), [3])
        # The files come from Windows.
        lines += [*(() if lines else header), *(row.replace("\\", "/") for row in rows)]
    (unfinished / "CollectedData.csv").write_text("".join(f"{line}\n" for line in lines))
    (unfinished / "videos").mkdir(exist_ok=True)
    speakers = {folder.name.removesuffix(" TESTSET") for folder in source.glob("labeled-data/* TESTSET")}
    for video in (source / "videos").glob("[0-9]*.avi"):
        if video.stem not in speakers:
            shutil.copy(video, unfinished / "videos")
    unfinished.rename(project)


def synthetic(given: argparse.Namespace, seed: int) -> LabelledSet:
    """The synthetic animal behind drifting leaves: 5 videos to learn from, 8 others to choose by and to test."""
    project = make_project(
        given.work / f"synthetic-{seed}", seed=seed, videos=13, labelled_frames=16, video_frames=128, leaves=4, looks=1
    )
    for video in sorted((project / "videos").glob("*.mp4"))[5:]:
        # The videos of test frames are not learned from.
        video.unlink()
    config = _base(project, (96, 96), rotate_p=1.0, rotate_deg=180.0)
    config.video.rotate_deg = 180.0
    rows = np.arange(13 * 16)
    return LabelledSet(project, rows[:80], rows[80:112], rows[112:], config)


SETS: dict[str, Callable[[argparse.Namespace, int], LabelledSet]] = {
    "mouse": mouse, "lips": lips, "synthetic": synthetic,
}  # fmt: skip
