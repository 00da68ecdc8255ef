"""How accurate are the poses of two flies, compared with sleap-nn, in the same CPU time?

    python benchmarks/several_animals.py DATA --peer PATH/bin/python --out benchmarks/several_animals.jsonl

DATA has clip.mp4, clip.slp, two_flies.mp4 and two_flies.slp. All methods train on 100 frames of the clip, every 10th of
the first 1,000, and choose their weights on frames of its last 500. The figures are of all frames of the other
recording. jaxpose trains a finder and a pose network, from random weights and labels alone (jaxpose), or from
--weights, torchvision's file of a MobileNetV2, with the clip as unlabelled video (jaxpose-video). sleap-nn, in an
environment of its own, trains a network of centres and one of poses (sleap-top-down), or one network of keypoints and
limbs (sleap-bottom-up), by configurations that this script writes. A run has one thread for its arithmetic, and
--minutes of CPU time for all its trainings: those of sleap-nn end when they have used it, those of jaxpose have a
number of epochs or steps. Appends one JSON line for each run, with what it used, and skips those that the file has; an
interrupted run goes on after its last finished training. Several processes may run at once, each with its own methods
or seeds. Without --peer, prints the tables of the file; the second one needs the predictions in --work.
"""

import argparse
import csv
import importlib.metadata
import itertools
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from json_lines import append_line, read_lines
from sleap_io.io.main import load_slp
from sleap_io.model.labels import Labels

from jaxpose.pose.metrics import of_labelled_animals, summarize_animals
from jaxpose.prediction.predictor import load

LABELS, VIDEO = OURS = ("jaxpose", "jaxpose-video")
TOP_DOWN, BOTTOM_UP = PEERS = ("sleap-top-down", "sleap-bottom-up")
METHODS = (*OURS, *PEERS)
ANIMALS = 2
TRAINING, LAST = range(0, 1000, 10), range(1000, 1500)
# The trainings of each method of sleap-nn, and the share of the CPU time that each has. A later one also has what an
# earlier one did not use.
STAGES = {TOP_DOWN: {"centroid": 1 / 2, "centered_instance": 1 / 2}, BOTTOM_UP: {"bottomup": 1.0}}
# The values of sleap-nn's sample configurations config_centroid_unet, config_topdown_centered_instance_unet_medium_rf
# and config_bottomup_unet_medium_rf.
UNETS = {
    "centroid": {"filters": 16, "max_stride": 16, "output_stride": 2},
    "centered_instance": {"filters": 24, "max_stride": 16, "output_stride": 4},
    "bottomup": {"filters": 16, "max_stride": 32, "output_stride": 4},
}
HEADS = {
    "centroid": {"confmaps": {"sigma": 2.5, "output_stride": 2}},
    "centered_instance": {"confmaps": {"sigma": 2.5, "output_stride": 4, "loss_weight": 1.0}},
    "bottomup": {
        "confmaps": {"sigma": 2.5, "output_stride": 4, "loss_weight": 1.0},
        "pafs": {"sigma": 75.0, "output_stride": 8, "loss_weight": 1.0},
    },
}
SCALES = {"centroid": 0.5, "centered_instance": 1.0, "bottomup": 1.0}
# In epochs of the sample configurations, which have this many steps.
SAMPLE_STEPS = 200
RATE_PATIENCE = {"centroid": 5, "centered_instance": 5, "bottomup": 8}
STOP_PATIENCE = {"centroid": 20, "centered_instance": 10, "bottomup": 10}
# The options of docs/few_labels.md (a teacher on the video, moved parts, published weights) and those of flies, which
# face any direction and are mirror images of themselves.
VIDEO_OPTIONS = {
    "model.backbone": "mobilenet_v2",
    "optim.unfreeze_epoch": 0,
    "optim.unfreeze_factor": 1.0,
    "optim.schedule": "cosine",
    "optim.lr": 2e-3,
    "losses.consistency.weight": 1,
    "augment.move_p": 0.5,
    "augment.flip_p": 0.5,
    "augment.rotate_p": 1,
    "data.input_width_px": 128,
    "data.input_height_px": 128,
    "train.val_every_epochs": 8,
}
PEER_PACKAGES = ("sleap-nn", "torch", "lightning", "sleap-io")
# The CPU time of a training is looked at this often.
_PAUSE_S = 0.5


