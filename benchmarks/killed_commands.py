"""Commands that are killed with -9 at many moments, and then called again, for benchmarks/faults.py."""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import cv2
import numpy as np
import pandas as pd

from jaxpose import __main__ as jaxpose
from jaxpose.data.synthetic import make_project
from jaxpose.formats.lightning_pose.tables import PredictionWriter
from jaxpose.labelling.project_labels import read_header
from jaxpose.run.paths import INDEX_FILE

# What each command is called with: PROJECT, RUN and others are made by `make_scene`, and OUT is a new folder. Those
# that change a project begin with a copy of it in OUT.
_START = "--session_start 2026-05-04T14:30:00+02:00"
COMMANDS = {
    "init": "init PROJECT --out OUT/config.py",
    "check": "check PROJECT --out OUT/check.html",
    "evaluate": "evaluate RUN --out OUT --platform cpu --devices 1",
    "predict": "predict --run RUN --out OUT --platform cpu --devices 1 --stretch_minutes 0.005 VIDEO",
    "track": "track DETECTIONS --animals 2 --out OUT/tracks.h5",
    "smooth": "smooth TABLE --min_confidence 0 --out OUT/smoothed.csv",
    "calibrate": "calibrate BOARD --board chessboard:8x5:20 --out OUT/calibration.toml",
    "triangulate": "triangulate --calibration RIG/calibrations/session00.toml c1=RIG/session00_c1.csv "
    "c2=RIG/session00_c2.csv c3=RIG/session00_c3.csv --smooth --reprojections OUT/seen --out OUT/points3d.csv",
    "draw": "draw VIDEO TABLE --out OUT/labeled.mp4",
    "crop": "crop --run RUN --out OUT VIDEO --size 24 --confidence 0",
    "report": "report --run RUN --out OUT/report.html",
    "suggest": "suggest --run RUN --frames 3 --apart 1 --out OUT/suggestions --h5",
    "labels merge": "labels merge LARGER/new.csv --project OUT",
    "convert labels": "convert labels PROJECT --to slp --out OUT/labels.pkg.slp",
    "convert predictions": f"convert predictions RUN --to nwb --out OUT {_START}",
    "convert cameras": "convert cameras RIG/calibrations/session00.toml --to jarvis --out OUT/cameras",
    "export": "export --run RUN --out OUT/mouse.onnx",
}
_CHANGES = {"labels merge": "PROJECT"}
# What the last command printed, in the folder of the benchmark.
LOG = "last.log"
# Events of Python that change the files.
_EVENTS = {
    f"os.{name}" for name in ("rename", "mkdir", "remove", "rmdir", "link", "symlink", "truncate", "chmod", "utime")
}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHESS, _SQUARE_PX = (8, 5), 24
LONGEST_S = 600


@dataclasses.dataclass(frozen=True)
class _Call:
    """A command in a process of its own.

    Attributes:
      is_killed: whether it was killed.
      code: its exit code otherwise.
      events: changes of files that it made.
      duration_s: seconds that it took.
    """

    is_killed: bool
    code: int
    events: int
    duration_s: float


