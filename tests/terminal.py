"""What a program shows on a terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import termios


def screen_of(command: list[str]) -> str:
    """All that a program writes to a terminal of 40 lines of 120 characters, up to its end without a fault."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    child = subprocess.Popen(command, stdout=slave, stderr=slave)
    os.close(slave)
    shown = b""
    try:
        while part := os.read(master, 65536):
            shown += part
    except OSError:
        pass  # the other end is closed
    assert child.wait(20) == 0
    return shown.decode()
