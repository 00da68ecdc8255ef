"""How accurate is a network trained from scratch on 72 real frames, compared with the reference trainer?

    python benchmarks/accuracy.py --project PATH/mirror-mouse-example --out benchmarks/accuracy.jsonl

The protocol is the reference's: resnet18 without pretrained weights, 128 x 128 px, preset dlc, 10,800 frames seen in
batches of 16 (675 steps), Adam at 1e-3 halved three times, the checkpoint with the lowest validation loss, a fixed
split. Appends one JSON line for each seed, and skips seeds that the file has for the same norm and shards:

    python benchmarks/accuracy.py --project PATH/mirror-mouse-example --out benchmarks/accuracy.jsonl \
      --norm shard --shards 2
"""

import argparse
import csv
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxpose import config as c
from jaxpose.data.labels import read_labels
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.pose.metrics import pixel_errors
from jaxpose.train import train

VALIDATION = (51, 15, 52, 89, 30, 41, 50, 83, 64)
TEST = (21, 58, 3, 47, 48, 4, 44, 75, 9)
STEPS = 675
# Lightning Pose 2.4.0 under this protocol, two seeds: mean error of the validation and of the test frames, px.
REFERENCE_HELD_OUT_PX = 7.44


def make_config(
    project: Path, split: Path, out: Path, seed: int, norm: str = "sync", shards: int = 0, head: str = "lightning_pose"
) -> c.Config:
    """Returns the protocol's config, or that with another norm or head."""
    return c.Config(
        out=str(out),
        data=c.DataConfig(
            project=str(project), split=str(split), input_height_px=128, input_width_px=128, resize="stretch"
        ),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(backbone="resnet18", head=head, norm=norm),
        # 72 frames train, so an epoch is 5 steps: the rate halves after 338, 450 and 563 steps.
        optim=c.OptimConfig(milestones_epochs=(67.6, 90, 112.6)),
        train=c.TrainConfig(steps=STEPS, seed=seed, val_every_epochs=10, shards=shards),
        eval=c.EvalConfig(predict_videos="no"),
    )


def write_split(file: Path, images: Sequence[str]) -> None:
    """Writes the protocol's split as a CSV with columns path,set."""
    sets = {**dict.fromkeys(VALIDATION, "validation"), **dict.fromkeys(TEST, "test")}
    with file.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "set"))
        writer.writerows((image, sets.get(row, "train")) for row, image in enumerate(images))


def measure(project: Path, work: Path, seed: int, norm: str, shards: int, head: str) -> dict[str, Any]:
    """Trains one seed and returns its JSON line."""
    labels = read_labels(project / "CollectedData.csv", "ignore")
    work.mkdir(parents=True, exist_ok=True)
    split = work / "split.csv"
    write_split(split, labels.poses.frames)
    wall, cpu = time.monotonic(), time.process_time()
    run = work / f"{norm}-{shards}-{head}" / f"seed-{seed}"
    summary = train(make_config(project, split, run, seed, norm, shards, head))
    if summary["exit_code"]:
        sys.exit(summary["exit_code"])
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    found = read_predictions(run / "predictions.csv")
    errors = pixel_errors(found.poses.points_px[:, 0], labels.keypoints_image_px)
    sets = np.array(found.sets)
    line: dict[str, Any] = {"norm": norm, "shards": shards, "head": head, "seed": seed}
    line["best_step"] = summary["best_step"]
    for name in ("train", "validation", "test"):
        chosen = errors[sets == name]
        line[name] = {"mean_px": float(np.nanmean(chosen)), "median_px": float(np.nanmedian(chosen))}
    line["held_out_mean_px"] = (line["validation"]["mean_px"] + line["test"]["mean_px"]) / 2
    frames = [*VALIDATION, *TEST]
    line["held_out_frame_mean_px"] = {str(row): float(np.nanmean(errors[row])) for row in frames}
    line |= {"steps": STEPS, "wall_s": wall, "cpu_s": cpu, "cpu_ms_per_step": 1000 * cpu / STEPS}
    line |= {"jax": jax.__version__, "machine": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    return line


def main() -> int:
    """Measures the seeds that are missing and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--project", type=Path, required=True, help="the mirror-mouse-example folder")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/accuracy"), help="run folders")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    arguments.add_argument("--norm", default="sync", help="model.norm")
    arguments.add_argument("--shards", type=int, default=0, help="train.shards")
    arguments.add_argument("--head", default="lightning_pose", help="model.head; that of the reference by default")
    given = arguments.parse_args()
    written = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    # Lines from before these options lack them.
    usual = {"norm": "sync", "shards": 0, "head": "lightning_pose"}
    wanted = {"norm": given.norm, "shards": given.shards, "head": given.head}
    lines = [line for line in written if {name: line.get(name, value) for name, value in usual.items()} == wanted]
    for seed in given.seeds:
        if seed not in [line["seed"] for line in lines]:
            lines.append(measure(given.project.resolve(), given.work, seed, **wanted))
            with given.out.open("a") as stream:
                stream.write(json.dumps(lines[-1]) + "\n")
    for line in lines:
        errors = "  ".join(
            f"{name} {line[name]['mean_px']:.2f} ({line[name]['median_px']:.2f})"
            for name in ("train", "validation", "test")
        )
        cpu_ms = line["cpu_ms_per_step"]
        cost = f"{cpu_ms:.0f} CPU ms a step" if cpu_ms else line["note"]
        print(f"seed {line['seed']}  {errors}  held out {line['held_out_mean_px']:.2f} px, {cost}")
    held_out = np.array([line["held_out_mean_px"] for line in lines])
    spread = f" +- {held_out.std(ddof=1):.2f} (standard deviation)" if len(held_out) > 1 else ""
    print(f"held out, {len(held_out)} seeds: {held_out.mean():.2f}{spread} px; reference {REFERENCE_HELD_OUT_PX} px")
    return 0


if __name__ == "__main__":
    sys.exit(main())