def kill_command(name: str, work: Path, number: int, seed: int) -> dict[str, Any]:
    """Kills a command many times, each time from the start, and calls it again after each; returns a JSON line.

    Args:
      name: a key of COMMANDS.
      work: folder for what it reads and writes.
      number: of kills: at a random change of a file, or after a random time, by turns.
      seed: of the moments.
    """
    scene, out, chance = make_scene(work), work / "out", random.Random(f"{seed} {name}")
    # Without what only a first call does, such as compiling.
    for _ in range(2):
        _prepare(name, scene, out)
        first = _call(name, scene, out)
    whole, wrong, kills, calls, started = files_of(out), list[str](), 0, 0, time.monotonic()
    if not whole or first.code not in (0, 1):
        raise RuntimeError(f"{name} ended with {first.code}: {(work / LOG).read_text()}")
    while kills < number:
        calls += 1
        # A time may be after the end.
        event = chance.randrange(first.events) if kills % 2 == 0 or calls > 3 * number else None
        after_s = chance.uniform(0, first.duration_s) if event is None else None
        _prepare(name, scene, out)
        kills += _call(name, scene, out, event, after_s).is_killed
        again = _call(name, scene, out)
        found = files_of(out)
        # A command that had written everything may refuse to do it again.
        if found != whole or (again.code != first.code and again.code != 2):
            moment = f"change {event} of {first.events}" if event is not None else f"{after_s:.3f} s"
            differing = sorted(file for file in found | whole if found.get(file) != whole.get(file))
            wrong.append(f"{moment}: code {again.code}, {', '.join(differing)}")
            print(f"{name}: {wrong[-1]}", flush=True)
    return {
        "command": name, "kills": kills, "changes": first.events, "files": len(whole),
        "duration_s": round(first.duration_s, 2), "differing": wrong,
        "minutes": round((time.monotonic() - started) / 60, 1),
    }  # fmt: skip


def make_scene(work: Path) -> dict[str, Path]:
    """Makes what the commands read, if it is not there, and returns where each word of COMMANDS is."""
    sizes: dict[str, Any] = {"labelled_frames": 6, "video_frames": 33, "side_px": 64}
    project = make_project(work / "project", videos=2, **sizes)
    crew, run = make_project(work / "crew", videos=1, animals=2, **sizes), work / "run"
    rig = make_project(work / "rig", videos=1, cameras=3, **sizes)
    scene = {
        "PROJECT": project, "LARGER": make_project(work / "larger", videos=4, **sizes), "RUN": run, "RIG": rig,
        "DETECTIONS": crew / "session00.csv", "BOARD": work / "board", "VIDEO": project / "videos" / "session00.mp4",
        "TABLE": run / "video_preds" / "session00.csv",
    }  # fmt: skip
    labels = (scene["LARGER"] / "CollectedData.csv").read_text().splitlines(keepends=True)
    known = ("labeled-data/session00/", "labeled-data/session01/")
    (scene["LARGER"] / "new.csv").write_text("".join(line for line in labels if not line.startswith(known)))
    for truth in (*crew.glob("ground_truth/*.csv"), *rig.glob("ground_truth/*.csv")):
        _predict_truth(truth, truth.parents[1] / truth.name)
    if not (run / "finished.json").is_file():
        options = ("data.input_height_px=32", "data.input_width_px=32", "model.backbone=resnet18", "model.width=4",
                   "model.head_width=4", "train.steps=20", "train.batch_size=4", "mesh.devices=1", "mesh.platform=cpu",
                   "log.tensorboard=false", "eval.predict_videos=yes")  # fmt: skip
        if code := _fork(["train", str(project), f"out={run}", *options], work / LOG).code:
            raise RuntimeError(f"the training ended with {code}: {(work / LOG).read_text()}")
    if not scene["BOARD"].is_dir():
        _film_board(scene["BOARD"])
    return scene


def _predict_truth(truth: Path, file: Path) -> None:
    """Writes the labels of all frames of a video as predictions."""
    header, _ = read_header(truth)
    labels = pd.read_csv(truth, header=list(range(len(header))), index_col=0)
    keypoints = list(dict.fromkeys(labels.columns.get_level_values("bodyparts")))
    has_animals = "individuals" in labels.columns.names
    animals = list(dict.fromkeys(labels.columns.get_level_values("individuals"))) if has_animals else []
    points_px = labels.to_numpy().reshape(len(labels), *[len(animals)] * has_animals, len(keypoints), 2)
    with PredictionWriter(file, keypoints, individuals=animals) as writer:
        writer.append(range(len(labels)), points_px, np.where(np.isnan(points_px[..., 0]), np.nan, 0.9))


