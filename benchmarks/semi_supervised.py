"""Do losses on unlabelled video, and context frames, lower the error of a network that has 10 labels?

    python benchmarks/semi_supervised.py --out benchmarks/semi_supervised.jsonl
    python benchmarks/semi_supervised.py --out benchmarks/semi_supervised.jsonl --project PATH/mirror-mouse-example

The synthetic animal walks behind drifting leaves, in 13 videos of 128 frames under one light. A network learns from 10
labelled frames of five of the videos, which are also its unlabelled video; the error is that of all frames of the other
eight against where the animal really was. A seed makes the project, the first weights and the order of the frames. The
networks with losses on video continue from the supervised one of their seed, which is also trained for as many more
steps: the networks of a pair then differ only in the losses. The context network starts from random weights, and is
compared with the first network. On real frames the protocol is that of benchmarks/accuracy.py, with clips of the
project's video from the start. Appends one JSON line for each variant and seed, and skips those that the file has.
"""

import argparse
import csv
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from json_lines import append_line, read_lines

from jaxpose import config as c
from jaxpose.data.labels import read_labels
from jaxpose.data.synthetic import make_project
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.metrics import pixel_errors, step_lengths_px
from jaxpose.pose.pca import errors_px
from jaxpose.prediction.predictor import load
from jaxpose.run.pca import Subspaces
from jaxpose.train import train

TRAIN_VIDEOS, TEST_VIDEOS, LABELS_PER_VIDEO, VIDEO_FRAMES, LEAVES = 5, 8, 2, 128, 4
# As many coordinates as labelled poses, the most that a PCA can be fitted to.
POSE = ("nose", "neck", "tail_base", "left_front_paw", "right_front_paw")
# A step this long is not the animal's: it walks less than 10 px from frame to frame.
JUMP_PX = 20.0
STEPS, MORE_STEPS = 2000, 500
# The factors of the losses.
VARIANTS: dict[str, dict[str, float]] = {
    "first": {},
    "context": {},
    "supervised": {},
    "temporal": {"temporal": 3e-4},
    "PCA": {"pca_singleview": 3e-4},
    "temporal + PCA": {"temporal": 3e-4, "pca_singleview": 3e-4},
}
# What each is compared with; all except these two continue from the first network.
COMPARED = {"context": "first"} | {name: "supervised" for name, factors in VARIANTS.items() if factors}
ANEW = ("first", "context")
REAL = ("supervised", "temporal", "temporal + PCA")