def main() -> int:
    """Runs the missing measurements and prints the tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path, help="folder with both recordings and their labels")
    arguments.add_argument("--peer", type=Path, help="Python of an environment with sleap-nn; without, only the tables")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/several_animals"), help="networks and predictions")
    arguments.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments.add_argument("--minutes", type=float, default=45, help="CPU minutes of a method's trainings")
    arguments.add_argument("--validation", type=int, default=50, help="frames of the last 500 that choose the weights")
    arguments.add_argument("--epochs", type=int, default=70, help="of jaxpose")
    arguments.add_argument("--steps", type=int, default=800, help="of jaxpose-video")
    arguments.add_argument("--weights", type=Path, help="torchvision's file of a MobileNetV2, for jaxpose-video")
    arguments.add_argument("--epoch_steps", type=int, default=25, help="steps of sleap-nn between validations")
    given = arguments.parse_args()
    given.data, given.work = given.data.resolve(), given.work.resolve() / f"{given.minutes:g}-{given.validation}"
    if given.peer:
        for seed in given.seeds:
            for method in given.methods:
                of_file = {(line["method"], line["seed"], line["minutes"]) for line in read_lines(given.out)}
                if (method, seed, given.minutes) not in of_file:
                    append_line(given.out, measure(given, method, seed))
    lines = [line for line in read_lines(given.out) if line["minutes"] == given.minutes]
    show(lines)
    show_pairs(lines, given)
    return 0


def write_labels(given: argparse.Namespace, work: Path) -> None:
    """Writes train.slp and validation.slp for sleap-nn, and labels.slp, which has both, with split.csv for jaxpose."""
    work.mkdir(parents=True, exist_ok=True)
    labels = load_slp(str(given.data / "clip.slp"))
    labels.videos[0].replace_filename(str(given.data / "clip.mp4"))
    sets = {"train": TRAINING, "validation": LAST[:: len(LAST) // given.validation][: given.validation]}
    for name, numbers in {**sets, "labels": [*sets["train"], *sets["validation"]]}.items():
        frames = [frame for frame in labels.labeled_frames if frame.frame_idx in set(numbers)]
        some = Labels(frames, videos=labels.videos, skeletons=labels.skeletons, tracks=labels.tracks)
        some.save(str(work / f"{name}.slp"))
    with open(work / "split.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "set"))
        for name, numbers in sets.items():
            writer.writerows((f"labels.slp/clip/img{number:08}.bmp", name) for number in numbers)


def measure(given: argparse.Namespace, method: str, seed: int) -> dict[str, Any]:
    """Trains a method, predicts the other recording and returns the JSON line."""
    work = given.work / f"{method}-{seed}"
    write_labels(given, work)
    if method in OURS:
        cpu_s = {"both": train_jaxpose(given, method, work, seed)}
        points_px, score = predict_jaxpose(given.data / "two_flies.mp4", work / "run")
        length = {"epochs": given.epochs} if method == LABELS else {"steps": given.steps}
        settings = length | _versions(None, ("jax", "jaxpose"))
    else:
        cpu_s = train_sleap(given, method, work, seed)
        points_px, score = predict_sleap(given, method, work)
        settings = {"epoch_steps": given.epoch_steps, "curves": {name: _curve(work / name) for name in cpu_s}}
        settings |= _versions(given.peer, PEER_PACKAGES)
    truth_px = _truth(given.data / "two_flies.slp")
    np.savez(_predictions(given, method, seed), points_px=points_px, score=score)
    line: dict[str, Any] = {"method": method, "seed": seed, "minutes": given.minutes, "validation": given.validation}
    line |= {"cpu_minutes": {name: round(spent / 60, 2) for name, spent in cpu_s.items()}}
    # Each method has left out what is below its own threshold.
    line |= summarize_animals(points_px, score, truth_px, 0.0)
    line["points_left_out"] = _left_out(points_px, score, truth_px)
    line |= settings
    line |= {"machine": platform.processor() or platform.machine(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(line), flush=True)
    return line


def train_jaxpose(given: argparse.Namespace, method: str, work: Path, seed: int) -> float:
    """Trains a finder and a pose network, and returns their CPU seconds."""
    options = {
        "out": work / "run",
        "resume": "overwrite",
        "data.split": work / "split.csv",
        "augment.preset": "dlc-top-down",
        "train.seed": seed,
        "mesh.cpu_threads": 1,
        "data.threads": 1,
        "eval.predict_videos": "no",
    } | _recipe(given, method)
    given_options = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "jaxpose", "train", str(work / "labels.slp"), *given_options]
    return _train(command, work, "run")


def _recipe(given: argparse.Namespace, method: str) -> dict[str, Any]:
    if method == VIDEO:
        teacher = {"start_steps": given.steps // 5, "ramp_steps": 2 * given.steps // 5}
        lengths = {f"losses.consistency.{name}": steps for name, steps in teacher.items()}
        return VIDEO_OPTIONS | lengths | {"model.weights": given.weights.resolve(), "train.steps": given.steps}
    thirds = [round(share * given.epochs, 1) for share in (1 / 2, 2 / 3, 5 / 6)]
    return {
        "model.backbone": "resnet18",
        "data.input_width_px": 192,
        "data.input_height_px": 192,
        "optim.milestones_epochs": ",".join(map(str, thirds)),
        "train.epochs": given.epochs,
        "train.val_every_epochs": max(given.epochs // 7, 1),
    }


def predict_jaxpose(video: Path, run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the points (f, n, k, 2) of the animals of each frame and their scores (f, n)."""
    points_px, confidence = load(run).predict_video(video)
    return points_px, np.nan_to_num(confidence).mean(axis=-1)


