"""Runs a command that dies with its parent: `python -m jaxpose.cluster.die_with_parent PARENT COMMAND ...`.

On Linux the kernel does this (prctl): it also ends a stopped process, and the command needs no code of its own. On
other systems the command runs without this protection. prctl is called here, in the new process, because a process with
threads must not run Python code between fork and exec.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Replaces this process with the command. Returns only if the parent is already dead.

    Args:
      argv: process id of the parent, then the command and its arguments.
    """
    parent, *command = argv
    # The launcher blocked SIGTERM and Ctrl-C in this process. A verb of jaxpose unblocks them when its handlers are
    # installed; any other command does not.
    if command[1:2] != ["-m"] or not command[2].startswith("jaxpose."):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() == int(parent):  # otherwise it died before prctl was called
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
