"""Checks this host before a run: `jaxpose doctor` prints a line for each check, with a verdict and the fix.

Input: the environment, and the folder for runs. Output: the lines, and exit code 1 if one of them is a problem.
"""

import argparse
import socket
from pathlib import Path

from jaxpose.config.arguments import DONE, FAILED, Arguments
from jaxpose.doctor.disk import cache, clock, run_folder, shared_memory, space
from jaxpose.doctor.finding import PROBLEM
from jaxpose.doctor.machine import cores, devices, versions
from jaxpose.doctor.others import coordinator, count_processes, processes, proxies
from jaxpose.early_signals import exit_with
from jaxpose.terminal import print_lines


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 1 (there is a problem) or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.doctor", "Checks this host before a run: prints a line for each check, and the fix.")
    arguments.add_argument("--out", default="runs", metavar="FOLDER", help="folder for the runs; default: runs")
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    out = Path(given.out).expanduser().absolute()
    checks = {
        "versions": versions,
        "devices": devices,
        "cores": cores,
        "processes": processes,
        "coordinator": coordinator,
        "proxies": proxies,
        "out": lambda: run_folder(out, count_processes()),
        "disk": lambda: space(out),
        "/dev/shm": lambda: shared_memory(Path("/dev/shm")),
        "cache": cache,
        "clock": lambda: clock(out),
    }
    print_lines(f"{'host':12} {socket.gethostname()}")
    verdicts = []
    for name, look in checks.items():
        verdict, text = look()
        verdicts.append(verdict)
        print_lines(f"{name:12} {verdict:8} {text}")
    return FAILED if PROBLEM in verdicts else DONE


if __name__ == "__main__":
    exit_with(main)
