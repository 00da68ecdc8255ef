"""Do several cameras that learn from each other have smaller errors than cameras on their own?

    taskset -c 1 python benchmarks/multiview.py --out benchmarks/multiview.jsonl

The synthetic animal walks among four calibrated cameras, and leaves drift in front of each. Of 160 moments, n are
labelled, drawn at random; a keypoint that a leaf hides has no label. The error is that of all other moments, in pixels
of frames of 96 px, for keypoints that are visible in their view and for those that are not. `separate` learns from the
labels of each view on its own. `reprojection` also learns where the labels of the other views show a keypoint,
`consistency` where the predictions of the other views show it on video, and `both` learns both. `vit` is a vision
transformer that sees single frames, and `multiview` is one that sees all cameras together; both take many times as
long, so name them in --methods. A seed makes the project, the draw and the first weights. A line of `separate` also
holds what the losses could teach: how often the predictions of 2 or 3 other views agree, and the errors of the place
that they show and of the own prediction there. Appends one JSON line for each run, and skips those that the file has.
"""

import argparse
import csv
import functools
import platform
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from json_lines import append_line, read_lines

from jaxpose import config as c
from jaxpose.cameras.triangulation import OUTLIER, triangulate
from jaxpose.data.labels import read_labels
from jaxpose.data.rigs import read_rigs
from jaxpose.data.synthetic import make_project
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.formats.prediction_table import PredictionTable
from jaxpose.pose.metrics import pixel_errors
from jaxpose.train import train

VIEWS, SESSIONS, LABELLED, VIDEO_FRAMES, SIDE_PX, LEAVES = ("c1", "c2", "c3", "c4"), 5, 32, 128, 96, 4
STEPS, BATCH, MOMENTS = 600, 16, (10, 20)
METHODS, OF_VIT = ("separate", "reprojection", "consistency", "both"), ("vit", "multiview")
# Views agree with a point within so many pixels; a place is apart from a prediction beyond so many.
AGREE_PX, APART_PX = 4.0, 6.0
# Losses on clips begin at this share of the steps, when the network predicts something.
START = 0.4


def drawn(count: int, seed: int) -> np.ndarray:
    """Returns the moments that train: those of fewer labels are among those of more."""
    return np.random.default_rng([0, seed]).permutation(SESSIONS * LABELLED)[:count]


def make_config(project: Path, out: Path, method: str, count: int, seed: int, steps: int, weights: str) -> c.Config:
    """Returns the config of a method, and writes its split."""
    moments = read_labels(project / "CollectedData_c1.csv", "ignore").poses.frames
    split = out.with_suffix(".csv")
    with split.open("w", newline="") as stream:
        writer, chosen = csv.writer(stream), set(drawn(count, seed).tolist())
        writer.writerow(("path", "set"))
        for view in VIEWS:
            writer.writerows(
                (path.replace("_c1/", f"_{view}/"), "train" if row in chosen else "unused")
                for row, path in enumerate(moments)
            )
    config = c.Config(
        out=str(out),
        data=c.DataConfig(
            project=str(project), views=VIEWS, split=str(split), input_width_px=SIDE_PX, input_height_px=SIDE_PX
        ),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(backbone="resnet18", width=16),
        optim=c.OptimConfig(lr=2e-3, schedule="cosine"),
        train=c.TrainConfig(steps=steps, batch_size=BATCH, seed=seed),
        eval=c.EvalConfig(predict_videos="no", batch_size=64),
        mesh=c.MeshConfig(cpu_threads=1),
        log=c.LogConfig(tensorboard=False, report=False),
    )
    if method in ("reprojection", "both"):
        config.losses.reprojection.weight = 0.5
    if method in ("consistency", "both"):
        config.losses.multiview_consistency.weight = 1e-3
        epochs = steps * BATCH / (count * len(VIEWS))
        config.losses.anneal_start_epochs, config.losses.anneal_increase_per_epoch = START * epochs, 5 / epochs
        config.video.clips_per_step, config.video.sequence_length = 2, 2
    if config.losses.reprojection.weight or config.losses.multiview_consistency.weight:
        config.data.calibration = "calibrations"
    if method in OF_VIT:
        config.model = c.ModelConfig(backbone="dinov2_small", weights=weights)
        config.optim.lr = 5e-5
    if method == "multiview":
        config.model.kind, config.train.batch_size = "multiview", BATCH // len(VIEWS)
    return config


