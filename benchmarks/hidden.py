"""Do five context frames lower the error of keypoints that are hidden for a moment, and does smoothing?

    taskset -c 0 python benchmarks/hidden.py --out benchmarks/hidden.jsonl

The synthetic animal walks while leaves fly across it, which hide a keypoint for one to three frames, rarely longer.
All keypoints are labelled, hidden ones too, so every network can learn to guess them. Eight videos of 128 frames train,
with every second frame labelled; the error is that of all frames of four other videos, in pixels of their 64 px, for
hidden and for visible keypoints: of the predictions, and of the same predictions smoothed as `jaxpose predict --smooth`
does it. `single` sees one frame. `context` sees five, from random weights, for as many steps. `context-on-single`
continues from `single` (`train.init_from`), as `single-on-single` does, which sees one frame; the steps of
`single-on-single-long` cost as much as those of `context-on-single`. A seed makes the project and the first weights.
Appends one JSON line for each network and seed, and skips those that the file has.
"""

import argparse
import csv
import platform
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np
from json_lines import append_line, read_lines

from jaxpose import config as c
from jaxpose.data.synthetic_animal import KEYPOINT_NAMES, Leaf, draw_background, draw_frame, draw_look, walk
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose import smooth
from jaxpose.pose.metrics import pixel_errors
from jaxpose.poses import Poses
from jaxpose.train import train

SIDE_PX, VIDEO_FRAMES, TRAIN_VIDEOS, TEST_VIDEOS, LEAVES = 64, 128, 8, 4, 30
STEPS, MORE_STEPS, LONG, BATCH = 1000, 300, 5, 16
LR, MORE_LR = 3e-3, 1e-3
NETWORKS = ("single", "context-on-single", "single-on-single", "single-on-single-long", "context")
# As `predict.smooth_window` and `predict.smooth_min_confidence` are by default.
PREDICT = c.PredictConfig()


def fly_by(rng: np.random.Generator, keypoints_px: np.ndarray) -> list[list[Leaf]]:
    """Returns the leaves in front of each frame: each leaf crosses one keypoint (frames, k, 2) in one frame."""
    frames: list[list[Leaf]] = [[] for _ in keypoints_px]
    for _ in range(LEAVES):
        meeting = rng.integers(len(keypoints_px))
        place_px = keypoints_px[meeting, rng.integers(keypoints_px.shape[1])]
        step_px = rng.uniform(0.06, 0.14) * SIDE_PX * _direction(rng)
        half_px = rng.uniform(0.02, 0.07) * SIDE_PX * _direction(rng)
        radius_px, colour = rng.uniform(0.06, 0.10) * SIDE_PX, rng.uniform([60, 90, 40], [140, 170, 110])
        for i, leaves in enumerate(frames):
            centre_px = place_px + (i - meeting) * step_px
            leaves.append(Leaf(centre_px - half_px, centre_px + half_px, radius_px, colour))
    return frames


def _direction(rng: np.random.Generator) -> np.ndarray:
    angle = rng.uniform(-np.pi, np.pi)
    return np.array([np.cos(angle), np.sin(angle)])


def covered(leaves: list[Leaf], keypoints_px: np.ndarray) -> np.ndarray:
    """Returns which keypoints (k, 2) are behind a leaf."""
    found = np.zeros(len(keypoints_px), bool)
    for leaf in leaves:
        along_px, from_stem_px = leaf.tip_px - leaf.stem_px, keypoints_px - leaf.stem_px
        share = (from_stem_px @ along_px / (along_px @ along_px)).clip(0, 1)
        distance_px = np.linalg.norm(from_stem_px - share[:, None] * along_px, axis=1)
        # A leaf tapers to 0.4 of its radius at the tip, see `draw_frame`.
        found |= distance_px < leaf.radius_px * (1 - 0.6 * share)
    return found


