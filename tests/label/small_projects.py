"""Projects to label, and jaxpose label as a process."""

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from tests.small_run import environment

KEYPOINTS = ("nose", "left_paw", "right_paw")
SIZE_PX = (60, 40)
VIDEO = "labeled-data/v"


def image_name(number: int, video: str = "v") -> str:
    return f"labeled-data/{video}/img{number:03}.png"


def write_image(file: Path, number: int = 0) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    width, height = SIZE_PX
    picture = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
    assert cv2.imwrite(str(file), picture)


def header(coords: Sequence[str] = ("x", "y"), index_columns: int = 1, end: str = "\n") -> str:
    """The header rows of a label file."""
    fill = [""] * (index_columns - 1)
    rows = [
        ["scorer", *fill, *["me"] * len(coords) * len(KEYPOINTS)],
        ["bodyparts", *fill, *(name for name in KEYPOINTS for _ in coords)],
        ["coords", *fill, *[*coords] * len(KEYPOINTS)],
    ]
    return "".join(",".join(row) + end for row in rows)


def write_project(folder: Path, images: int = 6, rows: str = "", head: str = "") -> Path:
    """A project of Lightning Pose; the images are 10 frames apart.

    Args:
      folder: a new folder.
      images: their number.
      rows: the text after the header; by default, the first image has two labels.
      head: the header, by default with columns x and y.
    """
    for number in range(images):
        write_image(folder / image_name(10 * number), number)
    text = (head or header()) + (rows or f"{image_name(0)},1.50,2,,,30.125,4\n")
    (folder / "CollectedData.csv").write_bytes(text.encode())
    return folder


class Served(NamedTuple):
    address: str  # with the token
    port: int
    process: subprocess.Popen[str]
    lines: list[str]

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        self.lines.extend(line.rstrip("\n") for line in self.process.stdout or [])
        return self.process.wait()


@contextlib.contextmanager
def serving(project: Path, *flags: str) -> Iterator[Served]:
    """Runs jaxpose label as a process, and kills it at the end."""
    command = [sys.executable, "-m", "jaxpose", "label", str(project), "--no-browser", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment())
    lines: list[str] = []
    match = None
    try:
        for line in process.stdout or []:
            lines.append(line.rstrip("\n"))
            match = match or re.match(r"http://127\.0\.0\.1:(\d+)/\?token=\S+", line)
            if match and line.startswith("from another machine"):
                yield Served(match[0], int(match[1]), process, lines)
                break
        else:
            raise AssertionError(lines)
    finally:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()
