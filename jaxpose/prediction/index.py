"""index.csv in the results folder, which has a row for each input with the origin of its table; and claims on work.

The index ensures that no table is mistaken for another, and that a second command predicts only missing or changed
inputs.
"""

import contextlib
import csv
import dataclasses
import hashlib
import io
import itertools
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpose.checksums import DamagedFile, parse_csv, write_csv
from jaxpose.config import config_hash
from jaxpose.config.output import AS_RUN
from jaxpose.data.cells import path_cell, path_of_cell
from jaxpose.data.inputs import TABLES_BESIDE
from jaxpose.errors import UserError
from jaxpose.files import open_regular, sha256_of
from jaxpose.run.paths import CLAIMS_FOLDER, INDEX_FILE
from jaxpose.run.pca import Subspaces, within_a_view

if TYPE_CHECKING:
    from jaxpose.prediction.predictor import Predictor

# A row of index.csv: an input, the origin of its table, and the outcome.
#
# Does not import jax, so that verbs that only read tables start quickly.

CHECKSUM_DIGITS = 16
# Of /proc/<process>/stat, counted from the one after the state.
_START_FIELD = 18
# More than a claim has.
_TEXT_BYTES = 1000
WAITING, DONE, DAMAGED, FAILED = "waiting", "done", "damaged", "failed"


@dataclasses.dataclass(frozen=True)
class Row:
    """The row of an input.

    Attributes:
      path: absolute path of the video or the image folder.
      size: bytes; for images, their sum.
      mtime: time of the last change, seconds since 1970; for images, the newest.
      files: checksum of name, size and time of each image, or of the video and its box file.
      model: checksum of the weights.
      frames_announced: frames according to the file's header.
      frames_delivered: rows of the table.
      seconds: computing time of all workers.
      state: waiting, done, damaged (the input cannot be fully predicted; not tried again until it changes) or failed
        (for another reason; the next command tries again).
      reason: why it is not done, or a remark.
      table: path below the results folder.
      table_size: total bytes of the input's tables.
      table_sha256: digits of the prediction table's checksum, "" before it is done.
      run: hash of the run's config.
      arithmetic: everything that affects the tables' last bits, as in a run's arithmetic.json; " | " separates parts
        made in different ways. "" before it is done.
    """

    path: str
    size: int
    mtime: str
    files: str
    model: str
    frames_announced: int
    frames_delivered: int
    seconds: float
    state: str
    reason: str
    table: str
    table_size: int
    table_sha256: str
    run: str
    arithmetic: str

    def is_of_same(self, other: "Row") -> bool:
        """Returns whether both rows have the same frames and network."""
        return self._frames() == other._frames() and (self.model, self.run) == (other.model, other.run)

    def _frames(self) -> tuple[str, int, str, str]:
        # Hosts may have different paths for the same folder.
        return Path(self.path).name, self.size, self.mtime, self.files


COLUMNS = [field.name for field in dataclasses.fields(Row)]
_TYPES: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Row)}


def identity_of(sources: Sequence[Path], more_files: Sequence[Path] = ()) -> tuple[int, str, str]:
    """Returns `size`, `mtime` and `files` of the row for a video or images.

    Args:
      sources: the video, or the images.
      more_files: the video's box file, and the videos of the other cameras, if any; they affect only `files`.

    Raises:
      OSError: a file no longer exists.
    """
    status = [source.stat() for source in sources]
    newest_ns = max(entry.st_mtime_ns for entry in status)
    all_files = zip([*sources, *more_files], [*status, *(file.stat() for file in more_files)], strict=True)
    each = [(file.name, entry.st_size, entry.st_mtime_ns) for file, entry in all_files]
    size, mtime = sum(entry.st_size for entry in status), f"{newest_ns // 10**9}.{newest_ns % 10**9:09}"
    return size, mtime, hashlib.sha256(repr(each).encode()).hexdigest()[:CHECKSUM_DIGITS]