def make_synthetic(work: Path, seed: int) -> Path:
    """Makes the project of a seed, its split.csv and the folder `unlabelled`; returns its folder."""
    folder = work / f"project-{seed}"
    videos = TRAIN_VIDEOS + TEST_VIDEOS
    size = {"labelled_frames": LABELS_PER_VIDEO, "video_frames": VIDEO_FRAMES}
    project = make_project(folder / "project", seed=seed, videos=videos, leaves=LEAVES, looks=1, **size)
    unlabelled = folder / "unlabelled"
    unlabelled.mkdir(exist_ok=True)
    for video in sorted((project / "videos").glob("*.mp4"))[:TRAIN_VIDEOS]:
        if not (unlabelled / video.name).exists():
            os.link(video, unlabelled / video.name)
    labels = read_labels(project / "CollectedData.csv", "ignore")
    with (folder / "split.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "set"))
        for row, image in enumerate(labels.poses.frames):
            writer.writerow((image, "train" if row < TRAIN_VIDEOS * LABELS_PER_VIDEO else "unused"))
    return folder


def run_folder(folder: Path, name: str) -> Path:
    """Returns the run folder of a variant."""
    return folder / name.replace(" + ", "-")


def synthetic_config(folder: Path, seed: int, name: str) -> c.Config:
    """Returns the config of a variant on the synthetic project."""
    config = c.Config(
        out=str(run_folder(folder, name)),
        data=c.DataConfig(
            project=str(folder / "project"), split=str(folder / "split.csv"), input_height_px=96, input_width_px=96
        ),
        augment=c.AugmentConfig(preset="dlc", rotate_p=1.0, rotate_deg=180.0),
        model=c.ModelConfig(
            kind="heatmap_context" if name == "context" else "heatmap",
            backbone="resnet18",
            head="lightning_pose",
            width=16,
        ),
        video=c.VideoConfig(folder=str((folder / "unlabelled").resolve()), rotate_deg=180.0),
        optim=c.OptimConfig(lr=2e-3, schedule="cosine"),
        train=c.TrainConfig(steps=STEPS, batch_size=10, seed=seed),
        eval=c.EvalConfig(predict_videos="no", batch_size=32),
        log=c.LogConfig(tensorboard=False),
    )
    if name not in ANEW:
        config.train.init_from, config.train.steps = str(run_folder(folder, "first")), MORE_STEPS
        config.optim.lr, config.optim.unfreeze_epoch = 1e-3, 0
    config.losses.anneal_start_epochs, config.losses.anneal_increase_per_epoch = 0.0, 0.01
    config.losses.temporal.epsilon_px = (6.0,)
    # Named, so that all variants measure with it.
    config.losses.pca_singleview.keypoints, config.losses.pca_singleview.centering = POSE, "mean"
    return _with_losses(config, name)


def _with_losses(config: c.Config, name: str) -> c.Config:
    for loss, weight in VARIANTS[name].items():
        getattr(config.losses, loss).weight = weight
    return config


def measure(config: c.Config) -> dict[str, Any]:
    """Trains a config; returns the cost."""
    wall, cpu = time.monotonic(), time.process_time()
    summary = train(config)
    if summary["exit_code"]:
        sys.exit(summary["exit_code"])
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    return {"wall_s": round(wall, 1), "cpu_ms_per_step": round(1000 * cpu / config.train.steps, 1)}


def measure_synthetic(work: Path, seed: int, name: str) -> dict[str, Any]:
    """Trains a variant on the synthetic project of a seed; returns its JSON line."""
    folder = make_synthetic(work, seed)
    line = measure(synthetic_config(folder, seed, name))
    predictor = load(run_folder(folder, name))
    videos = sorted((folder / "project" / "videos").glob("*.mp4"))[TRAIN_VIDEOS:]
    predicted = [predictor.predict_video(video)[0] for video in videos]
    truth = [
        read_labels(folder / "project" / "ground_truth" / f"{video.stem}.csv", "ignore").keypoints_image_px
        for video in videos
    ]
    errors = pixel_errors(np.concatenate(predicted), np.concatenate(truth))
    labels = read_labels(folder / "project" / "CollectedData.csv", "ignore").keypoints_image_px
    line |= {"mean_px": float(errors.mean()), "median_px": float(np.median(errors))}
    return line | implausible(predicted, predictor.subspaces, labels[: TRAIN_VIDEOS * LABELS_PER_VIDEO])


def measure_real(project: Path, work: Path, seed: int, name: str) -> dict[str, Any]:
    """Trains a variant under the protocol of benchmarks/accuracy.py; returns its JSON line."""
    from accuracy import STEPS, make_config, write_split

    labels = read_labels(project / "CollectedData.csv", "ignore")
    folder = work / f"real-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    write_split(folder / "split.csv", labels.poses.frames)
    run = run_folder(folder, name)
    config = make_config(project, folder / "split.csv", run, seed)
    # An epoch is 5 steps: the losses start after a fifth of the steps, over 100 steps.
    config.losses.anneal_start_epochs, config.losses.anneal_increase_per_epoch = STEPS / 25, 0.05
    # Of the project's own config.yaml: the body in both views.
    config.losses.pca_singleview.keypoints = tuple(
        labels.poses.keypoint_names[column] for column in (*range(7), *range(8, 15))
    )
    line = measure(_with_losses(config, name))
    predictor = load(run)
    found = read_predictions(run / "predictions.csv")
    held_out = np.isin(np.array(found.sets), ("validation", "test"))
    errors = pixel_errors(found.poses.points_px[:, 0], labels.keypoints_image_px)[held_out]
    predicted = [predictor.predict_video(video)[0] for video in sorted((project / "videos").glob("*.mp4"))]
    line |= {"mean_px": float(np.nanmean(errors)), "median_px": float(np.nanmedian(errors))}
    training = labels.keypoints_image_px[np.array(found.sets) == "train"]
    return line | implausible(predicted, predictor.subspaces, training)


def implausible(predicted: list[np.ndarray], subspaces: Subspaces, labels: np.ndarray) -> dict[str, float]:
    """Returns the shares of (frame, keypoint) that jump, and whose pose is unlike all training labels.

    Args:
      predicted: keypoints (frames, k, 2) of each video, in frame pixels.
      subspaces: includes that of single poses.
      labels: keypoints (n, k, 2) of the training frames.
    """
    pose = subspaces["pca_singleview"]
    steps = np.concatenate([step_lengths_px(points, None)[1:] for points in predicted])
    limit_px = np.nanpercentile(errors_px(pose, labels), 99)
    found = errors_px(pose, np.concatenate(predicted))
    # Only keypoints of the pose; the others have no error.
    found = found[:, ~np.isnan(found).all(axis=0)]
    return {"jump_share": float((steps > JUMP_PX).mean()), "pose_share": float((found > limit_px).mean())}


def show(lines: list[dict[str, Any]], data: str) -> None:
    """Prints the table of a data set: each variant, and by how much its error is lower in pairs of one seed."""
    of = {(line["variant"], line["seed"]): line for line in lines if line["data"] == data}
    for name in VARIANTS:
        seeds, other = sorted(seed for variant, seed in of if variant == name), COMPARED.get(name)
        pairs = [seed for seed in seeds if (other, seed) in of]
        if not seeds:
            continue
        rows, compared = [of[name, seed] for seed in seeds], ""
        if pairs:
            lower = np.array([of[other, seed]["mean_px"] - of[name, seed]["mean_px"] for seed in pairs])
            compared = f", lower than {other} by {lower.mean():.2f}"
            compared += _error_of_mean(lower) if len(pairs) > 1 else " (one pair: shows nothing)"
        keys = [key for key in rows[0] if key.endswith(("_px", "_share", "_step"))]
        mean = {key: np.mean([row[key] for row in rows]) for key in keys}
        print(
            f"{data:10} {name:15} {len(seeds)} seeds: mean {mean['mean_px']:.2f} px, median {mean['median_px']:.2f} "
            f"px{compared}; jumps {mean['jump_share']:.2%}, unlikely poses "
            f"{mean['pose_share']:.2%}; {mean['cpu_ms_per_step']:.0f} CPU ms a step"
        )


def _error_of_mean(values: np.ndarray) -> str:
    """Returns the standard error of a mean (n,), and whether the mean is above twice that."""
    error = values.std(ddof=1) / len(values) ** 0.5
    times = abs(values.mean()) / error
    verdict = "" if times >= 2 else ": no difference is shown"
    return f" +- {error:.2f} (standard error; the difference is {times:.1f} times that{verdict})"


def main() -> int:
    """Runs the missing measurements and prints the tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/semi_supervised"), help="projects and run folders")
    arguments.add_argument(
        "--project", type=Path, help="the mirror-mouse-example folder; default: the synthetic animal"
    )
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments.add_argument("--variants", nargs="+", choices=list(VARIANTS), help="default: all")
    given = arguments.parse_args()
    data = "real" if given.project else "synthetic"
    for seed in given.seeds:
        for name in given.variants or (REAL if given.project else VARIANTS):
            lines = read_lines(given.out)
            if any((line["data"], line["variant"], line["seed"]) == (data, name, seed) for line in lines):
                continue
            if given.project:
                found = measure_real(given.project.resolve(), given.work, seed, name)
            else:
                found = measure_synthetic(given.work, seed, name)
            line = {"data": data, "variant": name, "seed": seed} | found
            line |= {"jax": jax.__version__, "machine": platform.processor() or platform.machine()}
            append_line(given.out, line)
    show(read_lines(given.out), data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
