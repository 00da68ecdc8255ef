"""The process that talks to a tracker: `python -m jaxpose.tracking.worker`, started by `Tracker`.

Input: one JSON object a line on stdin; the first one is an `Opening`. Output: one JSON object a line on stdout, with
what the training should know. Whatever the tracker's library prints goes to stderr.

A process of its own, because a library may crash, hang or take Python's lock for long, which must not stop a training.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxpose.tracking.client import Client, Opening

_READ_BYTES = 1 << 16


def main() -> None:
    """Reads stdin to its end; the exit code is 1 if the tracker did not take the run."""
    # SLURM signals every process of a job; the training says when its tracker ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The library must not write between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    # What a training needs comes first.
    os.nice(10)

    def answer(**content: str) -> None:
        answers.write(json.dumps(content) + "\n")

    lines = _lines()
    opening = Opening(**json.loads(next(lines)[0]))
    try:
        client = _client(opening)
    # A library may raise anything, also SystemExit.
    except BaseException as error:
        traceback.print_exc()
        answer(failed=_reason(error))
        sys.exit(1)
    answer(id=client.id, url=client.url)
    outcome = "failed"
    for batch in lines:
        messages = [json.loads(line) for line in batch]
        records = [(message["step"], message["numbers"]) for message in messages if "step" in message]
        if records:
            _attempt(client.log, records, answer)
        for message in messages:
            if "report" in message:
                _attempt(client.report, Path(message["report"]), answer)
            outcome = message.get("end", outcome)
    _attempt(client.end, outcome, answer)


def _attempt(function: Callable[[Any], None], argument: Any, answer: Callable[..., None]) -> None:
    """Calls a function of the client; an error is an answer, and later calls may succeed again."""
    try:
        function(argument)
    except Exception as error:
        traceback.print_exc()
        answer(problem=_reason(error))


def _lines() -> Iterator[list[str]]:
    """Yields the lines of stdin; those that came while a batch was sent are one batch. The first line comes alone."""
    rest, is_first = b"", True
    while read := os.read(0, _READ_BYTES):
        *lines, rest = (rest + read).split(b"\n")
        texts = [line.decode() for line in lines]
        if is_first and texts:
            is_first = False
            yield texts[:1]
            texts = texts[1:]
        if texts:
            yield texts


def _client(opening: Opening) -> Client:
    # Each imports its library, which takes seconds.
    if opening.tracker == "wandb":
        from jaxpose.tracking.wandb_client import WandbClient

        return WandbClient(opening)
    from jaxpose.tracking.mlflow_client import MlflowClient

    return MlflowClient(opening)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


if __name__ == "__main__":
    main()
