"""Becomes a command that dies with the process that started it: `python -m jaxpose.cluster.leash PARENT COMMAND ...`.

Linux's own means (prctl): it ends even what is stopped, and asks nothing of the command. Elsewhere that just runs.
Set here, between fork and command, and not by the parent: after a fork of a process with threads no Python may run.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Replaces this process by the command; returns only where the parent is dead already.

    Args:
      argv: process id of the parent, then the command and its arguments.
    """
    parent, *command = argv
    # SIGTERM and Ctrl-C are blocked since this process was started. A verb of jaxpose unblocks them once it catches
    # them; another command does not.
    if command[1:2] != ["-m"] or not command[2].startswith("jaxpose."):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() == int(parent):  # else it died before the leash was on
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
