"""Damaged and hostile requests to the page of `jaxpose label`."""

import contextlib
import os
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edits import edit

PAGE = "requests to label"
_WAIT_S, _PATIENCE_S = 15.0, 1.0


def fuzz_page(project: Path, seed: int, cases: int) -> tuple[dict[str, int], list[str]]:
    """Sends damaged requests to the page of a project.

    Args:
      project: a folder, of which a copy is served.
      seed: draws the damage.
      cases: number of requests.

    Returns:
      The number of `cases`, of `right` (2xx) and of `refused` (4xx, or closed) answers; and faults: sentences about
      other answers, answers that did not come, and a traceback that the server printed.
    """
    counts, faults = {"cases": 0, "right": 0, "refused": 0}, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        served = shutil.copytree(project, Path(folder) / "project")
        server = subprocess.Popen(
            [sys.executable, "-m", "jaxpose", "label", str(served), "--no-browser"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            _ask_all(server, seed, cases, counts, faults)
        finally:
            os.killpg(server.pid, signal.SIGINT)
            said = server.communicate(timeout=60)[0]
    if "Traceback" in said or server.returncode not in (0, 130):
        faults.append(f"the server ended with {server.returncode}: {said[-1500:]}")
    return counts, faults


def _ask_all(server: subprocess.Popen[str], seed: int, cases: int, counts: dict[str, int], faults: list[str]) -> None:
    assert server.stdout
    match = None
    while not match:
        line = server.stdout.readline()
        assert line, "jaxpose label ended"
        match = re.match(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", line)
    port, token = int(match[1]), match[2]
    head = _send(port, f"GET /?token={token} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    cookie = re.search(rb"set-cookie: ([^;]+)", head, re.IGNORECASE)
    assert cookie, head
    requests = _requests(port, cookie[1].decode())
    for number in range(cases):
        draw = random.Random(f"{seed} {PAGE} {number}")
        request = draw.choice(requests)
        kind, damaged = edit(draw, request, ".http")
        started = time.monotonic()
        answer = _send(port, damaged)
        status = re.match(rb"HTTP/1\.1 (\d+)", answer)
        counts["cases"] += 1
        is_good = status is None or status[1][:1] in (b"2", b"4")
        is_late = time.monotonic() - started > _WAIT_S
        counts["right" if status and status[1][:1] == b"2" else "refused"] += is_good and not is_late
        if not is_good or is_late:
            what = "no answer" if is_late else status and status[1].decode()
            faults.append(f"{number}: {what} for {kind} of {request[:60]!r}: {damaged[:300]!r}")
    # The page still answers.
    head = _send(port, requests[0])
    if not head.startswith(b"HTTP/1.1 200"):
        faults.append(f"afterwards, the page answers {head[:200]!r}")


def _requests(port: int, cookie: str) -> list[bytes]:
    """Returns requests that the page makes; none of them starts a training."""
    host = f"Host: 127.0.0.1:{port}\r\nCookie: {cookie}\r\nConnection: close\r\n"
    paths = ("/api/project", "/", "/page.js", "/api/changes?since=0", "/api/frames?numbers=0,1", "/api/frame/0",
             "/image/0", "/api/video/0", "/api/video/0/confidence", "/video/0/3")  # fmt: skip
    gets = [f"GET {path} HTTP/1.1\r\n{host}\r\n".encode() for path in paths]
    bodies = {
        "/api/frame/0": '{"revision": "0", "points": {"0": [1.5, 2.5, 2], "1": null}}',
        "/api/frame/1/keep/0": "{}",
        "/api/video/0/5": "{}",
    }
    origin = f"Origin: http://127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    posts = [
        f"POST {path} HTTP/1.1\r\n{host}{origin}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        for path, body in bodies.items()
    ]
    return [*gets, *posts, *posts]


def _send(port: int, request: bytes) -> bytes:
    """Returns the first bytes of the answer, b"" if the connection is closed without one."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), _WAIT_S) as connection, contextlib.suppress(OSError):
        connection.sendall(request)
        if not select.select([connection], [], [], _PATIENCE_S)[0]:
            # The request is incomplete.
            connection.shutdown(socket.SHUT_WR)
        while len(answer) < 2000 and (part := connection.recv(2000)):
            answer += part
    return answer