def parse_rows(file: Path, data: bytes) -> dict[str, Row]:
    """Returns {table: row} from the content of an index.csv.

    Raises:
      DamagedFile: it is not an index, or not as written by jaxpose.
    """
    mend = "remove the file and give --overwrite, or choose another --out"
    rows = {}
    for number, cells in enumerate(parse_csv(data, file, mend), 1):
        try:
            row = Row(**{name: _TYPES[name](path_of_cell(cell)) for name, cell in cells.items()})
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"{file} is not an index of this version: row {number} ({error}); {mend}") from None
        rows[row.table] = row
    return rows


# Names of the tables next to a prediction table <table>.csv: <table>_temporal_norm.csv and others.

TEMPORAL_NORM = "_temporal_norm"
SMOOTHED = "_smoothed"
# The table of the animals of each frame of a video, and their tracks.
DETECTIONS, TRACKS = "_detections", "_tracks"
# The suffix of an incomplete table.
PARTIAL = ".partial"


def beside(table: Path, suffix: str) -> Path:
    """Adds a suffix, such as TEMPORAL_NORM, to the name of a prediction table."""
    return table.with_name(f"{table.stem}{suffix}.csv")


def error_suffix(name: str) -> str:
    """Returns the suffix of a loss's error table, such as "_pca_singleview_error"."""
    return f"_{name}_error"


def suffixes_beside(predictor: "Predictor") -> tuple[str, ...]:
    """Returns the suffixes of the other tables that `predict_segment` writes."""
    norm = () if predictor.animals else (TEMPORAL_NORM,)
    return (*norm, *map(error_suffix, subspaces_of_a_view(predictor)))


def subspaces_of_a_view(predictor: "Predictor") -> Subspaces:
    """Returns the subspaces that need the predictions of only one camera.

    Poses across cameras are known only after all views are predicted: see `write_moment_errors`.
    """
    return {} if predictor.animals else within_a_view(predictor.subspaces, len(predictor.config.data.views))


def size_of(table: Path, suffixes: Sequence[str]) -> int:
    """Returns the total bytes of a prediction table and the existing tables next to it."""
    files = [table, *(beside(table, suffix) for suffix in suffixes)]
    return sum(file.stat().st_size for file in files if file.is_file())


def edited_name(table: Path) -> Path:
    """Returns an unused name for a table that someone edited: <table>.edited.csv, or .edited2.csv."""
    names = (table.with_suffix(f".edited{number}.csv") for number in itertools.chain([""], itertools.count(2)))
    return next(name for name in names if not name.exists())


def smoothing_record(table: Path) -> Path:
    """Returns the file that records how the smoothed table of a prediction table was made."""
    return beside(table, SMOOTHED).with_suffix(".json")


def remove_smoothed(table: Path) -> None:
    """Removes the smoothed table of a prediction table that is about to change."""
    smoothing_record(table).unlink(missing_ok=True)
    beside(table, SMOOTHED).unlink(missing_ok=True)


def remove_tables(table: Path) -> None:
    """Removes a prediction table and all tables next to it, including unfinished ones."""
    remove_smoothed(table)
    for file in (table, *(beside(table, suffix) for suffix in TABLES_BESIDE)):
        file.unlink(missing_ok=True)
        file.with_name(f"{file.name}{PARTIAL}").unlink(missing_ok=True)


# Claims on work that processes on any hosts share through a folder: each claim has one holder.
#
# A claim is a file <name>.<generation> that exactly one process can create. Its holder touches it regularly. If its
# time stays unchanged for long enough, the holder counts as dead, and the process that creates the file of the next
# generation has the claim. Times are compared only with earlier times of the same file, so host clocks do not matter.

# The number of times that a holder touches its claim, and that others check it, before the holder counts as dead.
_BEATS = 5
# Maximum seconds between two checks of work that others hold.
_LOOK_S = 1.0
# Seconds between two attempts to take a briefly held claim.
_MOMENT_S = 0.02


