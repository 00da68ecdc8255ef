"""How many labels does a method on unlabelled video save?

    python benchmarks/few_labels.py --set mouse --project PATH/mirror-mouse-example --out benchmarks/few_labels.jsonl
    python benchmarks/few_labels.py --set synthetic --out benchmarks/few_labels.jsonl
    python benchmarks/few_labels.py --set lips --project PATH/Lips --out benchmarks/few_labels.jsonl

A network learns from n labelled frames, drawn at random, with or without the project's video. No frame is validated:
the last weights count. The error is that of labelled frames that were not drawn, in pixels of the frames: for `choice`,
by which options may be chosen, and for `test`, which chooses none. A seed decides the drawn frames and the first
weights, so the methods of a seed form a pair; differences are over frames that neither of the two trained on. With
`--validated`, some of the n frames validate instead of training, and `train.monitor` decides which weights count; give
a tag. The steps of `supervised-long` cost as much as those of `consistency`. `pretrained` starts from a backbone that
`jaxpose pretrain` made from the video of the set, one for each seed; its cost is `pretrain_cpu_s`.
`pretrained-consistency` has both. `ensemble` is the median of five networks; `everything` is that of five with the
teacher, moved parts and, on the mouse and its mirror image, views that agree. `student` is one network that also learns
the ensemble's points on frames of the videos (see ensemble_labels.py); its line excludes the ensemble's cost. With 80
labels the mouse has no test frame left: `choice` replaces `test`. For the mouse, `animal` means all frames that did not
train, `choice` included, without the keypoints of the obstacle, which its only video shows in one frame of twenty.
Appends one JSON line for each run, and skips those that the file has; an interrupted run resumes. A run has one thread
for its arithmetic, so start one process for each core, with its own seeds.
"""

import argparse
import copy
import csv
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import ensemble_labels
import few_labels_table
import jax
import numpy as np
from few_labels_sets import SETS, LabelledSet
from json_lines import append_line, read_lines

from jaxpose import config as c
from jaxpose.cluster.devices import keep_memory
from jaxpose.data.labels import read_labels
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.metrics import pixel_errors, spread_px
from jaxpose.prediction.ensemble import ranking_areas
from jaxpose.pretrain import pretrain
from jaxpose.train import train

FAR_PX = 20.0
STEPS, PRETRAIN_STEPS, LONG, MEMBERS = 500, 1000, 3, 5
BESIDE = ("supervised", "supervised-long")
METHODS = (
    "supervised", "supervised-long", "consistency", "pretrained", "pretrained-consistency", "ensemble", "everything",
    "student",
)  # fmt: skip


def drawn_rows(found: LabelledSet, count: int, seed: int) -> np.ndarray:
    """Returns the label rows that train: those of fewer labels are among those of more.

    Raises:
      UserError: there are fewer frames.
    """
    if count > len(found.drawable):
        raise UserError(f"there are {len(found.drawable)} frames to draw {count} labels from")
    return np.random.default_rng([0, seed]).permutation(found.drawable)[:count]


