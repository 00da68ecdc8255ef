"""Which share of the time is useful if a run is killed every minute, compared with a simple model?

    python benchmarks/goodput.py --out benchmarks/goodput.jsonl

The useful time is the time that an undisturbed run needs for the kept steps, without its start. In the model, the start
up to the first step and half a save interval are lost between two kills. Appends one JSON line.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from pathlib import Path

import jax
from killed import SAVE_EVERY_STEPS, Start, last_step, make_config

# More than the minutes allow.
STEPS = 1_000_000
# Later than the first validation, which is compiled.
TIMED_FROM_STEP, TIMED_S = 400, 30.0


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/goodput"))
    arguments.add_argument("--minutes", type=int, default=5, help="kills, one a minute")
    given = arguments.parse_args()
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    step_s = _seconds_a_step(given.work)
    config = make_config(given.work, "killed", STEPS)
    run, starts_s, began = Path(config.out), [], time.monotonic()
    for minute in range(given.minutes):
        start, started = Start(config, given.work), time.monotonic()
        while start.process.poll() is None and (
            last_step(run) <= (start.resumed_from or 0) or (minute and start.resumed_from is None)
        ):
            time.sleep(0.02)
        starts_s.append(time.monotonic() - started)
        start.kill_after(60.0 - starts_s[-1])
        print(f"minute {minute + 1}: first step after {starts_s[-1]:.1f} s, killed at {last_step(run)}", flush=True)
    total_s = time.monotonic() - began
    kept = max(int(folder.name) for folder in (run / "checkpoints").iterdir() if folder.name.isdecimal())
    start_s = sum(starts_s) / len(starts_s)
    line = {
        "kills": given.minutes, "step_ms": 1000 * step_s, "start_s": start_s, "save_every_steps": SAVE_EVERY_STEPS,
        "goodput": kept * step_s / total_s, "model": 1 - (start_s + SAVE_EVERY_STEPS * step_s / 2) / 60,
        "jax": jax.__version__, "machine": platform.machine(), "cores": os.cpu_count(),
    }  # fmt: skip
    with given.out.open("a") as stream:
        stream.write(json.dumps(line) + "\n")
    print(json.dumps(line, indent=1))
    return 0


def _seconds_a_step(work: Path) -> float:
    """Returns the time of a step, validations and saves included, of an undisturbed run."""
    config = make_config(work, "undisturbed", STEPS)
    run, start = Path(config.out), Start(config, work)
    while last_step(run) < TIMED_FROM_STEP:
        time.sleep(0.1)
    first, began = last_step(run), time.monotonic()
    time.sleep(TIMED_S)
    seconds = (time.monotonic() - began) / (last_step(run) - first)
    start.kill_after(0)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