def measure(given: argparse.Namespace, work: Path, method: str, count: int, seed: int) -> dict[str, Any]:
    """Trains a method; returns its JSON line."""
    tag, steps = given.tag, given.steps
    project = make_project(
        work / f"seed-{seed}", seed, SESSIONS, LABELLED, VIDEO_FRAMES, SIDE_PX, leaves=LEAVES, looks=1, cameras=4
    )
    run = work / f"{count}-{seed}-{method}{tag}"
    config = make_config(project, run, method, count, seed, steps, given.weights)
    for text in given.options:
        set_option(config, text)
    wall, cpu = time.monotonic(), time.process_time()
    summary = train(config)
    if summary["exit_code"]:
        sys.exit(summary["exit_code"])
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    tables = [read_predictions(Path(config.out) / f"predictions_{view}.csv") for view in VIEWS]
    predicted_px = np.stack([table.poses.points_px[:, 0] for table in tables])
    truth_px, is_visible = truth_of(project, [list(table.poses.frames) for table in tables])
    errors = np.stack([pixel_errors(*pair) for pair in zip(predicted_px, truth_px, strict=True)])
    is_test = np.array([name == "unused" for name in tables[0].sets or ()])
    errors, is_visible = errors[:, is_test], is_visible[:, is_test]
    line: dict[str, Any] = {"method": method + tag, "moments": count, "seed": seed, "steps": steps}
    for part, chosen in (("all", np.ones_like(is_visible)), ("visible", is_visible), ("hidden", ~is_visible)):
        line[part] = {"mean_px": round(float(errors[chosen].mean()), 3)}
        line[part]["median_px"] = round(float(np.median(errors[chosen])), 3)
    line["hidden_share"] = round(float((~is_visible).mean()), 4)
    if method == "separate":
        line["taught"] = taught(project, tables, truth_px, is_visible, is_test)
    line |= {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1)}
    return line | {"jax": jax.__version__, "machine": platform.processor() or platform.machine()}


def set_option(config: c.Config, text: str) -> None:
    """Sets an option given as NAME=VALUE, a number."""
    name, value = text.split("=")
    *sections, option = name.split(".")
    section = functools.reduce(getattr, sections, config)
    setattr(section, option, type(getattr(section, option))(float(value)))


