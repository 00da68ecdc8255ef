"""Identifies the code that a program is traced from, so that a kept program is found without tracing it again.

JAX's keys are checksums of the traced program, and tracing takes most of a start with kept programs. A key that is
known earlier must cover everything that tracing reads: the shapes of the arguments, the options, JAX's settings, and
the code.
"""

# pyright: reportAttributeAccessIssue=false
# (pyright does not know the options of jax.config)

import ast
import contextlib
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
from jaxpose.config.command_line import EXPERIMENT

# The packages whose code runs while a program is traced and compiled.
_TRACED = ("jax", "jaxlib", "flax", "optax", "numpy", "ml_dtypes", "opt_einsum")
# Folders of installed packages.
_INSTALLED = ("/site-packages/", "/dist-packages/")


class _UnknownCode(Exception):
    """A file of the code is absent, or has changed since this process may have read it; or other code has run."""


def code_identity() -> str:
    """Returns a checksum of the code of this process and of JAX's settings; "" if the code is not known for sure.

    It covers the content of jaxpose's files and of a config file, and the size and time of the loaded files of the
    packages above: by these, Python itself decides whether its bytecode is up to date. Code of the user that does more
    than set options could replace anything, by values that no file shows, so with it the code is not known.
    """
    try:
        _refuse_other_code()
        files = [_own_code(), _loaded_code()]
    except (OSError, _UnknownCode):
        return ""
    settings = sorted(jax.config.values.items())
    return hashlib.sha256(repr([platform.python_version(), settings, *files]).encode()).hexdigest()


def xla_options() -> list[str | None]:
    """Returns the options of XLA's compilers."""
    return [xla_flags(), os.environ.get("LIBTPU_INIT_ARGS")]


def xla_flags() -> str:
    """Returns the options of XLA's compiler; XLA_FLAGS has them, or names a file that has them."""
    text = os.environ.get("XLA_FLAGS", "").strip()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(text).read_text() if text and not text.startswith("-") else text
    return text


def _refuse_other_code() -> None:
    """Raises _UnknownCode unless a verb runs here, without a config file or with one that only sets options."""
    main, experiment = sys.modules["__main__"], sys.modules.get(EXPERIMENT)
    spec, script = getattr(main, "__spec__", None), os.path.join(sysconfig.get_path("scripts"), "jaxpose")
    is_verb = spec is not None and spec.name.partition(".")[0] == "jaxpose"
    if not is_verb and getattr(main, "__file__", None) != script:
        raise _UnknownCode(main)
    if experiment and not _sets_only_options(Path(str(experiment.__file__))):
        raise _UnknownCode(experiment)


def _sets_only_options(file: Path) -> bool:
    """Returns whether a config file imports nothing but the config and the standard library."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{'.' * node.level}{node.module or ''}.{name.name}" for name in node.names]
    roots = {*sys.stdlib_module_names, "__future__"}
    return all(name.partition(".")[0] in roots or f"{name}.".startswith("jaxpose.config.") for name in names)


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
    # A file that replaced another one may have an earlier time of its content.
    if max(status.st_mtime_ns, status.st_ctime_ns) > jaxpose.IMPORTED_AT_NS:
        raise _UnknownCode(file)
    return status
