"""Does a run that is killed at any moment end like an undisturbed run, and how many steps does a kill cost?

    python benchmarks/faults.py --out benchmarks/faults.jsonl

Kills a small run with -9, 50 times at random moments of its start, its steps, its saves and its end, and restarts it
each time; when a run ends, a new one begins. Every finished run is compared bit by bit with an undisturbed one:
weights, predictions, and the metrics of every step. Appends one JSON line.

    python benchmarks/faults.py --out benchmarks/faults.jsonl --files

Flips 500 random bits of the files of a run, one at a time and equally many for each kind of file, and calls all readers
of the file. No flip may be accepted with another meaning. With --damage cut, the files are cut off at random places;
with --damage exchange, each gets the content of another file of the run; with --damage delete, it is gone. Appends one
JSON line.

    python benchmarks/faults.py --out benchmarks/faults.jsonl --commands all

Kills each command that writes files 200 times with -9, by turns at a random change of a file and after a random time,
and calls it again: its folder must have the bytes of a command that was not killed. Names of commands choose some of
them. Appends one JSON line for each command.

    python benchmarks/faults.py --out benchmarks/faults.jsonl --pairs all

Runs pairs of commands at once in one folder, 20 times each, one of them from a random moment of the other one: exit
codes and files must be those of one order of both, one after the other, or one of them must have been refused. Names
choose some of the pairs. Appends one JSON line for each pair.
"""

import argparse
import json
import os
import platform
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
from command_pairs import PAIRS, run_pair
from damaged import DAMAGES, SAFE, count_outcomes
from killed import SAVE_EVERY_STEPS, Start, last_step, make_config
from killed_commands import COMMANDS, kill_command

STEPS = 1200
# The longest life of a start; the first steps come after some seconds.
LIFE_S = 20.0
COMPARED = ("best.safetensors", "predictions.csv", "predictions_pixel_error.csv", "split.csv")


def metrics_of(run: Path) -> list[dict]:
    """Returns the lines of metrics.jsonl without their times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "time_s"} for line in lines]


def differing(run: Path, other: Path) -> list[str]:
    """Returns the differences of two finished runs."""
    found = [name for name in COMPARED if (run / name).read_bytes() != (other / name).read_bytes()]
    return found + ["metrics.jsonl"] * (metrics_of(run) != metrics_of(other))


def damage_files(work: Path, damage: str, number: int) -> dict:
    """Returns the JSON line of damaged files."""
    started = time.monotonic()
    kinds = count_outcomes(work, damage, number, seed=0)
    outcomes = {outcome for found in kinds.values() for outcome in found}
    return {
        "damage": damage, "times": number, "seed": 0, "kinds": kinds, "is_safe": outcomes <= set(SAFE),
        "minutes": round((time.monotonic() - started) / 60, 1),
    }  # fmt: skip


def main() -> int:
    """Measures and prints; returns 1 if a killed run or command ended differently, or a flipped bit was accepted."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    arguments.add_argument("--work", type=Path, default=Path("runs/faults"))
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--steps", type=int, default=STEPS)
    arguments.add_argument("--files", action="store_true", help="damage files instead of killing runs")
    arguments.add_argument("--damage", choices=DAMAGES, default="flip")
    arguments.add_argument("--times", type=int, help="default: 500, 200 for each command, 20 for each pair")
    arguments.add_argument("--commands", nargs="+", choices=("all", *COMMANDS), default=[], help="kill these commands")
    arguments.add_argument("--pairs", nargs="+", choices=("all", *PAIRS), default=[], help="run these pairs at once")
    given = arguments.parse_args()
    shutil.rmtree(given.work, ignore_errors=True)
    given.work.mkdir(parents=True)
    is_good = True
    for line in measure(given):
        line |= {"jax": jax.__version__, "machine": platform.machine(), "cores": os.cpu_count()}
        with given.out.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        print(json.dumps(line, indent=1), flush=True)
        is_good &= line.get("is_safe", not line.get("differing"))
    return 0 if is_good else 1


def measure(given: argparse.Namespace) -> Iterator[dict]:
    """Yields the JSON lines."""
    if given.commands:
        for name in COMMANDS if "all" in given.commands else given.commands:
            yield kill_command(name, given.work, 200 if given.times is None else given.times, seed=0)
    elif given.pairs:
        for name in PAIRS if "all" in given.pairs else given.pairs:
            yield run_pair(name, given.work, 20 if given.times is None else given.times, seed=0)
    elif given.files:
        yield damage_files(given.work, given.damage, 500 if given.times is None else given.times)
    else:
        yield kill_runs(given)


def kill_runs(given: argparse.Namespace) -> dict:
    """Returns the JSON line of runs that were killed."""
    undisturbed = make_config(given.work, "undisturbed", given.steps)
    Start(undisturbed, given.work).end()
    lost_steps: list[int] = []
    ended, broken, kills, number = 0, [], 0, 0
    while kills < given.kills:
        number += 1
        config = make_config(given.work, f"killed-{number}", given.steps)
        run, before = Path(config.out), 0
        while True:
            start = Start(config, given.work)
            was_killed = kills < given.kills and start.kill_after(random.uniform(0, LIFE_S))
            start.end()
            if start.resumed_from is not None:
                lost_steps.append(before - start.resumed_from)
            if not was_killed:
                break
            kills += 1
            before = max(last_step(run), before if start.resumed_from is None else 0)
            print(f"kill {kills}: at step {before}, which had gone on from step {start.resumed_from or 0}", flush=True)
        ended += 1
        broken += [f"{run}: {', '.join(names)}" for names in [differing(run, Path(undisturbed.out))] if names]
    return {
        "kills": kills, "runs": ended, "differing": broken, "save_every_steps": SAVE_EVERY_STEPS,
        "lost_steps_mean": sum(lost_steps) / max(len(lost_steps), 1), "lost_steps_most": max(lost_steps, default=0),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