def measure(given: argparse.Namespace, method: str, count: int, seed: int) -> dict[str, Any]:
    """Trains a method on some labels; returns its JSON line."""
    found = SETS[given.set](given, seed)
    labels = read_labels(found.project / "CollectedData.csv", "ignore")
    rows = drawn_rows(found, count, seed)
    name = f"{given.set}-{count}-{seed}-{method}{given.tag}"
    split = given.work / f"{given.set}-{count}-{seed}{f'-{given.validated}' * bool(given.validated)}.csv"
    with split.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "set"))
        set_of = dict.fromkeys(rows, "train") | dict.fromkeys(rows[: given.validated], "validation")
        writer.writerows((path, set_of.get(row, "unused")) for row, path in enumerate(labels.poses.frames))
    config = found.base
    config.out, config.data.split = str(given.work / name), str(split.resolve())
    config.train.seed, config.train.steps = seed, given.steps * (LONG if method == "supervised-long" else 1)
    cost = {}
    everything = method == "everything"
    if "pretrained" in method:
        # Before the other options: a pretraining has no teacher.
        config.model.weights, cost = pretrained(given, found, seed)
    if everything:
        config.augment.move_p, config.model.views_agree = 0.5, bool(config.losses.pca_multiview.views)
    if "consistency" in method or everything:
        teacher = config.losses.consistency
        teacher.weight, teacher.start_steps, teacher.ramp_steps = 1.0, given.steps // 5, 2 * given.steps // 5
    if method == "ensemble" or everything:
        config.train.members, config.train.seed = MEMBERS, MEMBERS * seed
    for text in given.options:
        set_option(config, text)
    if method == "student":
        ensemble = given.work / f"{given.set}-{count}-{seed}-ensemble"
        if not (ensemble / "predictions.csv").exists():
            raise UserError(f"{ensemble} has no predictions; measure the method ensemble in this work folder first")
        split = ensemble_labels.make_project(found.project, rows, ensemble, given.work / f"{name}-project", seed)
        config.data.project, config.data.split = str(split.parent), str(split)
        # Half of a batch are frames of the videos: as many updates on labelled frames need twice the steps.
        config.train.steps *= 2
    wall, cpu = time.monotonic(), time.process_time()
    summary = train(config)
    if summary["exit_code"]:
        sys.exit(summary["exit_code"])
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    predicted = read_predictions(Path(config.out) / "predictions.csv")
    row_of = {path: row for row, path in enumerate(predicted.poses.frames)}
    order = [row_of[path] for path in labels.poses.frames]
    errors = pixel_errors(predicted.poses.points_px[order, 0], labels.keypoints_image_px)
    unseen = np.setdiff1d(np.arange(len(errors)), rows)
    line: dict[str, Any] = {"set": given.set, "labels": count, "seed": seed, "method": method + given.tag}
    tested = found.test if len(np.setdiff1d(found.test, rows)) > 0 else found.choice
    parts = {"choice": (found.choice, errors), "test": (tested, errors)}
    if views := found.base.losses.pca_multiview.views:
        columns = [labels.poses.keypoint_names.index(keypoint) for view in views for keypoint in view.split(",")]
        parts["animal"] = (np.arange(len(errors)), errors[:, columns])
    for part, (part_rows, part_errors) in parts.items():
        of_part = part_errors[np.intersect1d(part_rows, unseen)]
        line[part] = {
            "mean_px": float(np.nanmean(of_part)),
            "median_px": float(np.nanmedian(of_part)),
            "far_share": float((of_part[np.isfinite(of_part)] > FAR_PX).mean()),
            "frame_px": {
                str(row): round(float(np.nanmean(part_errors[row])), 3) for row in np.intersect1d(part_rows, unseen)
            },
        }
    if config.train.members > 1:
        members_px = np.stack([
            read_predictions(run / "predictions.csv").poses.points_px[order, 0]
            for run in sorted((Path(config.out) / "members").iterdir())
        ])  # fmt: skip
        spread = spread_px(members_px)
        among = np.isfinite(errors) & np.isin(np.arange(len(errors)), np.setdiff1d(tested, rows))[:, None]
        members_errors = [pixel_errors(points, labels.keypoints_image_px)[among] for points in members_px]
        line["member_px"] = [round(float(of_member.mean()), 3) for of_member in members_errors]
        line["above_10_px"] = ranking_areas(
            spread[among], 1 - predicted.poses.one_animal()[1][order][among], errors[among]
        )
    line |= {"steps": config.train.steps, "wall_s": round(wall, 1), "cpu_s": round(cpu, 1)} | cost
    return line | {"jax": jax.__version__, "machine": platform.processor() or platform.machine()}


