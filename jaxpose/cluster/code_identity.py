"""Identifies the code that a program is traced from, so that a kept program is found without tracing it again.

JAX's keys are checksums of the traced program, and tracing takes most of a start with kept programs. A key that is
known earlier must cover everything that tracing reads: the shapes of the arguments, the options, JAX's settings, and
the code.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright does not know the options of jax.config)

import functools
import hashlib
import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax

import jaxpose

# The packages whose code runs while a program is traced and compiled.
_TRACED = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes")
# Folders of installed packages.
_INSTALLED = ("/site-packages/", "/dist-packages/")
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


class _UnknownCode(Exception):
    """A file of the code is absent, or has changed since this process may have read it."""


def code_identity() -> str:
    """Returns a checksum of the code of this process and of JAX's settings; "" if the code is not known for sure.

    It covers the content of jaxpose's files and of the user's (a config file, a hook, a script: these could replace
    anything), and the size and time of the loaded files of the packages above: by these, Python itself decides whether
    its bytecode is up to date.
    """
    try:
        files = [_own_code(), _loaded_code()]
    except (OSError, _UnknownCode):
        return ""
    settings = sorted(jax.config.values.items())
    return hashlib.sha256(repr([platform.python_version(), settings, *files]).encode()).hexdigest()


def xla_options() -> list[str | None]:
    """Returns the values of the variables with XLA's options."""
    return [os.environ.get(name) for name in _VARIABLES]


@functools.cache
def _own_code() -> list[tuple[str, str]]:
    """Returns name and checksum of jaxpose's files."""
    folder = Path(jaxpose.__file__).parent
    files = sorted(folder.rglob("*.py"))
    if not files:
        raise _UnknownCode(folder)
    return [(file.relative_to(folder).as_posix(), _content(file)) for file in files]


def _loaded_code() -> list[tuple[str, Any]]:
    """Returns name and identity of the other loaded files, except the standard library and packages without a part."""
    own, standard = (folder + os.sep for folder in (os.path.dirname(jaxpose.__file__), sysconfig.get_path("stdlib")))
    found: list[tuple[str, Any]] = []
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not file or file.startswith(own):
            continue
        if any(folder in file for folder in _INSTALLED):
            if name.partition(".")[0] in _TRACED:
                status = _status(file)
                found.append((name, (status.st_size, status.st_mtime_ns)))
        elif not file.startswith(standard):
            found.append((name, _content(Path(file))))
    return found


def _content(file: Path) -> str:
    _status(str(file))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _status(file: str) -> os.stat_result:
    status = os.stat(file)
    if status.st_mtime_ns > jaxpose.IMPORTED_AT_NS:
        raise _UnknownCode(file)
    return status