class Claim:
    """A claim that this process holds; a context manager that releases it.

    Attributes:
      token: unique to this claim.
      text: content of its file.
      is_lost: whether another process took it over because this process was frozen for long.
    """

    def __init__(self, claims: "Claims", name: str, generation: int):
        self.token = uuid.uuid4().hex
        self.text = f"{self.token} process {os.getpid()} on {socket.gethostname()}\n{_place()} {_start(os.getpid())}\n"
        self.is_lost = False
        self._claims, self._name, self._generation = claims, name, generation

    def refresh(self) -> bool:
        """Touches the claim and returns whether this process still holds it."""
        file = self._file(self._generation)
        try:
            os.utime(file)
            self.is_lost |= file.read_bytes() != self.text.encode() or self._file(self._generation + 1).exists()
        except FileNotFoundError:
            self.is_lost = True
        except OSError:
            # A network folder may be briefly unavailable; other processes then cannot see it either.
            pass
        return not self.is_lost

    def release(self) -> None:
        """Releases the claim."""
        self._claims.drop(self)
        if self.refresh():
            for generation in range(self._generation + 1):
                with contextlib.suppress(OSError):
                    self._file(generation).unlink(missing_ok=True)

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _file(self, generation: int) -> Path:
        return self._claims.folder / f"{self._name}.{generation}"


class Claims:
    """The claims in a folder; a context manager that is open while work is claimed.

    Args:
      out: the output folder of all workers.
      silent_s: a holder counts as dead after this many seconds without a touch; at once if it was a process of this
        machine that has ended.

    Attributes:
      out, folder: the output folder of all workers, and its folder of claims.
      beat_s: seconds between two touches of a claim that this process holds.
      look_s: seconds between two checks of work that other processes hold.
    """

    def __init__(self, out: Path, silent_s: float | int):
        self.out, self.folder = out, out / CLAIMS_FOLDER
        self.beat_s = silent_s / _BEATS
        self.look_s = min(_LOOK_S, self.beat_s)
        self._silent_s = silent_s
        self._held: set[Claim] = set()
        # {file of another process's claim: (time and inode, when it was checked, how long it was unchanged)}
        self._seen: dict[Path, tuple[tuple[int, int], float, float]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="claims", daemon=True)

    def __enter__(self) -> "Claims":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def take(self, name: str) -> Claim | None:
        """Returns the claim on a piece of work, None if another process holds it.

        Only repeated calls can detect a dead holder.

        Args:
          name: of the work; letters, digits and hyphens.

        Raises:
          OSError: the folder is not writable.
        """
        newest = self._newest(name)
        if newest >= 0 and not self._is_dead(self.folder / f"{name}.{newest}"):
            return None
        file = self.folder / f"{name}.{newest + 1}"
        try:
            try:
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileNotFoundError:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except (FileExistsError, FileNotFoundError):
            # Another process was faster to create the file or to remove the empty folder.
            return None
        claim = Claim(self, name, newest + 1)
        try:
            with os.fdopen(descriptor, "w") as stream:
                stream.write(claim.text)
        except OSError as error:
            # The disk may be full; other workers would wait until the empty claim counts as dead.
            file.unlink(missing_ok=True)
            error.filename = str(file)
            raise
        with self._lock:
            self._held.add(claim)
        return claim

    def drop(self, claim: Claim) -> None:
        """Stops touching a claim."""
        with self._lock:
            self._held.discard(claim)

    @contextlib.contextmanager
    def waited_for(self, name: str) -> Iterator[Claim]:
        """Waits for a claim that processes hold only briefly, and takes it.

        Raises:
          OSError: the folder is not writable.
        """
        while (claim := self.take(name)) is None:
            time.sleep(_MOMENT_S)
        with claim:
            yield claim

    def forget(self, prefix: str) -> None:
        """Removes all claims with a prefix, left by dead holders of finished work."""
        for file in self.folder.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)

    def _newest(self, name: str) -> int:
        """Returns the newest generation of a claim, -1 without any."""
        numbers = [file.suffix[1:] for file in self.folder.glob(f"{name}.*")]
        return max((int(number) for number in numbers if number.isdecimal()), default=-1)

    def _is_dead(self, file: Path) -> bool:
        try:
            # Opening a file makes a network folder get the current times from its server.
            with file.open("rb") as stream:
                status, text = os.fstat(stream.fileno()), stream.read(_TEXT_BYTES).decode(errors="replace")
        except OSError:
            return False
        if _has_ended(text):
            return True
        look, now = (status.st_mtime_ns, status.st_ino), time.monotonic()
        with self._lock:
            before, looked, silent_s = self._seen.get(file, (None, now, 0.0))
            # If this process was frozen, the holder may have been as well: a long gap between checks proves little.
            silent_s = silent_s + min(now - looked, 2 * self.beat_s) if look == before else 0.0
            self._seen[file] = look, now, silent_s
        return silent_s > self._silent_s

    def _beat(self) -> None:
        while not self._ended.wait(self.beat_s):
            with self._lock:
                held = list(self._held)
            for claim in held:
                claim.refresh()