def pretrained(given: argparse.Namespace, found: LabelledSet, seed: int) -> tuple[str, dict[str, Any]]:
    """Pretrains on the video of a set, if it is not done; returns the run folder and what it cost."""
    run = given.work / f"{given.set}-{seed}-pretrain{given.pretrain_steps}"
    file = run.with_suffix(".json")
    if not file.exists():
        config = copy.deepcopy(found.base)
        config.out, config.train.seed, config.train.steps = str(run), seed, given.pretrain_steps
        cpu = time.process_time()
        if code := pretrain(config)["exit_code"]:
            sys.exit(code)
        cost = {"pretrain_steps": given.pretrain_steps, "pretrain_cpu_s": round(time.process_time() - cpu, 1)}
        file.write_text(json.dumps(cost))
    return str(run), json.loads(file.read_text())


def set_option(config: c.Config, text: str) -> None:
    """Sets an option that is given as section.name=JSON."""
    name, _, value = text.partition("=")
    *sections, option = name.split(".")
    section: Any = config
    for part in sections:
        section = getattr(section, part)
    try:
        found = json.loads(value)
    except ValueError:
        raise UserError(f"--options has {text!r}; it must be OPTION=JSON (a text has quotes)") from None
    setattr(section, option, tuple(found) if isinstance(found, list) else found)


def main() -> int:
    """Runs the missing measurements and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--set", choices=list(SETS), required=True)
    arguments.add_argument("--project", type=Path, help="its folder; the synthetic animal needs none")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/few_labels"), help="projects and run folders")
    arguments.add_argument("--labels", type=int, nargs="+", default=[10, 20, 40, 80])
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments.add_argument("--steps", type=int, default=STEPS)
    arguments.add_argument("--pretrain_steps", type=int, default=PRETRAIN_STEPS, help="of the method pretrained")
    arguments.add_argument(
        "--parts", nargs="+", choices=few_labels_table.PARTS, default=["test", "choice"], help="that are printed"
    )
    arguments.add_argument(
        "--beside",
        nargs="+",
        help=f"methods, tag included, to compare with; default: {' and '.join(BESIDE)}, if they were measured",
    )
    arguments.add_argument("--validated", type=int, default=0, help="frames of each n that do not train, but validate")
    arguments.add_argument("--tag", default="", help="appended to the name of a method whose options are others")
    arguments.add_argument("--options", nargs="*", default=[], help="options, section.name=JSON")
    given = arguments.parse_args()
    if given.validated and "student" in given.methods:
        arguments.error("--validated: the method student has frames of its own to train on")
    for flag, least in (("labels", 1), ("seeds", 0), ("steps", 1), ("pretrain_steps", 1), ("validated", 0)):
        if (smallest := np.min(getattr(given, flag))) < least:
            arguments.error(f"--{flag} is {smallest}; it must be at least {least}")
    given.work = given.work.resolve()
    given.work.mkdir(parents=True, exist_ok=True)
    if given.project:
        given.project = given.project.resolve()
    ours = {method + given.tag for method in given.methods}
    known = ours | {line["method"] for line in read_lines(given.out)}
    if unknown := [method for method in given.beside or () if method not in known]:
        arguments.error(f"--beside: no line is of {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    beside = given.beside or [method for method in BESIDE if method in known]
    # As the command line does.
    keep_memory(c.MeshConfig())
    for seed in given.seeds:
        for count in given.labels:
            for method in given.methods:
                key = (given.set, count, seed, method + given.tag)
                if key in {
                    tuple(line[name] for name in ("set", "labels", "seed", "method")) for line in read_lines(given.out)
                }:
                    continue
                if given.set != "synthetic" and not given.project:
                    arguments.error(f"--set {given.set}: give the folder of its project with --project")
                try:
                    line = measure(given, method, count, seed)
                except (UserError, FileNotFoundError) as error:
                    arguments.error(str(error))
                append_line(given.out, line)
    few_labels_table.show(read_lines(given.out), given.parts, beside)
    return 0


if __name__ == "__main__":
    sys.exit(main())
