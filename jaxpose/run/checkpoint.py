"""Checkpoints: saves the state of a run, and restores the newest checkpoint whose every byte is right.

Input: a pytree of arrays and a small dict. Output: folders <folder>/<step>/ with orbax's files below state/, and a
manifest, which is written last: a step without a manifest does not exist. If a step is saved again (after a validation,
or after a resume before it), its folder is <step>-2 and so on, so that a save never touches an existing checkpoint.
"""

import functools
import gc
import json
import logging
import math
import os
import re
import shutil
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from jax.experimental import multihost_utils
from orbax.checkpoint._src.serialization import tensorstore_utils

from jaxpose.errors import UserError
from jaxpose.run.manifest import find_damage, read_manifest, write_manifest
from jaxpose.run.paths import CHECKPOINT_NAME, MANIFEST_FILE, checkpoint_order, saved_checkpoints

# Names the arrays of a state, as a checkpoint stores them.


def named_leaves(tree: Any) -> dict[str, Any]:
    """Returns {name: array or ShapeDtypeStruct} of a tree: a flat dict, which can be read without the tree's classes.

    Raises:
      ValueError: two leaves have one name, or a leaf is empty.
    """
    leaves = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        if name in leaves:
            raise ValueError(f"two leaves of the state are named {name!r}; keys must not contain a dot")
        if 0 in np.shape(leaf):
            raise ValueError(f"{name} is an empty array, which orbax cannot store")
        leaves[name] = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    return leaves