def _place() -> str:
    """Returns the part of this machine in which a number names one process, "-" if the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "-"


def _start(process: int) -> str:
    """Returns a process's number and when it started; "" if it has ended, or its parent has not noticed yet."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else f"{process} {fields[_START_FIELD]}"


def _has_ended(text: str) -> bool:
    """Returns whether the holder of a claim was a process of this machine, and has ended."""
    _, _, holder = text.partition("\n")
    place, _, start = holder.removesuffix("\n").rpartition(" ")
    place, _, process = place.rpartition(" ")
    if not holder.endswith("\n") or not process.isdecimal() or place != _place():
        return False
    try:
        os.kill(int(process), 0)
    except PermissionError:
        # Another user's process, which the system may hide.
        return False
    except OSError:
        return True
    return _start(int(process)) != f"{process} {start}"


_logger = logging.getLogger(__name__)


class PredictionIndex:
    """The index of a results folder; other processes may also write it.

    Args:
      out: the results folder.
      claims: on the work in that folder.
      suffixes: of the tables next to each prediction table; see `suffixes_beside`.
    """

    def __init__(self, out: Path, claims: Claims, suffixes: Sequence[str] = ()):
        self._out, self._file, self._claims, self._suffixes = out, out / INDEX_FILE, claims, suffixes
        self._lock = threading.Lock()
        self._read: tuple[tuple[int, int, int] | None, dict[str, Row]] = (None, {})

    def rows(self) -> dict[str, Row]:
        """Returns {table: row}; reads a changed file again.

        Raises:
          DamagedFile: the file is not an index, or has changed since jaxpose wrote it.
          OSError: it cannot be read.
        """
        try:
            with open_regular(self._file) as stream:
                status = os.fstat(stream.fileno())
                look = status.st_mtime_ns, status.st_ino, status.st_size
                known, rows = self._read
                if look != known:
                    rows = parse_rows(self._file, stream.read())
                    self._read = look, rows
                return rows
        except FileNotFoundError:
            # Without the index, every table is of unknown origin.
            return {}

    def is_there(self, row: Row, overwrite: bool = False) -> bool:
        """Returns whether an input's table exists or cannot be made; False if it must be made.

        Args:
          row: of the input in its current state.
          overwrite: replaces existing tables.

        Raises:
          UserError: the table exists, but is from other frames or another run.
        """
        noted, table = self.rows().get(row.table), self._out / row.table
        if overwrite:
            return False
        if noted and noted.is_of_same(row):
            # If a table was shortened or removed, all are replaced.
            is_whole = noted.state == DONE and table.is_file() and self.bytes_of(table) == noted.table_size
            return is_whole or noted.state == DAMAGED
        if not table.is_file() or (noted and (noted.path, noted.run) == (row.path, row.run)):
            return False
        what = "other frames" if noted and noted.run == row.run else "another run, or of unknown origin"
        raise UserError(f"{table} already exists, of {what}: give --overwrite to replace it, or choose another --out")

    def set_aside_edited(self, rows: Iterable[Row]) -> None:
        """Renames edited tables of inputs that are about to be predicted again; reports each.

        A table is edited if its checksum differs from the index.

        Raises:
          OSError: a table cannot be read or renamed.
        """
        rows = list(rows)

        def change(known: dict[str, Row]) -> None:
            for row in rows:
                noted, table = known.get(row.table), self._out / row.table
                if noted is None or noted.state != DONE or not table.is_file():
                    continue
                if not sha256_of(table).startswith(noted.table_sha256):
                    kept = edited_name(table)
                    os.replace(table, kept)
                    _logger.warning(
                        f"{table} was changed since it was written: jaxpose writes it again, and keeps the changed "
                        f"file as {kept}"
                    )

        self._write(change)

    def bytes_of(self, table: Path) -> int:
        """Returns the total size of a prediction table and the existing tables next to it."""
        return size_of(table, self._suffixes)

    def begin(self, rows: Iterable[Row], overwrite: bool = False) -> None:
        """Adds the inputs to predict, except those that other processes have already added or finished."""
        rows = list(rows)

        def change(known: dict[str, Row]) -> None:
            for row in rows:
                noted = known.get(row.table)
                is_noted = noted is not None and noted.is_of_same(row) and noted.state == WAITING
                if not is_noted and not self.is_there(row, overwrite):
                    known[row.table] = row

        self._write(change)

    def note(self, row: Row) -> bool:
        """Records the outcome of an input; returns False if another command began it with other frames or weights."""
        is_same: list[bool] = []

        def change(known: dict[str, Row]) -> None:
            noted = known.get(row.table)
            is_same.append(noted is None or noted.is_of_same(row))
            if is_same[-1]:
                known[row.table] = row

        self._write(change)
        return is_same[-1]

    def _write(self, change: Callable[[dict[str, Row]], None]) -> None:
        """Applies `change` to the rows and writes them, while no other process writes."""
        while True:
            with self._lock, self._claims.waited_for("index") as claim:
                rows = dict(self.rows())
                change(rows)
                if not rows:
                    return
                text = io.StringIO()
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(COLUMNS)
                # The reason may begin with a file name.
                writer.writerows([path_cell(str(cell)) for cell in dataclasses.astuple(row)] for row in rows.values())
                # If this process was frozen for long, another process may have written.
                if claim.refresh():
                    write_csv(self._file, text.getvalue())
                    return