def make_hidden(folder: Path, seed: int) -> np.ndarray:
    """Writes the project of a seed with its split.csv, if it is absent; returns which keypoints are hidden.

    The result is (test videos, frames, k). Every frame is an image, so that a window finds its neighbours.
    """
    if (folder / "hidden.npy").exists():
        return np.load(folder / "hidden.npy")
    rng = np.random.default_rng([seed, 0])
    background, look = draw_background(rng, SIDE_PX), draw_look(rng, SIDE_PX)
    labels, sets, hidden = [], [], []
    for number in range(TRAIN_VIDEOS + TEST_VIDEOS):
        name, rng = f"session{number:02d}", np.random.default_rng([seed, number, 2])
        (folder / "project" / "labeled-data" / name).mkdir(parents=True, exist_ok=True)
        joints_px = walk(rng, VIDEO_FRAMES, SIDE_PX, look.size)
        keypoints_px = np.stack([joints_px[part] for part in KEYPOINT_NAMES], axis=1)
        in_front = fly_by(np.random.default_rng([seed, number, 1]), keypoints_px)
        is_test = number >= TRAIN_VIDEOS
        for i in range(VIDEO_FRAMES):
            path = f"labeled-data/{name}/img{i:08d}.png"
            joints_now_px = {part: px[i] for part, px in joints_px.items()}
            image = draw_frame(background, [(joints_now_px, look)], rng, in_front[i])
            cv2.imwrite(str(folder / "project" / path), image[..., ::-1])
            if is_test or i % 2 == 0:
                labels.append([path, *(f"{value:.3f}" for value in keypoints_px[i].ravel())])
                sets.append([path, "unused" if is_test else "train"])
        if is_test:
            hidden.append([covered(leaves, points) for leaves, points in zip(in_front, keypoints_px, strict=True)])
    columns = [("synthetic", name, axis) for name in KEYPOINT_NAMES for axis in "xy"]
    header = [list(row) for row in zip(("scorer", "bodyparts", "coords"), *columns, strict=True)]
    _write(folder / "project" / "CollectedData.csv", [*header, *labels])
    _write(folder / "split.csv", [["path", "set"], *sets])
    found = np.array(hidden)
    np.save(folder / "hidden.npy", found)
    return found


def _write(file: Path, rows: list[list[str]]) -> None:
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)


def make_config(folder: Path, seed: int, network: str, steps: int) -> c.Config:
    """Returns the config of a network on the project of a seed."""
    config = c.Config(
        out=str(folder / network),
        data=c.DataConfig(
            project=str(folder / "project"),
            split=str(folder / "split.csv"),
            input_height_px=SIDE_PX,
            input_width_px=SIDE_PX,
            flip_pairs=("left_front_paw:right_front_paw", "left_hind_paw:right_hind_paw"),
        ),
        augment=c.AugmentConfig(preset="none", quarter_turns=(0, 1, 2, 3), flip_p=0.5),
        model=c.ModelConfig(
            kind="heatmap_context" if network.startswith("context") else "heatmap", backbone="resnet10", width=16
        ),
        optim=c.OptimConfig(lr=LR, schedule="cosine"),
        train=c.TrainConfig(steps=steps, batch_size=BATCH, seed=seed),
        eval=c.EvalConfig(predict_videos="no", batch_size=64),
        log=c.LogConfig(tensorboard=False, report=False),
    )
    if "-on-single" in network:
        config.train.init_from, config.train.steps = str(folder / "single"), MORE_STEPS
        config.optim.lr, config.optim.unfreeze_epoch, config.optim.unfreeze_factor = MORE_LR, 0, 1.0
    if network.endswith("-long"):
        config.train.steps = LONG * MORE_STEPS
    return config


def measure(work: Path, seed: int, network: str, steps: int) -> dict[str, Any]:
    """Trains a network; returns its JSON line."""
    folder = work / f"seed-{seed}"
    hidden = make_hidden(folder, seed)
    config = make_config(folder, seed, network, steps)
    wall, cpu = time.monotonic(), time.process_time()
    summary = train(config)
    if summary["exit_code"]:
        sys.exit(summary["exit_code"])
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    table = read_predictions(Path(config.out) / "predictions.csv")
    rows = np.flatnonzero(np.array(table.sets) == "unused")
    predicted_px = table.poses.points_px[rows, 0].reshape(*hidden.shape, 2)
    confidence = table.poses.one_animal()[1][rows].reshape(hidden.shape)
    tested = range(TRAIN_VIDEOS, TRAIN_VIDEOS + TEST_VIDEOS)
    truth_px = np.stack([_truth_px(seed, number) for number in tested])
    line: dict[str, Any] = {"network": network, "seed": seed, "steps": config.train.steps}
    for name, found_px in smoothed(predicted_px, confidence).items():
        errors = pixel_errors(found_px.reshape(-1, *found_px.shape[2:]), truth_px.reshape(-1, *truth_px.shape[2:]))
        errors = errors.reshape(hidden.shape)
        line[name] = {
            f"{part}_{what}_px": round(float(of(errors[chosen])), 4)
            for part, chosen in (("hidden", hidden), ("visible", ~hidden))
            for what, of in (("mean", np.mean), ("median", np.median))
        }
    line |= {"hidden_share": round(float(hidden.mean()), 4), "short_share": round(short_share(hidden), 4)}
    line |= {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "cpu_ms_per_step": round(1000 * cpu / line["steps"], 1)}
    return line | {"jax": jax.__version__, "machine": platform.processor() or platform.machine()}


