"""Opens the run folder for a config, and lets only one process at a time write in it.

Input: a resolved config and the text of split.csv. Output: a `RunFolder`, which is locked until it is closed, with the
action: start, resume, or finished. With several processes, only process 0 opens it and informs the others.
"""

import contextlib
import fcntl
import logging
import os
import shlex
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxpose.checksums import write_csv, write_json
from jaxpose.cluster.agreement import broadcast_from_0, refuse_unshared
from jaxpose.config import Config, differing_keys
from jaxpose.config.model import NO_WEIGHTS
from jaxpose.config.train import total_steps
from jaxpose.data.split import count_training_frames
from jaxpose.errors import UserError
from jaxpose.files import open_shared, pattern_of
from jaxpose.outputs import remove_leavings
from jaxpose.poses import SETS
from jaxpose.run.identity import (
    LENGTH_KEYS,
    Extension,
    SplitRows,
    differences,
    extension_of,
    find_run,
    parse_split_rows,
    read_config,
    read_split_rows,
    settle,
    with_length_of,
    write_config,
)
from jaxpose.run.paths import (
    CHECKPOINT_MANIFESTS,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    FINDER_FOLDER,
    FINISHED_FILE,
    INDEX_FILE,
    LOCK_FILE,
    MEMBERS_FOLDER,
    RESULTS,
    SPLIT_FILE,
    VIDEO_TABLES_FOLDER,
    WRITTEN,
    default_path,
    foreign_names,
    refuse_pattern,
    refuse_unusable_out,
    write_pointer,
)
from jaxpose.run.status import CONVERTED, Status, read_summary, status_of, write_status
from jaxpose.terminal import listed

# The lock of a run folder: only one process at a time writes there.

_LOCK_WAITS_S = (0.02, 0.1)

_logger = logging.getLogger(__name__)


def lock_folder(path: Path) -> int:
    """Makes a run folder and locks it; the system releases the lock when the process dies.

    Returns:
      The descriptor that holds the lock; closing it releases the lock.

    Raises:
      UserError: another process writes in the folder.
      OSError: the folder or its lock cannot be made.
    """
    path.mkdir(parents=True, exist_ok=True)
    lock = open_shared(path / LOCK_FILE, os.O_RDWR)
    try:
        _take(lock)
    except BlockingIOError:
        owner = os.pread(lock, 200, 0).decode(errors="replace").strip()
        os.close(lock)
        raise UserError(f"a run is writing in {path} ({owner}); wait for it, or choose another out") from None
    except OSError as error:
        _logger.warning("%s cannot be locked (%s): do not start a second run in it", path, error.strerror)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


def _take(descriptor: int) -> None:
    # jaxpose.watch holds the lock for microseconds, so try again before giving up.
    for wait_s in _LOCK_WAITS_S:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(wait_s)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


# Advice for the user if a run folder does not hold the requested run.

_INPUT = ("data.input_width_px", "data.input_height_px")
# Options that jaxpose fills in from the labelled images.
_OF_LABELS = (*_INPUT, "data.frame_sizes_px")


def way_on(run: Path, config: Config, split_text: str) -> str:
    """Returns advice, in one or two sentences, if the run in a folder differs from a config or a split.csv.

    Raises:
      UserError: the run's config cannot be read.
    """
    stored = read_config(run / CONFIG_FILE)
    keys = differing_keys(stored, config)
    old = _labelled(read_split_rows(run)) if (run / SPLIT_FILE).exists() else None
    new = _labelled(parse_split_rows(split_text))
    if keys and keys.keys() <= set(LENGTH_KEYS) and old in (None, new):
        frames = count_training_frames(new.values(), config.model.kind)
        if total_steps(config.train, frames) > total_steps(stored.train, frames):
            return "Add resume=extend to train this run longer, or choose another out"
        length = " ".join(f"{key}={before}" for key, (before, _) in keys.items())
        return f"Give {length} to resume this run, or choose another out"
    if keys.keys() <= set(_OF_LABELS) and old not in (None, new) and any(run.glob(CHECKPOINT_MANIFESTS)):
        name, out = shlex.quote(str(run)), " out=NEW_FOLDER" if config.out else ""
        size = "".join(f" {key}={before}" for key, (before, _) in keys.items() if key in _INPUT)
        return (
            f"{_new_frames(len(new.keys() - old.keys()))}To train on the current labels, starting from the weights of "
            f"this run and keeping its frames in their sets, add data.split={name} "
            f"{start_options(run, config)}{size}{out}; this run stays unchanged"
        )
    return "Choose another out, or resume=overwrite to start over"