def kinds(leaves: dict[str, Any]) -> dict[str, str]:
    """Returns {name: type and shape} of leaves, for a manifest and for messages."""
    return {name: f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" for name, leaf in leaves.items()}


# Leaves up to this size that one process holds pass through numpy, which takes orbax less than half the time, and a
# network has hundreds of them. Larger leaves would be copied twice.
SMALL_BYTES = 1 << 16


def is_small(leaf: Any) -> bool:
    """Tells whether a leaf (an array, or a ShapeDtypeStruct with a sharding) passes through numpy."""
    sharding, size = leaf.sharding, math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize
    return size <= SMALL_BYTES and sharding.is_fully_addressable and sharding.is_fully_replicated


def one_copy(leaf: Any) -> Any:
    """Returns a leaf as it is stored: only the first copy, if several devices of this process have one.

    With all copies, orbax has each device write a slice, and compiles a program for each shape to cut it.
    """
    if not isinstance(leaf, jax.Array):
        return leaf
    if is_small(leaf):
        return np.asarray(leaf)
    if len(leaf.devices()) > 1 and leaf.is_fully_addressable:
        return leaf.addressable_data(0) if leaf.is_fully_replicated else leaf
    return leaf


def restore_target(leaf: Any) -> Any:
    """Returns orbax's target for a leaf: an array with its sharding, or a numpy array."""
    sharding = getattr(leaf, "sharding", None)
    if sharding is None or is_small(leaf):
        return np.empty(leaf.shape, leaf.dtype)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def refuse_misfit(folder: Path, stored: dict[str, str], wanted: dict[str, str], shown: int = 5) -> None:
    """Refuses a checkpoint whose leaves (`kinds`) are not those of the state.

    Raises:
      UserError: they differ; the message has the first `shown` differences.
    """
    problems = [
        f"{name} is {stored.get(name, 'absent')} there and {wanted.get(name, 'absent')} here"
        for name in dict.fromkeys([*wanted, *stored])
        if stored.get(name) != wanted.get(name)
    ]
    if problems:
        more = f"; and {len(problems) - shown} more" if len(problems) > shown else ""
        raise UserError(
            f"checkpoint {folder} does not fit: {'; '.join(problems[:shown])}{more}. "
            "It was saved with another model or another optimizer"
        )


# Prevents saves from growing the process: tensorstore never frees the JSON values that it returns to Python.
#
# tensorstore 0.1.76 to 0.1.86 leak 4 objects for each `KvStore.Spec.to_json()`, and more for each reading of its
# metrics. orbax calls the first for every array of every save, always with the folder of the save, and the second twice
# a save, only to log it. With 360 arrays a save grew the process by 140 kB (benchmarks/memory.py).

# A private module. It is the same in all orbax releases that pyproject.toml allows.


def avoid_leak() -> None:
    """Makes orbax ask tensorstore for the JSON of a folder once, and never for its metrics."""
    leakless = types.SimpleNamespace(**vars(tensorstore))
    leakless.KvStore = types.SimpleNamespace(Spec=_Spec, open=_open)
    leakless.experimental_collect_matching_metrics = lambda prefix: []
    tensorstore_utils.ts = leakless  # pyright: ignore[reportAttributeAccessIssue]


class _Spec:
    """The part of `tensorstore.KvStore.Spec` that orbax uses."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec

    def to_json(self) -> dict[str, Any]:
        """Returns the whole spec of a folder."""
        return json.loads(_resolved(json.dumps(self.spec, sort_keys=True)))


def _open(spec: _Spec, **options: Any) -> Any:
    return tensorstore.KvStore.open(spec.spec, **options)


@functools.lru_cache(maxsize=8)
def _resolved(text: str) -> str:
    return json.dumps(tensorstore.KvStore.Spec(json.loads(text)).to_json())


KEPT_NEWEST = 2

# Loggers that repeat orbax's errors.
_REPEATING_LOGGERS = ("absl", "asyncio")

_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run: saved in the background, checked when restored; close it, or use it as a context.

    With several processes, each must make one and call `save` and `restore` in the same way.
    """

    def __init__(self, folder: Path):
        self._folder = Path(os.path.realpath(folder))
        avoid_leak()
        # `save` itself makes the folders: in the background, a folder that cannot be made would hang for ten minutes.
        options = ocp.AsyncOptions(create_directories_asynchronously=False)
        self._orbax = ocp.AsyncCheckpointer(ocp.StandardCheckpointHandler(), async_options=options)
        self._publisher: threading.Thread | None = None
        self._broken: set[str] = set()
        self._saved, self._has_failed = True, False
        for name in _REPEATING_LOGGERS:
            logging.getLogger(name).addFilter(_is_worth_showing)
        self._excepthook = sys.excepthook
        sys.excepthook = self._show

    def save(self, step: int, state: Any, meta: dict[str, Any], is_best: bool) -> None:
        """Starts to save a state; the state may be donated or changed as soon as this returns.

        A save that fails (a full disk) is a warning, not an exception: older checkpoints stay, and `wait` returns
        False.

        Args:
          step: number of steps taken.
          state: pytree of jax or numpy arrays of any shape and dtype.
          meta: JSON-ready values that `restore` gives back.
          is_best: True if this is the best state so far; the newest of these is kept.

        Raises:
          ValueError: two leaves have one name, or a leaf is empty.
        """
        leaves = named_leaves(state)
        self.wait()
        self._saved = False
        content = {"step": int(step), "is_best": bool(is_best), "meta": meta, "leaves": kinds(leaves)}
        folder = self._folder / _name(step, _agreed([_free_save(self._folder, step)])[0])
        try:
            stored = {name: one_copy(leaf) for name, leaf in leaves.items()}
            self._orbax.save(folder / "state", args=ocp.args.StandardSave(stored))
        except Exception as error:
            self._give_up(folder, error)
            return
        self._publisher = threading.Thread(target=self._publish, args=(folder, content), name="checkpoint")
        self._publisher.start()

    def restore(self, like: Any, which: str) -> tuple[int, Any, dict[str, Any]] | None:
        """Returns (step, state, meta) of a checkpoint whose files are all as written, or None without one.

        Args:
          like: pytree of the state's structure. A jax array or a ShapeDtypeStruct with a sharding is restored to that
            sharding, on any number of devices; anything else becomes a numpy array.
          which: "newest", or "best" (if no best one is whole: the newest). A damaged checkpoint is kept; a warning
            gives the reason, and the previous one is tried.

        Raises:
          UserError: the state does not fit `like`; the message names the leaves.
        """
        if which not in ("newest", "best"):
            raise ValueError(f"which is {which!r}; it must be newest or best")
        self.wait()
        while (folder := self._folder_to_restore(best_first=which == "best")) is not None:
            try:
                return self._restore(folder, like)
            except (UserError, OSError, ValueError):
                # A training that is running may have saved a newer checkpoint, and removed this one.
                if (folder / MANIFEST_FILE).exists() or jax.process_count() > 1:
                    raise
        return None

    def _restore(self, folder: Path, like: Any) -> tuple[int, Any, dict[str, Any]]:
        manifest = read_manifest(folder)
        wanted = named_leaves(like)
        refuse_misfit(folder, manifest["leaves"], kinds(wanted))
        targets = {name: restore_target(leaf) for name, leaf in wanted.items()}
        restored = self._orbax.restore(folder / "state", args=ocp.args.StandardRestore(targets))
        shardings = {name: leaf.sharding for name, leaf in wanted.items() if hasattr(leaf, "sharding")}
        restored |= jax.device_put({name: restored[name] for name in shardings}, shardings)
        structure = jax.tree.structure(like)
        return manifest["step"], jax.tree.unflatten(structure, [restored[name] for name in wanted]), manifest["meta"]

    def steps(self) -> list[int]:
        """Returns the steps that have a manifest, oldest first; only `restore` checks their files."""
        return sorted({_step_of(name) for name in saved_checkpoints(self._folder)})

    def wait(self) -> bool:
        """Waits for a save in progress; returns False if the latest save failed (a warning has the reason)."""
        if self._publisher is not None:
            self._publisher.join()
            self._publisher = None
        return self._saved

    def close(self) -> None:
        """Waits for a save in progress and frees orbax's threads."""
        self.wait()
        self._orbax.close()
        if self._has_failed:
            # Objects of failed saves log errors when they are collected: collect them while these are still filtered.
            gc.collect()
        for name in _REPEATING_LOGGERS:
            logging.getLogger(name).removeFilter(_is_worth_showing)
        sys.excepthook = self._excepthook

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def _show(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        # After a failed save, tensorstore still reports to a closed event loop of orbax. That gives hundreds of
        # tracebacks for an error that is one warning here.
        if not (kind is RuntimeError and str(error) == "Event loop is closed"):
            self._excepthook(kind, error, trace)

    def _publish(self, folder: Path, content: dict[str, Any]) -> None:
        """Runs in a thread: waits for orbax, writes the manifest, then removes old checkpoints."""
        try:
            self._orbax.wait_until_finished()
            if jax.process_index() == 0:
                write_manifest(folder, content)
        except Exception as error:
            self._give_up(folder, error)
            return
        self._saved = True
        if jax.process_index() == 0:
            self._remove_old(folder)

    def _give_up(self, folder: Path, error: Exception) -> None:
        self._has_failed = True
        reason = re.sub(r" \[(tensorstore_spec|os_error_code)=.*", "", (str(error) or repr(error)).splitlines()[0])
        _logger.warning("checkpoint %s was not saved: %s; training continues, older checkpoints stay", folder, reason)
        if jax.process_index() == 0:
            # Remove it at once, or its files would keep a full disk full.
            shutil.rmtree(folder, ignore_errors=True)

    def _remove_old(self, newest: Path) -> None:
        names = [name for name in saved_checkpoints(self._folder) if name not in self._broken]
        latest = {_step_of(name): name for name in names}
        best = [name for name in names if _is_best(self._folder / name)]
        kept = {*[latest[step] for step in sorted(latest)[-KEPT_NEWEST:]], *best[-1:], *self._broken, newest.name}
        for entry in self._folder.iterdir():
            if CHECKPOINT_NAME.fullmatch(entry.name) and entry.name not in kept:
                # The manifest first: after a kill in between, the rest is a leftover, not a damaged checkpoint.
                (entry / MANIFEST_FILE).unlink(missing_ok=True)
                shutil.rmtree(entry, ignore_errors=True)

    def _folder_to_restore(self, best_first: bool) -> Path | None:
        """Returns the first whole checkpoint, newest first. Process 0 searches for it and broadcasts it."""
        chosen = (-1, 1)
        if jax.process_index() == 0:
            names = saved_checkpoints(self._folder)[::-1]
            if best_first:
                names.sort(key=lambda name: not _is_best(self._folder / name))
            name = next((name for name in names if self._is_whole(name)), None)
            if name is not None:
                chosen = checkpoint_order(name)
        step, save = _agreed(chosen)
        return None if step < 0 else self._folder / _name(step, save)

    def _is_whole(self, name: str) -> bool:
        found = find_damage(self._folder / name)
        # A training that is running removes the manifest first.
        if found and (self._folder / name / MANIFEST_FILE).exists():
            self._broken.add(name)
            text = "checkpoint %s is damaged (%s); it is kept, and the previous checkpoint is tried"
            _logger.warning(text, self._folder / name, found)
        return not found


def _name(step: int, save: int) -> str:
    return f"{step}" if save == 1 else f"{step}-{save}"


def _step_of(name: str) -> int:
    return checkpoint_order(name)[0]


def _free_save(folder: Path, step: int) -> int:
    save = 1
    while (folder / _name(step, save)).exists():
        save += 1
    return save


def _is_worth_showing(record: logging.LogRecord) -> bool:
    """Returns False for the tracebacks that orbax logs after a failed save: the error is already one warning."""
    is_leftover = record.name == "asyncio" and "never retrieved" in record.getMessage()
    return record.levelno < logging.ERROR or not ("orbax" in record.pathname or is_leftover)


def _is_best(folder: Path) -> bool:
    try:
        return read_manifest(folder)["is_best"]
    except UserError:
        return False


def _agreed(numbers: Sequence[int]) -> list[int]:
    """Returns process 0's numbers on every process."""
    if jax.process_count() == 1:
        return list(numbers)
    return multihost_utils.broadcast_one_to_all(np.array(numbers, np.int32)).tolist()