def boxes_of(predictor: "Predictor", video: Path) -> tuple[Path, ...]:
    """Returns the box file of a video, () if the run sees whole frames.

    Raises:
      UserError: it does not exist.
    """
    return (predictor.boxes.file_of(video),) if predictor.boxes else ()


def row_of(
    out: Path, table: Path, path: Path, sources: Sequence[Path], predictor: "Predictor", others: Sequence[Path] = ()
) -> Row:
    """Returns the row of a waiting input.

    Args:
      out: the results folder.
      table: the prediction table below it.
      path: the video, or the image folder.
      sources: the video, or the images.
      predictor: the trained network.
      others: the videos of the other cameras, if the network sees them together.

    Raises:
      OSError: a file no longer exists.
      UserError: the run needs boxes but the video has no box file.
    """
    size, mtime, files = identity_of(sources, (*boxes_of(predictor, path), *others))
    # Like other weights, another orientation requires a new prediction.
    how = predictor.config.predict.orientation
    return Row(
        path=os.path.abspath(path),
        size=size,
        mtime=mtime,
        files=files,
        model=predictor.checksum[:CHECKSUM_DIGITS] + ("" if how == AS_RUN or path in sources else f" {how}"),
        frames_announced=len(sources),
        frames_delivered=0,
        seconds=0.0,
        state=WAITING,
        reason="",
        table=table.relative_to(out).as_posix(),
        table_size=0,
        table_sha256="",
        run=config_hash(predictor.config),
        arithmetic="",
    )