def start_options(run: Path, config: Config) -> str:
    """Returns the options that make a config start from the weights of a run, as text for the command line."""
    # Only one of the two options may name weights.
    other = "" if config.model.weights == NO_WEIGHTS else f" model.weights={NO_WEIGHTS}"
    return f"train.init_from={shlex.quote(str(run))}{other}"


def _new_frames(count: int) -> str:
    if not count:
        return ""
    return "1 labelled frame is new. " if count == 1 else f"{count} labelled frames are new. "


def _labelled(rows: SplitRows) -> SplitRows:
    """Returns the rows of labelled frames."""
    return {path: row for path, row in rows.items() if row.get("set") in SETS}


# Decides what to do with a run folder: start, resume, report a finished run, or refuse another run.


def decide_action(path: Path, config: Config, split_text: str) -> tuple[str, tuple[str, ...], Extension | None]:
    """Applies the table of run folders and `resume` (docs/data.md); writes nothing.

    Args:
      path: the run folder.
      config: resolved config.
      split_text: content of split.csv for this config and data.

    Returns:
      The action ("start", "resume" or "finished"), messages for the user, and the extension that makes the run longer,
      if any.

    Raises:
      UserError: the folder holds another run, or `config.resume` does not allow the action.
    """
    if config.resume == "overwrite":
        return "start", (), None
    if not (path / CONFIG_FILE).exists():
        if config.resume in ("must", "extend"):
            raise UserError(f"resume is {config.resume}, but {path} holds no run; use resume=auto to start one")
        return "start", (), None
    if config.resume == "never":
        raise UserError(f"resume is never, but {path} holds a run; choose another out, or resume=overwrite")
    compared = with_length_of(read_config(path / CONFIG_FILE), config) if config.resume == "extend" else config
    found = differences(path, compared, split_text)
    if found:
        raise UserError(
            f"{path} holds another run; differing: {'; '.join(found)}. {way_on(path, compared, split_text)}"
        )
    is_finished = (path / FINISHED_FILE).exists()
    extension = extension_of(path, config, split_text) if config.resume == "extend" else None
    unchecked: tuple[str, ...] = ()
    if not (path / SPLIT_FILE).exists() and (is_finished or any((path / CHECKPOINTS_FOLDER).glob("[0-9]*"))):
        unchecked = (f"{path / SPLIT_FILE} is gone, so jaxpose cannot check that the data are unchanged",)
    if is_finished and not extension:
        return "finished", unchecked, None
    if is_finished and (why_not := _why_not_longer(read_summary(path).get("reason"), config)):
        raise UserError(
            f"resume is extend, but the run in {path} {why_not}; {start_options(path, config)} without resume=extend "
            "starts a new run from its weights"
        )
    messages = extension.messages() if extension else ()
    if extension and not config.out:
        messages = (f"{path} is the only run there that differs only in its length", *messages)
    messages += unchecked
    if extension and any((path / VIDEO_TABLES_FOLDER).glob("*.csv")):
        messages += (
            f"{path / VIDEO_TABLES_FOLDER} holds predictions of earlier weights; {INDEX_FILE} names their weights",
        )
    return "resume", messages, extension


def _why_not_longer(reason: object, config: Config) -> str:
    """Returns why a finished run with this `reason` cannot be trained longer, or ""."""
    if reason == "early stop":
        patience = config.train.early_stop_patience
        return f"stopped early (train.early_stop_patience = {patience}), as a longer one would"
    return "was converted from another tool and has no checkpoints" if reason == CONVERTED else ""


