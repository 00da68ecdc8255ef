"""What do published weights bring?

    python benchmarks/pretrained.py --set lips --project PATH/Lips --weights mobilenet_v2=FILE dinov2_small=FILE \
      --out benchmarks/pretrained.jsonl
    python benchmarks/pretrained.py --out benchmarks/pretrained.jsonl

Networks of the published width learn from n labelled frames, from random or from published weights, with or without
the videos of the set. The sets, their frames, and what a seed decides are those of few_labels.py. Rows are named
NETWORK[-scratch][+RECIPE][+video]: a recipe of RECIPES replaces options of the network, `+video` adds a teacher, moved
parts and, on the mouse and its mirror image, views that agree. Appends one JSON line for each run, and skips those that
the file has; an interrupted run resumes. A run has one thread for its arithmetic. Without --set, prints the table.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import few_labels
import numpy as np
from json_lines import append_line, read_lines

from jaxpose import config as c
from jaxpose.cluster.devices import keep_memory
from jaxpose.errors import UserError

VIDEO = ("augment.move_p=0.5",)
# Beyond those of few_labels.py: cosine, 500 steps of 16 frames, optim.lr=2e-3, preset dlc.
NETWORKS: dict[str, tuple[str, ...]] = {
    "resnet18": ('model.backbone="resnet18"', "model.width=64"),
    "mobilenet_v2": ('model.backbone="mobilenet_v2"', "model.width=64"),
    "dinov2_small": ('model.backbone="dinov2_small"', "model.width=64", "optim.lr=1e-3", "optim.clip_norm=1.0"),
}
RECIPES: dict[str, tuple[str, ...]] = {
    "frozen": ('model.norm="frozen"',),
    "lr1": ("optim.lr=1e-3",),
    "lr4": ("optim.lr=4e-3",),
    "slow": ("optim.backbone_lr_factor=0.1",),
    "slower": ("optim.backbone_lr_factor=0.03",),
    "atonce": ("optim.unfreeze_epoch=0", "optim.unfreeze_factor=1.0"),
    "px192": ("data.input_width_px=192", "data.input_height_px=192"),
    "never": ("optim.unfreeze_epoch=1000000",),
}


def row_options(data: str, row: str, weights: dict[str, str]) -> list[str]:
    """Returns the options of a row, each section.name=JSON, for a set and the files of published weights.

    Raises:
      UserError: a row is unknown, or its weights were not given.
    """
    name, *recipes = row.split("+")
    network = name.removesuffix("-scratch")
    if network not in NETWORKS or not {*RECIPES, "video"} >= set(recipes):
        raise UserError(f"--rows has {row}; the networks are {list(NETWORKS)}, the recipes {[*RECIPES, 'video']}")
    options = [*NETWORKS[network], *(option for recipe in recipes for option in RECIPES.get(recipe, ()))]
    if name == network != "resnet18":
        if network not in weights:
            raise UserError(f"--rows has {row}; give its file: --weights {network}=FILE")
        options.append(f'model.weights="{Path(weights[network]).resolve()}"')
    if "video" in recipes:
        options += [*VIDEO, *(["model.views_agree=true"] if data == "mouse" else [])]
    return options


def read_weights(given: list[str]) -> dict[str, str]:
    """Returns {network: file} of --weights.

    Raises:
      UserError: one is not NETWORK=FILE.
    """
    if wrong := [text for text in given if "=" not in text]:
        raise UserError(f"--weights has {wrong[0]}; it must be NETWORK=FILE")
    return dict(text.split("=", 1) for text in given)


def measure(given: argparse.Namespace, row: str, count: int, seed: int) -> dict[str, Any]:
    """Trains a row's network on some labels; returns its JSON line.

    Raises:
      UserError: a row is unknown, or its weights were not given.
    """
    options = row_options(given.set, row, read_weights(given.weights))
    # A run folder belongs to one number of steps.
    asked = argparse.Namespace(**vars(given), tag=f"-{_name(row, given.steps)}", options=options, validated=0)
    method = "consistency" if "video" in row.split("+") else "supervised"
    return few_labels.measure(asked, method, count, seed) | {"method": _name(row, given.steps)}


def show(lines: list[dict[str, Any]], part: str) -> None:
    """Prints a Markdown table: the errors of each row, and their share of those from scratch with the same labels.

    The pairs have a seed in common. The last column but one is the share of the error of the same row without video,
    with twice the labels and the usual steps.
    """
    of = {_key(line): line[part] for line in lines}
    cpu_s = {_key(line): line["cpu_s"] for line in lines}
    names = ("set", "labels", "row", "seeds", "mean (median) px, above 20 px", "of resnet18", "of 2 n", "CPU s")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for data, labels, row in sorted({key[:3] for key in of}):
        seeds = sorted(seed for *key, seed in of if key == [data, labels, row])
        found = [of[data, labels, row, seed] for seed in seeds]
        mean, median, far = (np.mean([one[name] for one in found]) for name in ("mean_px", "median_px", "far_share"))
        cells = [data, str(labels), f"`{row}`", str(len(seeds)), f"{mean:.2f} ({median:.2f}), {100 * far:.1f} %"]
        for count, other in ((labels, "resnet18"), (2 * labels, row.split("@")[0].removesuffix("+video"))):
            pairs = [
                (of[data, labels, row, seed]["mean_px"], of[data, count, other, seed]["mean_px"])
                for seed in seeds
                if (data, count, other, seed) in of and (count, other) != (labels, row)
            ]
            ours, theirs = np.mean(pairs, 0) if pairs else (0.0, 0.0)
            cells.append(f"{ours / theirs:.2f}" + f" ({len(pairs)})" * (len(pairs) != len(seeds)) if pairs else "")
        spent = np.mean([cpu_s[data, labels, row, seed] for seed in seeds])
        print(f"| {' | '.join([*cells, f'{spent:.0f}'])} |")


def make_arguments(description: str, work: str) -> argparse.ArgumentParser:
    """Returns the flags that say what is trained, and where its lines and run folders are."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--set", choices=["lips", "mouse"], help="without one, the table is printed")
    arguments.add_argument("--project", type=Path, help="the folder of the set's project")
    arguments.add_argument("--weights", nargs="*", default=[], metavar="NETWORK=FILE", help="published weights")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path(work), help="projects and run folders")
    arguments.add_argument("--steps", type=int, default=few_labels.STEPS)
    return arguments


