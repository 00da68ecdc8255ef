"""200 kills of the server of `jaxpose label`, between edits and during them: no acknowledged edit is lost."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from jaxpose.config import DataConfig
from jaxpose.data.labels import read_table
from tests.label.small_projects import Served, header, image_name, write_project
from tests.label.test_server import ask, post
from tests.small_run import environment

pytestmark = pytest.mark.faults
LABELS = "CollectedData.csv"
# Starts a server for each line that it gets, in a process of its own; label files are written soon after an edit.
SERVERS = """
import os, sys
import uvicorn
import jaxpose.label.server, jaxpose.label.store as stores
from jaxpose.label.__main__ import main
stores._REST_S, stores._LONGEST_S, stores._POLL_S = 0.05, 0.1, 0.01
for line in sys.stdin:
    if not (child := os.fork()):
        os.close(0)
        os._exit(main([sys.argv[1], "--no-browser"]))
    print("process", child, flush=True)
    os.waitpid(child, 0)
    print("gone", flush=True)
"""


class Killed:
    """Servers that are killed one after the other."""

    def __init__(self, project: Path):
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVERS, str(project)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )

    def __enter__(self) -> "Killed":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_for(self, pattern: str) -> re.Match[str]:
        for line in self.process.stdout or []:
            if match := re.match(pattern, line):
                return match
        raise AssertionError(pattern)

    def start(self) -> tuple[Served, str, int]:
        """Returns a new server, its cookie and its process."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        child = int(self.wait_for(r"process (\d+)")[1])
        match = self.wait_for(r"(http://127\.0\.0\.1:(\d+)/\?token=\S+)")
        self.wait_for("from another machine")
        served = Served(match[1], int(match[2]), self.process, [])
        _, headers, _ = ask(served, "/?" + urlsplit(served.address).query)
        return served, headers["set-cookie"].partition(";")[0], child


def test_200_kills_lose_no_acknowledged_edit(tmp_path: Path) -> None:
    odd = f'"{image_name(50)}", 1.50 ,2,,,"30.125",4\n'
    project = write_project(tmp_path / "p", 6, odd)
    rng, answered = np.random.default_rng(0), 0
    # The points that an image may have: after an edit without an answer, the one before or the new one.
    possible: dict[tuple[int, int], list[Any]] = {(image, k): [None] for image in range(5) for k in range(3)}
    with Killed(project) as killed:
        for _ in range(200):
            served, cookie, child = killed.start()
            states = [json.loads(ask(served, f"/api/frame/{image}", Cookie=cookie)[2]) for image in range(5)]
            for (image, k), points in possible.items():
                assert states[image]["points"][k] in points and not states[image]["conflicts"]
                possible[image, k] = [states[image]["points"][k]]
            edits = int(rng.integers(1, 5))
            for number in range(edits):
                image, k = int(rng.integers(5)), int(rng.integers(3))
                point = None if rng.random() < 0.2 else [*rng.uniform(0, 39, 2).round(3).tolist(), 2]
                state = json.loads(ask(served, f"/api/frame/{image}", Cookie=cookie)[2])
                given = {"revision": state["revision"], "points": {str(k): point}}
                possible[image, k].append(point)
                if number == edits - 1:
                    # Between edits, while the label file is written, or during the edit.
                    time.sleep(rng.uniform(0, 0.15))
                    threading.Timer(rng.uniform(0, 0.004), os.kill, (child, signal.SIGKILL)).start()
                with contextlib.suppress(OSError, http.client.HTTPException):
                    assert post(served, cookie, f"/api/frame/{image}", given)[0] == 200
                    possible[image, k], answered = [point], answered + 1
            killed.wait_for("gone")
            assert (project / LABELS).read_text().startswith(header() + odd)
            read_table(project, project / LABELS, DataConfig())
        _, _, child = killed.start()
        os.kill(child, signal.SIGINT)
        killed.wait_for("gone")
    assert 200 < answered < 500 and [name for name in os.listdir(project) if name.startswith(".")] == []