def refuse_foreign(path: Path) -> None:
    """Raises UserError if a folder holds files but no run."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"the run folder {path} is a file; choose another out")
    if (path / CONFIG_FILE).exists():
        read_config(path / CONFIG_FILE)
        return
    if foreign := foreign_names(entry.name for entry in path.iterdir()):
        raise UserError(
            f"{path} holds files, but no run of jaxpose ({listed(foreign, 3)}); jaxpose never "
            "deletes them: choose another out"
        )


class RunFolder:
    """A run folder: its `path`, and `action`: "start", "resume" or "finished".

    Attributes:
      is_ours: whether this process has locked it and writes in it; False in a dry run, and on all processes except the
        first.
      messages: for the user, one sentence each.
    """

    def __init__(self, path: Path, action: str, lock: int = -1, messages: tuple[str, ...] = ()):
        self.path = path
        self.action = action
        self.messages = messages
        self.is_ours = lock >= 0
        self._lock = lock

    def finish(self, summary: dict[str, Any]) -> None:
        """Marks the run as finished, with its summary (JSON-ready)."""
        write_json(self.path / FINISHED_FILE, summary)

    def note_end(self, status: Status) -> None:
        """Records how the run ends, for jaxpose.watch."""
        if self.is_ours:
            # On a full disk, jaxpose.watch sees that the lock is free.
            with contextlib.suppress(OSError):
                write_status(self.path, status)

    @contextlib.contextmanager
    def noting_failures(self) -> Iterator[None]:
        """A context that records an exception as the end of the run."""
        try:
            yield
        except BaseException as error:
            self.note_end(status_of(error))
            raise

    def close(self) -> None:
        """Releases the folder for another process."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def open_run(
    config: Config,
    split_text: str,
    fetch: Callable[[Path], list[str]] = lambda path: [],
    *,
    dry_run: bool = False,
    is_member: bool = False,
) -> RunFolder:
    """Returns the run folder of a config, locked and ready to be written in by process 0.

    Args:
      config: resolved config (`jaxpose.config.resolve`).
      split_text: content of split.csv for this config and data, columns path,bytes,sha256,set,labels_sha256.
      fetch: called with the folder's path once it is locked; may put a run into an empty folder, and returns messages.
      dry_run: write and lock nothing; then it is unknown whether another process writes there.
      is_member: the run is a member of an ensemble, or a finder; a restart opens the folder that holds it.

    Raises:
      UserError: the folder holds another run, files but no run, or an active run; `config.resume` does not allow the
        action; or the folder cannot be written to, or is not the same for all processes.
    """
    opened: list[RunFolder] = []

    def open_first() -> list[str]:
        opened.append(_look_at(config, split_text, fetch) if dry_run else _open(config, split_text, fetch, is_member))
        return [str(opened[0].path.absolute()), opened[0].action]

    path, action = broadcast_from_0(open_first)
    folder = opened[0] if opened else RunFolder(Path(path), action)
    if not dry_run:
        try:
            refuse_unshared(folder.path)
        except BaseException:
            folder.close()
            raise
    return folder


def _open(config: Config, split_text: str, fetch: Callable[[Path], list[str]], is_member: bool) -> RunFolder:
    path, lock = _path(config), -1
    try:
        refuse_unusable_out(str(path))
        refuse_foreign(path)
        lock = lock_folder(path)
        if not (path / CONFIG_FILE).exists():
            remove_leavings(path)
        fetched = fetch(path)
        # Check again: another process may have written here in between.
        refuse_foreign(path)
        action, messages, extension = decide_action(path, config, split_text)
        if action != "finished":
            refuse_pattern(path)
        if config.resume == "overwrite":
            _remove_members(path)
            _remove(path, WRITTEN)
        if extension:
            # The config last: until then, the folder holds the old run without its end.
            extension.record(path)
            _remove(path, RESULTS)
        if action != "finished":
            settle(path, config)
            # The config first: a folder with only split.csv would look foreign. Also on resume: a harmless option may
            # have changed, and split.csv is absent if the run was killed during its start.
            write_config(path / CONFIG_FILE, config)
            write_csv(path / SPLIT_FILE, split_text)
            write_status(path, Status())
        if not is_member:
            write_pointer(path, os.environ)
        return RunFolder(path, action, lock, (*fetched, *messages))
    except BaseException as error:
        if lock >= 0:
            os.close(lock)
        if isinstance(error, OSError):
            raise UserError(f"run folder {path} cannot be used: {error}; choose another out") from None
        raise


def _look_at(config: Config, split_text: str, fetch: Callable[[Path], list[str]]) -> RunFolder:
    path = _path(config)
    try:
        refuse_unusable_out(str(path))
        refuse_foreign(path)
        fetched = fetch(path)
        action, messages, _ = decide_action(path, config, split_text)
        if action != "finished":
            refuse_pattern(path)
        return RunFolder(path, action, messages=(*fetched, *messages))
    except OSError as error:
        raise UserError(f"run folder {path} cannot be used: {error}; choose another out") from None


def _path(config: Config) -> Path:
    if config.out:
        return Path(config.out).expanduser()
    default = default_path(config)
    return find_run(default.parent, config) if config.resume == "extend" else default


def _remove_members(path: Path) -> None:
    """Deletes the files that jaxpose wrote into the folders of members and of a finder; other files there stay."""
    for member in sorted([*(path / MEMBERS_FOLDER).glob("[0-9]*"), *path.glob(FINDER_FOLDER)]):
        os.close(lock_folder(member))
        _remove(member, (*WRITTEN, CONFIG_FILE, LOCK_FILE))
        with contextlib.suppress(OSError):
            for folder in (*(member / Path(pattern).parent for pattern in WRITTEN), member):
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()


def _remove(path: Path, patterns: tuple[str, ...]) -> None:
    """Deletes files that jaxpose wrote, in this order; config.json stays, or the folder would be foreign."""
    for pattern in patterns:
        folder, name = path / Path(pattern).parent, Path(pattern).name
        for entry in sorted([*folder.glob(name), *folder.glob(pattern_of(name))]):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