def main() -> int:
    """Runs the missing measurements, or prints the table."""
    arguments = make_arguments(__doc__ or "", "runs/pretrained")
    arguments.add_argument("--labels", type=int, nargs="+", default=[10, 20, 40])
    arguments.add_argument("--rows", nargs="+", default=["resnet18", "mobilenet_v2"])
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments.add_argument("--part", choices=["test", "choice"], default="test", help="the frames of the table")
    given = arguments.parse_args()
    if not given.set:
        show(read_lines(given.out), given.part)
        return 0
    if not given.project:
        arguments.error(f"--set {given.set}: give the folder of its project with --project")
    given.work, given.project = given.work.resolve(), given.project.resolve()
    given.work.mkdir(parents=True, exist_ok=True)
    keep_memory(c.MeshConfig())
    for seed in given.seeds:
        for row in given.rows:
            for count in given.labels:
                name = _name(row, given.steps)
                key = (given.set, count, name, seed)
                if key in {
                    tuple(line[field] for field in ("set", "labels", "seed", "method"))
                    for line in read_lines(given.out)
                }:
                    continue
                try:
                    line = measure(given, row, count, seed)
                except (UserError, FileNotFoundError) as error:
                    arguments.error(str(error))
                append_line(given.out, line)
    show(read_lines(given.out), given.part)
    return 0


def _name(row: str, steps: int) -> str:
    return row + f"@{steps}" * (steps != few_labels.STEPS)


def _key(line: dict[str, Any]) -> tuple[str, int, str, int]:
    return line["set"], line["labels"], line["method"], line["seed"]


if __name__ == "__main__":
    sys.exit(main())