def _truth_px(seed: int, number: int) -> np.ndarray:
    """Returns the keypoints (frames, k, 2) of a video, as `make_hidden` drew them."""
    rng = np.random.default_rng([seed, 0])
    draw_background(rng, SIDE_PX)
    size = draw_look(rng, SIDE_PX).size
    joints_px = walk(np.random.default_rng([seed, number, 2]), VIDEO_FRAMES, SIDE_PX, size)
    return np.stack([joints_px[part] for part in KEYPOINT_NAMES], axis=1)


def smoothed(predicted_px: np.ndarray, confidence: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the predictions (videos, frames, k, 2), and smoothed video by video with the default options."""
    found: dict[str, list[np.ndarray]] = {"median": [], "kalman": []}
    for points_px, of_points in zip(predicted_px, confidence, strict=True):
        poses = Poses.of_one_animal(KEYPOINT_NAMES, range(len(points_px)), points_px, of_points)
        used = smooth.is_used(poses, PREDICT.smooth_min_confidence)
        found["median"].append(smooth.median(poses, used, PREDICT.smooth_window)[0].points_px[:, 0])
        found["kalman"].append(smooth.kalman(poses, used)[0].points_px[:, 0])
    return {"raw": predicted_px} | {name: np.stack(points_px) for name, points_px in found.items()}


def short_share(hidden: np.ndarray) -> float:
    """Returns the share of hidden (frame, keypoint) that belong to a period of at most three frames."""
    beyond = np.pad(hidden, ((0, 0), (1, 1), (0, 0))).astype(int).transpose(0, 2, 1).ravel()
    turns = np.diff(beyond)
    frames = np.flatnonzero(turns == -1) - np.flatnonzero(turns == 1)
    return float(frames[frames <= 3].sum() / frames.sum())


def show(lines: list[dict[str, Any]]) -> None:
    """Prints each network, raw and smoothed, and by how much its errors are below those of `single`, in pairs."""
    of = {(line["network"], line["seed"]): line for line in lines}
    for network in NETWORKS:
        seeds = sorted(seed for name, seed in of if name == network)
        for how in ("raw", "median", "kalman") if seeds else ():
            text = f"{network:18} {how:7} {len(seeds)} seeds:"
            for part in ("hidden", "visible"):
                key = f"{part}_mean_px"
                text += f" {part} {np.mean([of[network, seed][how][key] for seed in seeds]):.2f} px"
                for other in ("raw", "median"):
                    pairs = [seed for seed in seeds if ("single", seed) in of and (network, how) != ("single", other)]
                    lower = np.array([of["single", seed][other][key] - of[network, seed][how][key] for seed in pairs])
                    if len(lower) > 1:
                        spread = lower.std(ddof=1) / len(lower) ** 0.5
                        text += f", lower than single {other} by {lower.mean():.2f} +- {spread:.2f}"
            print(f"{text}; {np.mean([of[network, seed]['cpu_s'] for seed in seeds]):.0f} CPU s")


def main() -> int:
    """Runs the missing measurements and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/hidden"), help="projects and run folders")
    arguments.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS), help="single first")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments.add_argument("--steps", type=int, default=STEPS)
    given = arguments.parse_args()
    work = given.work.resolve()
    for seed in given.seeds:
        for network in given.networks:
            if any((line["network"], line["seed"]) == (network, seed) for line in read_lines(given.out)):
                continue
            line = measure(work, seed, network, given.steps)
            append_line(given.out, line)
    show(read_lines(given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
