"""Do the start, steps and memory of a run stay the same when its project grows?

    python benchmarks/growth.py --out benchmarks/growth.jsonl
    python benchmarks/growth.py --out benchmarks/growth.jsonl --rows 100 100000 --videos 1 500 --hours 10 --starts 3

Makes projects of 128 px: with more labelled rows and one video, with more videos, and with one long video, the last two
trained with a loss on clips. The rows are files of their own names that share their contents; so are the videos; the
long one is a short H.264 stream, repeated with rising time stamps. Every project is trained (resnet18 of width 16,
batches of 16) for a few steps: once to fill the caches, then a few times, the projects in turn. Appends one JSON line a
project: seconds, and CPU seconds of all threads, from the start of the command to the line of its first step, CPU
milliseconds of the later steps, and the largest resident memory, without and with the pages of files. Figures are
medians of the starts, `spread` is the largest minus the smallest. `*_above` compares with the first line of the same
losses.
"""

import argparse
import csv
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import av
from start import cpu_s

from jaxpose.data.synthetic import make_project

_SIDE_PX, _FPS = 128, 30
# Labelled rows of a project that grows in another way.
_ROWS = 100
_ROWS_A_FOLDER = 1000
# Links to one file: many file systems allow at most 65,000.
_SOURCES = 64
_KEPT = ("first_step_s", "first_step_cpu_s", "step_cpu_ms", "anonymous_mib", "resident_mib")


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/growth"))
    arguments.add_argument("--rows", type=int, nargs="*", default=[100, 3000], help="labelled rows of each project")
    arguments.add_argument("--videos", type=int, nargs="*", default=[1, 20], help="videos of each project")
    arguments.add_argument("--hours", type=float, nargs="*", default=[0.2], help="length of the video of each project")
    arguments.add_argument("--starts", type=int, default=1, help="of each project, with full caches")
    arguments.add_argument("--steps", type=int, default=24)
    arguments.add_argument("--again", action="store_true", help="with the projects and caches of an earlier call")
    given = arguments.parse_args()
    cases = [("rows", rows) for rows in given.rows]
    cases += [("videos", videos) for videos in given.videos] + [("hours", hours) for hours in given.hours]
    projects = {case: given.work / f"{case[0]}-{case[1]:g}" for case in cases}
    if not given.again:
        shutil.rmtree(given.work, ignore_errors=True)
        source = make_project(given.work / "source", 0, 1, _SOURCES, 256, _SIDE_PX)
        for case, project in projects.items():
            _make(project, source, *case)
    starts = {case: [] for case in cases}
    for number in range(int(given.again), 1 + given.starts):
        for case, project in projects.items():
            found = _start(project, given.work, case[0] != "rows", given.steps)
            print(json.dumps({case[0]: case[1], "caches": "full" if number else "empty", **found}), flush=True)
            if number:
                starts[case].append(found)
    firsts: dict[str, dict[str, float]] = {}
    for (kind, size), found in starts.items():
        medians = {name: round(statistics.median(start[name] for start in found), 2) for name in _KEPT}
        # The projects with videos have the same rows and losses, so they are of one kind.
        first = firsts.setdefault("rows" if kind == "rows" else "videos", medians)
        line = {
            "grows": kind, "size": size, "starts": len(found), **medians,
            "step_cpu_above": round(medians["step_cpu_ms"] / first["step_cpu_ms"] - 1, 3),
            "anonymous_mib_above": round(medians["anonymous_mib"] - first["anonymous_mib"]),
            "spread": {name: _spread([start[name] for start in found]) for name in _KEPT},
            "jax": version("jax"), "av": av.__version__, "python": platform.python_version(),
            "machine": platform.machine(), "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0],
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        with given.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 0


def _spread(values: list[float]) -> float:
    return round(max(values) - min(values), 2)


def _make(project: Path, source: Path, kind: str, size: float) -> None:
    """Writes a project that has grown in one way."""
    (project / "videos").mkdir(parents=True)
    _write_rows(project, source, int(size) if kind == "rows" else _ROWS)
    (video,) = (source / "videos").iterdir()
    if kind == "hours":
        _repeat(video, project / "videos" / "long.mp4", round(size * 3600 * _FPS))
    for number in range(int(size) if kind == "videos" else kind == "rows"):
        os.link(video, project / "videos" / f"video{number:04}.mp4")


def _write_rows(project: Path, source: Path, rows: int) -> None:
    """Writes a label file with this many rows, and the files of their images."""
    with (source / "CollectedData.csv").open(newline="") as file:
        *header, first, second, third = [next(reader := csv.reader(file)) for _ in range(6)]
        labelled = [first, second, third, *reader]
    with (project / "CollectedData.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows(header)
        for row in range(rows):
            image, *points = labelled[row % len(labelled)]
            folder = f"labeled-data/session{row // _ROWS_A_FOLDER:03}"
            (project / folder).mkdir(parents=True, exist_ok=True)
            name = f"{folder}/img{row:08}.png"
            os.link(source / image, project / name)
            writer.writerow([name, *points])


def _repeat(video: Path, longer: Path, frames: int) -> None:
    """Writes a video of at least this many frames that repeats another's packets with rising time stamps."""
    with av.open(str(video)) as container:
        stream = container.streams.video[0]
        packets = [
            (packet.pts, packet.dts, packet.is_keyframe, bytes(packet))
            for packet in container.demux(stream)
            if packet.pts is not None and packet.dts is not None
        ]
        times = sorted(packet[0] for packet in packets)
        length = times[-1] - times[0] + times[1] - times[0]
        assert stream.time_base
        with av.open(str(longer), "w") as written:
            to = written.add_stream_from_template(stream)
            for turn in range(-(-frames // len(packets))):
                for pts, dts, is_key, content in packets:
                    packet = av.Packet(content)
                    packet.pts, packet.dts = pts + turn * length, dts + turn * length
                    packet.time_base, packet.is_keyframe, packet.stream = stream.time_base, is_key, to
                    written.mux(packet)


def _start(project: Path, work: Path, has_clips: bool, steps: int) -> dict[str, float]:
    """Returns what a start of a training and its steps cost; it is ended after this many steps."""
    run = work / "run"
    shutil.rmtree(run, ignore_errors=True)
    options = ["model.backbone=resnet18", "model.width=16", "train.batch_size=16", "log.every_steps=1", f"out={run}"]
    options += [f"train.steps={steps + 1000}", "data.split=frame", "train.val_every_epochs=1000000"]
    options += [f"data.input_{axis}_px={_SIDE_PX}" for axis in ("width", "height")]
    options += ["losses.temporal.weight=0.01"] if has_clips else []
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "jaxpose.train", "--config", f"configs/pose.py:{project}",
         *options],
        stdout=(work / "output.txt").open("w"), stderr=subprocess.STDOUT,
        env=environment | {"JAXPOSE_CACHE": str(work / "cache"), "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    found: dict[str, float] = dict.fromkeys(("anonymous_mib", "resident_mib"), 0.0)
    lines = 0
    while lines < steps:
        assert process.poll() is None, (work / "output.txt").read_text()
        for name, field in (("anonymous_mib", "RssAnon"), ("resident_mib", "VmRSS")):
            found[name] = max(found[name], _memory_mib(process.pid, field))
        metrics = run / "metrics.jsonl"
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if lines and "first_step_s" not in found:
            found |= {"first_step_s": time.monotonic() - started, "first_step_cpu_s": cpu_s(process.pid)}
            first = lines
        # The training is another process: its memory and its log can only be polled.
        time.sleep(0.01)
    found["step_cpu_ms"] = 1000 * (cpu_s(process.pid) - found["first_step_cpu_s"]) / (lines - first)
    process.kill()
    process.wait()
    return {name: round(value, 2) for name, value in found.items()}


def _memory_mib(process: int, field: str) -> float:
    """Returns a figure of a process's memory; only Linux has the file."""
    status = Path(f"/proc/{process}/status").read_text()
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(field)), 0.0)


if __name__ == "__main__":
    sys.exit(main())