def train_sleap(given: argparse.Namespace, method: str, work: Path, seed: int) -> dict[str, float]:
    """Trains the networks of a method of sleap-nn, and returns the CPU seconds of each."""
    spent: dict[str, float] = {}
    planned = 0.0
    for name, share in STAGES[method].items():
        planned += 60 * given.minutes * share
        config = work / f"{name}.yaml"
        # JSON is YAML.
        config.write_text(json.dumps(sleap_config(given, name, work, seed), indent=1))
        command = [str(given.peer.parent / "sleap-nn"), "train", str(config)]
        spent[name] = _train(command, work, name, limit_s=planned - sum(spent.values()))
    return spent


def sleap_config(given: argparse.Namespace, name: str, work: Path, seed: int) -> dict[str, Any]:
    """Returns the configuration of a network of sleap-nn.

    It differs from the sample configuration by these: labels, seed, the CPU, images kept in memory, no pictures during
    training, rotations by any angle, and the number of steps between validations.
    """
    unet = {"in_channels": 1, "kernel_size": 3, "filters_rate": 2.0, "middle_block": True, "up_interpolate": True}
    unet |= {"stacks": 1, "convs_per_block": 2} | UNETS[name]
    turns = {"rotation_min": -180.0, "rotation_max": 180.0, "scale_min": 0.9, "scale_max": 1.1, "affine_p": 1.0}
    preprocessing = {"ensure_rgb": False, "ensure_grayscale": False, "scale": SCALES[name]}
    # The same numbers of steps.
    epochs = (RATE_PATIENCE[name], 3, STOP_PATIENCE[name])
    patience, cooldown, stop = (number * SAMPLE_STEPS // given.epoch_steps for number in epochs)
    plateau = {"threshold": 1e-8, "threshold_mode": "abs", "cooldown": cooldown, "patience": patience}
    stopping = {"stop_training_on_plateau": True, "min_delta": 1e-8, "patience": stop}
    return {
        "data_config": {
            "train_labels_path": [str(work / "train.slp")],
            "val_labels_path": [str(work / "validation.slp")],
            "data_pipeline_fw": "torch_dataset_cache_img_memory",
            "preprocessing": preprocessing | {"crop_size": None, "min_crop_size": 100},
            "use_augmentations_train": True,
            "augmentation_config": {"geometric": turns},
        },
        "model_config": {
            "init_weights": "default",
            "backbone_config": {"unet": unet},
            "head_configs": {name: HEADS[name]},
        },
        "trainer_config": {
            "train_data_loader": {"batch_size": 4, "shuffle": True, "num_workers": 0},
            "val_data_loader": {"batch_size": 4, "shuffle": False, "num_workers": 0},
            "model_ckpt": {"save_top_k": 1, "save_last": False},
            "trainer_accelerator": "cpu",
            "trainer_devices": 1,
            "enable_progress_bar": False,
            "train_steps_per_epoch": given.epoch_steps,
            "min_train_steps_per_epoch": given.epoch_steps,
            "visualize_preds_during_training": False,
            "max_epochs": 200,
            "seed": seed,
            "save_ckpt": True,
            "ckpt_dir": str(work),
            "run_name": name,
            "optimizer_name": "Adam",
            "optimizer": {"lr": 1e-4, "amsgrad": False},
            "lr_scheduler": {"reduce_lr_on_plateau": plateau | {"factor": 0.5, "min_lr": 1e-8}},
            "early_stopping": stopping,
        },
    }


def predict_sleap(given: argparse.Namespace, method: str, work: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the points (f, n, k, 2) of the animals of each frame and their scores (f, n), as sleap-nn counts them."""
    out, frames = work / "predictions.slp", len(_truth(given.data / "two_flies.slp"))
    command = [str(given.peer.parent / "sleap-nn"), "predict", "--data_path", str(given.data / "two_flies.mp4")]
    for name in STAGES[method]:
        if not (work / name / "best.ckpt").is_file():
            sys.exit(
                f"{work / name} has no weights: its training ended before its first validation; give more --minutes"
            )
        command += ["--model_paths", str(work / name)]
    _run(
        [*command, "--output_path", str(out), "--device", "cpu", "--max_instances", str(ANIMALS)], work / "predict.log"
    )
    labels: Any = load_slp(str(out), open_videos=False)
    points_px = np.full((frames, ANIMALS, len(labels.skeletons[0].nodes), 2), np.nan)
    score = np.zeros((frames, ANIMALS))
    for frame in labels.labeled_frames:
        for place, animal in enumerate(frame.predicted_instances):
            points_px[frame.frame_idx, place], score[frame.frame_idx, place] = animal.numpy(), animal.score
    return points_px, score


def _train(command: Sequence[str], work: Path, name: str, limit_s: float = np.inf) -> float:
    """Runs a training that has not finished yet, and returns the CPU seconds that it has used."""
    finished = work / f"{name}.finished"
    if not finished.is_file():
        spent = _run(command, work / f"{name}.log", limit_s)
        finished.write_text(json.dumps(spent))
    return json.loads(finished.read_text())


def _run(command: Sequence[str], log: Path, limit_s: float = np.inf) -> float:
    """Runs a command with one thread until its end, or the end of its CPU time, and returns its CPU seconds."""
    one = {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    before, is_over = _children_s(), False
    with open(log, "w") as stream:
        child = subprocess.Popen(command, env=os.environ | one, stdout=stream, stderr=stream)
        while not is_over and child.poll() is None:
            time.sleep(_PAUSE_S)
            is_over = _spent_s(child.pid) > limit_s
        if is_over:
            child.terminate()
        ended = child.wait()
    if ended and not is_over:
        sys.exit(f"{' '.join(command)} ended with {ended}; its output is in {log}")
    return _children_s() - before


def _spent_s(process: int) -> float:
    """Returns the CPU seconds of a child that has not been waited for, and those of its own ended children."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _truth(file: Path) -> np.ndarray:
    """Returns the labelled points (f, a, k, 2) of all frames."""
    labels = load_slp(str(file), open_videos=False)
    frames = sorted(labels.labeled_frames, key=lambda frame: frame.frame_idx)
    return np.stack([np.stack([animal.numpy() for animal in frame.instances]) for frame in frames])


def _left_out(points_px: np.ndarray, score: np.ndarray, truth_px: np.ndarray) -> float | None:
    """Returns the share of the labelled points of animals found that are not predicted: they have no error."""
    found_px, _ = of_labelled_animals(points_px, score, truth_px, 0.0)
    is_found, is_labelled = (np.isfinite(points[..., 0]) for points in (found_px, truth_px))
    counted = is_found.any(axis=2, keepdims=True) & is_labelled
    return round(float((~is_found)[counted].mean()), 4) if counted.any() else None


def _versions(python: Path | None, names: Sequence[str]) -> dict[str, str]:
    if python is None:
        return {name: importlib.metadata.version(name) for name in names}
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {list(names)}}}))"
    return json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout)


