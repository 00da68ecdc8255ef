"""Pairs of commands that run at once in one folder, for benchmarks/faults.py."""

import dataclasses
import importlib
import os
import random
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from killed_commands import LOG, LONGEST_S, arguments_of, files_of, make_scene, run_child

from jaxpose import __main__ as jaxpose
from jaxpose.data.synthetic import make_project
from jaxpose.files import write_atomic


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two commands that share files, in words of killed_commands.COMMANDS.

    Attributes:
      first, second: the commands.
      start: copied to OUT before, a word; "" for an empty OUT.
      before: a command that ends before both begin.
    """

    first: str
    second: str
    start: str = ""
    before: str = ""


_ON_CPU = "--platform cpu --devices 1"
_VIEWS = "c1=RIG/session00_c1.csv c2=RIG/session00_c2.csv c3=RIG/session00_c3.csv"
_POINTS = (
    f"triangulate --calibration RIG/calibrations/session00.toml {_VIEWS} --out OUT/points3d.csv "
    "--reprojections OUT/seen --overwrite"
)
_CAMERAS = "convert cameras {}/calibrations/session00.toml --to jarvis --out OUT/cameras --overwrite"
_START = "--session_start 2026-05-04T14:30:00+02:00"
PAIRS = {
    "init, init": Pair("init PROJECT --out OUT/config.py", "init PROJECT train.steps=77 --out OUT/config.py"),
    "check, check": Pair("check PROJECT --out OUT/check.html", "check LARGER --out OUT/check.html"),
    "track, track": Pair(*(f"track DETECTIONS --animals {n} --out OUT/tracks.h5 --overwrite" for n in (2, 1))),
    "track, track (refused)": Pair(*(f"track DETECTIONS --animals {n} --out OUT/tracks.h5" for n in (2, 1))),
    "smooth, smooth": Pair(
        *(f"smooth TABLE --method {name} --out OUT/smoothed.csv --overwrite" for name in ("kalman", "median"))
    ),
    "triangulate, triangulate": Pair(_POINTS, f"{_POINTS} --smooth"),
    "convert cameras, convert cameras": Pair(_CAMERAS.format("RIG"), _CAMERAS.format("RIG2")),
    "convert cameras, triangulate": Pair(
        _CAMERAS.format("RIG2"), _POINTS.replace("RIG/calibrations/session00.toml", "OUT/cameras"),
        before=_CAMERAS.format("RIG"),
    ),
    "draw, draw": Pair(*(f"draw VIDEO TABLE --trail {n} --out OUT/labeled.mp4 --overwrite" for n in (0, 3))),
    "crop, crop": Pair(*(f"crop --run RUN --out OUT VIDEO --size {n} --confidence 0 --overwrite" for n in (24, 32))),
    "suggest, suggest": Pair(*(f"suggest --run RUN --frames {n} --apart 1 --out OUT/suggestions" for n in (3, 2))),
    "convert predictions, convert predictions": Pair(
        *(f"convert predictions RUN --to {form} --out OUT" for form in ("slp", "sleap-analysis"))
    ),
    "labels merge, labels merge": Pair(
        *(f"labels merge LARGER/{n}.csv --project OUT" for n in (0, 1)), start="PROJECT"
    ),
    "labels merge, check": Pair("labels merge LARGER/0.csv --project OUT", "check OUT --out OUT/check.html", "PROJECT"),
    "evaluate, report": Pair(
        f"evaluate OUT --project SHIFTED {_ON_CPU}", "report --run OUT --out OUT/report.html", "RUN"
    ),
    "evaluate, evaluate": Pair(
        *(f"evaluate OUT --project {name} {_ON_CPU}" for name in ("PROJECT", "SHIFTED")), start="RUN"
    ),
    "predict, predict": Pair(*[f"predict --run RUN --out OUT {_ON_CPU} --stretch_minutes 0.005 VIDEO"] * 2),
    "export, export": Pair(*(f"export --run RUN --out OUT/mouse.onnx --batch {n} --overwrite" for n in (1, 2))),
}  # fmt: skip
# How a run of both ended: the exit codes and the files.
_End = tuple[tuple[int, int], dict[str, str]]


def run_pair(name: str, work: Path, times: int, seed: int) -> dict[str, Any]:
    """Runs two commands at once many times, and compares with both orders one after the other; returns a JSON line.

    One command begins at a random moment of the other one. One of the two may be refused (exit code 2): then the
    files must be those of the other one alone.

    Args:
      name: a key of PAIRS.
      work: folder for what they read and write.
      times: how often.
      seed: of the moments.
    """
    pair, scene, out, chance = PAIRS[name], _scene_of_pairs(work), work / "out", random.Random(f"{seed} {name}")
    commands = pair.first, pair.second
    _prepare(pair, scene, out)
    # Without what only a first call does, such as compiling.
    for command in commands:
        _wait(_start(command, scene, out), time.monotonic())
    right, duration_s = list[_End](), 0.0
    for first, second in ((0, 1), (1, 0), (0, None), (1, None)):
        _prepare(pair, scene, out)
        started, codes = time.monotonic(), [2, 2]
        for which in (first, second):
            if which is not None:
                codes[which] = _wait(_start(commands[which], scene, out), started)
                duration_s = duration_s or time.monotonic() - started
        # The check of a project may find something, and its code is 1.
        if codes[first] not in (0, 1):
            raise RuntimeError(f"{commands[first]} ended with {codes[first]}: {(work / LOG).read_text()}")
        right.append(((codes[0], codes[1]), files_of(out)))
    found, wrong, started = [0] * len(right), list[str](), time.monotonic()
    for number in range(times):
        _prepare(pair, scene, out)
        # By turns, each begins first, and the other one soon after it or at any moment of it.
        earlier, after_s = number % 2, chance.uniform(0, duration_s * (0.1 if number % 4 < 2 else 1))
        begun, children = time.monotonic(), {earlier: _start(commands[earlier], scene, out)}
        time.sleep(after_s)
        children[1 - earlier] = _start(commands[1 - earlier], scene, out)
        end = (_wait(children[0], begun), _wait(children[1], begun)), files_of(out)
        if end in right:
            found[right.index(end)] += 1
            continue
        differing = [file for file in end[1] | right[0][1] if end[1].get(file) not in {of[1].get(file) for of in right}]
        wrong.append(f"{1 - earlier} after {after_s:.3f} s: codes {end[0]}, {', '.join(differing) or 'files of both'}")
        print(f"{name}: {wrong[-1]}", flush=True)
    orders = dict(zip(("first, second", "second, first", "first alone", "second alone"), found, strict=True))
    return {
        "pair": name, "times": times, "as": orders, "duration_s": round(duration_s, 2), "differing": wrong,
        "minutes": round((time.monotonic() - started) / 60, 1),
    }  # fmt: skip


def _scene_of_pairs(work: Path) -> dict[str, Path]:
    """Makes what the commands read, if it is not there, and returns where each of their words is."""
    scene = make_scene(work)
    sizes: dict[str, Any] = {"videos": 1, "labelled_frames": 6, "video_frames": 33, "side_px": 64}
    scene["RIG2"], scene["SHIFTED"] = make_project(work / "rig2", 1, cameras=3, **sizes), work / "shifted"
    new = (scene["LARGER"] / "new.csv").read_bytes().splitlines(keepends=True)
    for part in range(2):
        # After the header.
        write_atomic(scene["LARGER"] / f"{part}.csv", b"".join(new[:3] + new[3 + part :: 2]))
    if not scene["SHIFTED"].is_dir():
        shutil.copytree(scene["PROJECT"], scene["SHIFTED"])
        labels = scene["SHIFTED"] / "CollectedData.csv"
        write_atomic(labels, labels.read_bytes().replace(b".", b".0").replace(b".0png", b".png"))
    return scene


def _prepare(pair: Pair, scene: Mapping[str, Path], out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    if pair.start:
        shutil.copytree(scene[pair.start], out)
    else:
        out.mkdir()
    if pair.before and (code := _wait(_start(pair.before, scene, out), time.monotonic())):
        raise RuntimeError(f"{pair.before} ended with {code}")


def _start(command: str, scene: Mapping[str, Path], out: Path) -> int:
    """Calls a command in a copy of this process, which has imported it; returns the number of the process."""
    argv = arguments_of(command, scene, out)
    importlib.import_module(jaxpose._module(argv[0]))  # pyright: ignore[reportPrivateUsage]
    if not (child := os.fork()):
        run_child(argv, out.with_name(LOG), None, os.open(os.devnull, os.O_WRONLY))
    return child


def _wait(child: int, started: float) -> int:
    """Returns the exit code of a process."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() - started > LONGEST_S:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