def truth_of(project: Path, frames: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the true places (v, m, k, 2) in frames, and which of them have a label (v, m, k)."""
    places, visible = [], []
    for view, paths in zip(VIEWS, frames, strict=True):
        labels = read_labels(project / f"CollectedData_{view}.csv", "ignore")
        row_of = {path: row for row, path in enumerate(labels.poses.frames)}
        visible.append(np.isfinite(labels.keypoints_image_px[[row_of[path] for path in paths]]).all(-1))
        of_video = {}
        for path in paths:
            session, name = Path(path).parts[-2:]
            if session not in of_video:
                with (project / "ground_truth" / f"{session}.csv").open() as stream:
                    of_video[session] = np.array(list(csv.reader(stream))[3:], float)[:, 1:]
            places.append(of_video[session][int(Path(name).stem[3:])].reshape(-1, 2))
    is_visible = np.stack(visible)
    return np.reshape(places, (*is_visible.shape, 2)), is_visible


def taught(
    project: Path, tables: list[PredictionTable], truth_px: np.ndarray, is_visible: np.ndarray, is_test: np.ndarray
) -> dict[str, Any]:
    """Returns what the predictions of the other views could teach a view in the test moments.

    For 2 and 3 other views that agree: how often they do, the errors of their places and of the own predictions there,
    and how often the place is the better of the two; also where both are more than `APART_PX` apart. `mirrored` is the
    share of images in which the paws lie nearer to those of the other side.
    """
    data = c.DataConfig(project=str(project), views=VIEWS, calibration="calibrations")
    sessions = np.array([Path(path).parts[-2].removesuffix("_c1") for path in tables[0].poses.frames])
    points_px = np.stack([table.poses.points_px[:, 0] for table in tables])
    confidence = np.stack([table.poses.one_animal()[1] for table in tables])
    places_px, agreeing = np.full_like(points_px, np.nan), np.zeros(points_px.shape[:3], int)
    for session, cameras in read_rigs(data, sessions.tolist()).items():
        rows = sessions == session
        of_rig, sure = points_px[:, rows].reshape(len(VIEWS), -1, 2), confidence[:, rows].reshape(len(VIEWS), -1)
        for view in range(len(VIEWS)):
            others_px = np.where((np.arange(len(VIEWS)) == view)[:, None, None], np.nan, of_rig)
            points = triangulate(cameras, others_px, sure, AGREE_PX / OUTLIER)
            places_px[view, rows] = cameras.project(points.places)[view].reshape(-1, *points_px.shape[2:])
            agreeing[view, rows] = points.views.reshape(-1, points_px.shape[2])
    own, place = (np.linalg.norm(px - truth_px, axis=-1)[:, is_test] for px in (points_px, places_px))
    apart, agreeing = np.linalg.norm(places_px - points_px, axis=-1)[:, is_test] > APART_PX, agreeing[:, is_test]
    result: dict[str, Any] = {}
    for least in (2, 3):
        for part, chosen in (("visible", is_visible), ("hidden", ~is_visible), ("apart", apart)):
            here = chosen & (agreeing >= least) & np.isfinite(place)
            whole = apart.size if part == "apart" else chosen.sum()
            result[f"{part}_{least}"] = {
                "share": round(float(here.sum() / whole), 3),
                "own_median_px": round(float(np.median(own[here])), 2),
                "place_median_px": round(float(np.median(place[here])), 2),
                "place_is_better": round(float((place[here] < own[here]).mean()), 3),
            }
    names = list(tables[0].poses.keypoint_names)
    left, right = ([names.index(f"{side}_{part}_paw") for part in ("front", "hind")] for side in ("left", "right"))
    exchanged = np.linalg.norm(points_px[..., left + right, :] - truth_px[..., right + left, :], axis=-1)[:, is_test]
    result["mirrored"] = round(float((exchanged.mean(-1) < own[..., left + right].mean(-1)).mean()), 3)
    return result


def show(lines: list[dict[str, Any]]) -> None:
    """Prints a row for each method and number of labelled moments, as means over the seeds."""
    of = {(line["method"], line["moments"], line["seed"]): line for line in lines}
    for method, count in dict.fromkeys(key[:2] for key in of):
        here = [of[key] for key in of if key[:2] == (method, count)]
        text = f"{method:24} {count} moments, {len(here)} seeds:"
        for part in ("all", "visible", "hidden"):
            mean, median = (np.mean([line[part][name] for line in here]) for name in ("mean_px", "median_px"))
            text += f" {part} {mean:.2f} ({median:.2f}) px,"
        pairs = [
            line["all"]["mean_px"] / of["separate", count, line["seed"]]["all"]["mean_px"]
            for line in here if ("separate", count, line["seed"]) in of
        ]  # fmt: skip
        ratio = f" {np.mean(pairs):.2f} of separate," if pairs else ""
        print(f"{text}{ratio} {np.mean([line['cpu_s'] for line in here]):.0f} CPU s")


def main() -> int:
    """Runs the missing measurements and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/multiview"), help="projects and run folders")
    arguments.add_argument("--methods", nargs="+", choices=METHODS + OF_VIT, default=list(METHODS))
    arguments.add_argument("--moments", nargs="+", type=int, default=list(MOMENTS), help="labelled moments")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--steps", type=int, default=STEPS)
    arguments.add_argument("--options", nargs="*", default=[], help="options of a run, such as optim.lr=1e-3")
    arguments.add_argument("--weights", default="none", help="model.weights of vit and multiview, of a dinov2_small")
    arguments.add_argument("--tag", default="", help="ends the name of the method in the lines")
    given = arguments.parse_args()
    work = given.work.resolve()
    for seed in given.seeds:
        for count in given.moments:
            for method in given.methods:
                known = [(line["method"], line["moments"], line["seed"]) for line in read_lines(given.out)]
                if (method + given.tag, count, seed) in known:
                    continue
                line = measure(given, work, method, count, seed)
                append_line(given.out, line)
    show(read_lines(given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
