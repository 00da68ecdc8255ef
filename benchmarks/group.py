"""Are the animals of a synthetic group found, and do they keep their identities?

    python benchmarks/group.py --animals 5 14 --out benchmarks/group.jsonl

Makes a synthetic project whose videos have 2 up to so many animals, trains a finder and a pose network with the options
of configs/pose.py, predicts the videos of the test set, gives the detections of each video identities with `jaxpose
track --animals N`, where N is the true number, fills their gaps with `jaxpose smooth`, and compares both with the truth
in every frame. Appends a JSON line for each video, skips those that the file has, and prints the table. An interrupted
run resumes.
"""

import argparse
import dataclasses
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from json_lines import append_line, read_lines

from jaxpose.conversion.prediction_tables import read_table
from jaxpose.data.synthetic import make_project
from jaxpose.poses import Poses
from jaxpose.tracking.metrics import track_errors

OPTIONS = (
    "data.split=video", "data.train_share=0.7", "data.val_share=0.1", "augment.rotate_p=1", "augment.rotate_deg=180",
    "model.backbone=resnet18", "model.width=16", "optim.lr=5e-3", "optim.schedule=cosine", "train.val_every_epochs=5",
)  # fmt: skip


def measure(given: argparse.Namespace, animals: int) -> list[dict[str, Any]]:
    """Trains on a project and predicts its test videos; returns a JSON line for each."""
    small = animals <= 5
    project, run = given.work / f"group-{animals}", given.work / f"run-{animals}-{given.steps}"
    sizes = {"labelled_frames": 32, "side_px": 128} if small else {"labelled_frames": 16, "side_px": 256}
    make_project(project, videos=3 * (animals - 1), animals=animals, video_frames=given.frames, **sizes)
    train = ["jaxpose.train", project, *OPTIONS, f"train.steps={given.steps}", "eval.predict_videos=no"]
    cpu_s = {"train": _call([*train, f"out={run}"])}
    split = pd.read_csv(run / "split.csv")
    images = split.loc[split["set"] == "test", "path"]
    names = sorted({Path(image).parent.name for image in images})
    videos = [project / "videos" / f"{name}.mp4" for name in names]
    of_run, tables = ["jaxpose.predict", "--run", run], run / "tables"
    cpu_s["predict"] = _call([*of_run, *videos, "--animals", f"at-most:{animals}", "--out", tables, "--overwrite"])
    lines = []
    for name in names:
        truth = _read_truth(project / "ground_truth" / f"{name}.csv")
        there = len(truth.individuals)
        tracks = run / f"{name}_tracks.csv"
        detections = tables / "video_preds" / f"{name}_detections.csv"
        cpu_s["track"] = _call(["jaxpose.track", detections, "--animals", there, "--out", tracks, "--overwrite"])
        smoothed = run / f"{name}_tracks_smoothed.csv"
        cpu_s["smooth"] = _call(["jaxpose.smooth", tracks, "--method", "kalman", "--out", smoothed, "--overwrite"])
        line = {"animals": animals, "steps": given.steps, "video": name, "there": there, "frames": len(truth.frames)}
        line |= _errors(truth, tracks) | {"smoothed": _errors(truth, smoothed)}
        line |= {f"{kind}_cpu_s": round(s, 1) for kind, s in cpu_s.items()}
        lines.append(line | {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count()})
    return lines


def _read_truth(file: Path) -> Poses:
    """Returns the animals of a video: columns (scorer, individual, keypoint, x or y), and a row for each frame."""
    table = pd.read_csv(file, header=[0, 1, 2, 3], index_col=0).dropna(axis=1, how="all")
    individuals, names = (tuple(dict.fromkeys(table.columns.get_level_values(level))) for level in (1, 2))
    points_px = table.to_numpy().reshape(len(table), len(individuals), len(names), 2)
    identity = np.tile(np.arange(len(individuals)), (len(table), 1))
    return Poses(names, range(len(table)), points_px, identity=identity, individuals=individuals)


def _errors(truth: Poses, file: Path) -> dict[str, float]:
    """Returns the errors of tracks, and the mean and median error of the keypoints of the nearest animal."""
    tracked = read_table(file, several=True).placed().poses
    expected, found = truth.points_px, tracked.with_keypoints(truth.keypoint_names).points_px
    apart = np.linalg.norm(expected[:, :, None] - found[: len(expected), None], axis=-1)
    nearest = np.take_along_axis(apart, np.nan_to_num(np.mean(apart, -1), nan=1e9).argmin(2)[..., None, None], 2)
    errors = dataclasses.asdict(track_errors(truth, tracked))
    return errors | {"mean_px": float(np.nanmean(nearest)), "median_px": float(np.nanmedian(nearest))}


def _call(command: list[Any]) -> float:
    """Runs a module of jaxpose; returns its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(lines: list[dict[str, Any]]) -> None:
    """Prints the table, a row for each number of animals in a video."""
    names = ("project", "animals", "videos", "tracks", "found", "false a frame", "switches", "IDF1", "mean (median) px")
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for animals, there in sorted({(line["animals"], line["there"]) for line in lines}):
        of = [line for line in lines if (line["animals"], line["there"]) == (animals, there)]
        frames = sum(line["frames"] for line in of)
        for kind, errors in {"as tracked": of, "smoothed": [line["smoothed"] for line in of]}.items():
            missed, false, switches = (sum(one[name] for one in errors) for name in ("missed", "false", "switches"))
            idf1, mean, median = (np.mean([one[name] for one in errors]) for name in ("idf1", "mean_px", "median_px"))
            cells = [f"2 to {animals}", there, len(of), kind, f"{1 - missed / (frames * there):.4f}"]
            cells += [f"{false / frames:.3f}", switches, f"{idf1:.3f}", f"{mean:.2f} ({median:.2f})"]
            print(f"| {' | '.join(map(str, cells))} |")


def main() -> int:
    """Measures what is missing, and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--animals", type=int, nargs="*", default=[5, 14], help="the most animals of a video")
    arguments.add_argument("--steps", type=int, default=800)
    arguments.add_argument("--frames", type=int, default=256, help="frames of a video")
    arguments.add_argument("--work", type=Path, default=Path("runs/group"), help="projects and run folders")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    given = arguments.parse_args()
    given.work = given.work.resolve()
    given.work.mkdir(parents=True, exist_ok=True)
    for animals in given.animals:
        if (animals, given.steps) not in {(line["animals"], line["steps"]) for line in read_lines(given.out)}:
            for line in measure(given, animals):
                append_line(given.out, line)
    show(read_lines(given.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