def _film_board(folder: Path) -> None:
    """Draws a chessboard in 16 poses, as two cameras 100 mm apart see it."""
    columns, rows = _CHESS
    squares = (np.indices((rows, columns)).sum(axis=0) % 2 * 255).astype(np.uint8)
    board = np.pad(np.kron(squares, np.ones((_SQUARE_PX,) * 2, np.uint8)), _SQUARE_PX, constant_values=255)
    scale, left, top = 20 / _SQUARE_PX, -20 * (columns / 2 + 1), -20 * (rows / 2 + 1)
    to_mm = np.array([[scale, 0, left], [0, scale, top], [0, 0, 1]])
    camera, chance = np.array([[600.0, 0, 320], [0, 600, 240], [0, 0, 1]]), np.random.default_rng(0)
    for view in ("left", "right"):
        (folder / view).mkdir(parents=True)
    for number in range(16):
        turn, _ = cv2.Rodrigues(chance.uniform(-0.4, 0.4, 3))
        place = chance.uniform((-40, -30, 420), (40, 30, 560))
        for view, side_mm in (("left", 50), ("right", -50)):
            seen = camera @ np.column_stack([turn[:, :2], place + (side_mm, 0, 0)]) @ to_mm
            frame = cv2.warpPerspective(board, seen, (640, 480), borderValue=128)
            cv2.imwrite(str(folder / view / f"img{number:03d}.png"), frame)


def _prepare(name: str, scene: Mapping[str, Path], out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    if name in _CHANGES:
        shutil.copytree(scene[_CHANGES[name]], out)
    else:
        out.mkdir()


def _call(
    name: str, scene: Mapping[str, Path], out: Path, event: int | None = None, after_s: float | None = None
) -> _Call:
    return _fork(arguments_of(COMMANDS[name], scene, out), out.with_name(LOG), event, after_s)


def arguments_of(command: str, scene: Mapping[str, Path], out: Path) -> list[str]:
    """Returns the words of a command, with the places of those that `make_scene` made."""
    places, argv = {**scene, "OUT": out}, list[str]()
    for word in command.split():
        before, equals, path = word.rpartition("=")
        first, *rest = path.split("/")
        argv.append(before + equals + "/".join([str(places.get(first, first)), *rest]))
    return argv


def _fork(argv: list[str], log: Path, event: int | None = None, after_s: float | None = None) -> _Call:
    """Calls a verb in a copy of this process, which has imported it, and kills it at an event or after a time."""
    importlib.import_module(jaxpose._module(argv[0]))  # pyright: ignore[reportPrivateUsage]
    told, tells = os.pipe()
    started = time.monotonic()
    if not (child := os.fork()):
        run_child(argv, log, event, tells)
    os.close(tells)
    timer = threading.Timer(LONGEST_S if after_s is None else after_s, lambda: _kill(child))
    timer.start()
    with open(told, "rb") as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    timer.cancel()
    duration_s = time.monotonic() - started
    if after_s is None and duration_s > LONGEST_S:
        raise RuntimeError(f"{' '.join(argv)} did not end in {LONGEST_S} s")
    return _Call(os.WIFSIGNALED(status), os.waitstatus_to_exitcode(status), int(text or -1), duration_s)


def _kill(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)


def run_child(argv: list[str], log: Path, event: int | None, tells: int) -> NoReturn:
    """Runs a verb in the child, which ends here."""
    code, changes = 70, 0

    def count(name: str, arguments: tuple[Any, ...]) -> None:
        nonlocal changes
        if name in _EVENTS or (name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING):
            if changes == event:
                os.kill(os.getpid(), signal.SIGKILL)
            changes += 1

    try:
        opened = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(opened, stream)
        sys.argv = ["jaxpose", *argv]
        sys.addaudithook(count)
        code = jaxpose.run()
        os.write(tells, str(changes).encode())
    finally:
        os._exit(code)


def files_of(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file below a folder, of an index without the seconds of each row and its checksum."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            content = file.read_bytes()
            if file.name == INDEX_FILE:
                content = pd.read_csv(io.BytesIO(content)).drop(columns=["seconds", "check"]).to_csv().encode()
            found[str(file.relative_to(folder))] = hashlib.sha256(content).hexdigest()
    return found