def _curve(folder: Path) -> list[dict[str, float]]:
    """Returns the losses of each epoch of sleap-nn that has ended."""
    file = folder / "training_log.csv"
    if not file.is_file():
        return []
    with open(file, newline="") as stream:
        rows = list(csv.DictReader(stream))
    wanted = ("train/loss", "val/loss", "train_loss", "val_loss")
    return [{name: round(float(row[name]), 8) for name in wanted if row.get(name)} for row in rows]


def _predictions(given: argparse.Namespace, method: str, seed: int) -> Path:
    return given.work / f"{method}-{seed}.npz"


def show(lines: Sequence[dict[str, Any]]) -> None:
    """Prints a row for each run."""
    print("| method | seed | mean (median) px | AP (0.1) | recall | false a frame | missed | CPU minutes |")
    print("|---|---|---|---|---|---|---|---|")
    for line in sorted(lines, key=lambda line: (METHODS.index(line["method"]), line["seed"])):
        pixels = "-"
        if line["mean_px_error"] is not None:
            pixels = f"{line['mean_px_error']:.2f} ({line['median_px_error']:.2f})"
        cells = [line["method"], str(line["seed"]), pixels, f"{line['oks_ap']['0.1']:.3f}", f"{line['recall']:.3f}"]
        cells += [f"{line['false_per_frame']:.3f}", f"{line['missed']} of {line['animals']}"]
        cells.append(f"{sum(line['cpu_minutes'].values()):.1f}")
        print(f"| {' | '.join(cells)} |")


def show_pairs(lines: Sequence[dict[str, Any]], given: argparse.Namespace) -> None:
    """Prints the errors of jaxpose and of each peer on the points of animals that both match."""
    runs = {(line["method"], line["seed"]) for line in lines}
    truth_px = _truth(given.data / "two_flies.slp")
    print("\n| jaxpose | peer | seed | animals that both match | mean (median) px | of the peer | ratio of the means |")
    print("|---|---|---|---|---|---|---|")
    for ours, method, seed in itertools.product(OURS, PEERS, sorted({seed for _, seed in runs})):
        files = [_predictions(given, name, seed) for name in (ours, method)]
        if not {(ours, seed), (method, seed)} <= runs or not all(file.is_file() for file in files):
            continue
        errors = []
        for file in files:
            with np.load(file) as known:
                points_px, _ = of_labelled_animals(known["points_px"], known["score"], truth_px, 0.0)
            errors.append(np.linalg.norm(points_px - truth_px, axis=-1))
        both = np.isfinite(errors[0]) & np.isfinite(errors[1])
        if not both.any():
            print(f"| {ours} | {method} | {seed} | 0 | - | - | - |")
            continue
        means, medians = ([function(error[both]) for error in errors] for function in (np.mean, np.median))
        cells = [f"{mean:.2f} ({median:.2f})" for mean, median in zip(means, medians, strict=True)]
        cells = [ours, method, str(seed), str(both.any(axis=2).sum()), *cells, f"{means[0] / means[1]:.2f}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
