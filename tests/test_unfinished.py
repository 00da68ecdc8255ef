"""Files while they are written: no link redirects them, killed processes leave nothing, errors name the file."""

import ast
import contextlib
import errno
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxpose.files import (
    GrowingFile,
    open_atomic,
    open_new,
    open_shared,
    remove_unfinished,
    replace_whole,
    write_atomic,
)
from jaxpose.formats.lightning_pose.tables import write_rows
from jaxpose.outputs import write_folder
from jaxpose.run.folder import lock_folder
from tests.disks import full_disk

PACKAGE = Path(__file__).resolve().parents[1] / "jaxpose"
# The machine itself.
WRITERS = {"files.py", "unfinished.py"}
# Calls that write a file at a path; `Path.replace` and `str.replace` look alike, so the former has another rule.
WRITES = re.compile(
    r"(^|\.)(write_text|write_bytes|imwrite|to_csv|to_hdf|to_parquet|to_excel|tofile|savez|savez_compressed|savetxt|"
    r"savefig|save_file|save_slp|save_labels|write_table|VideoWriter|HDFStore|NWBHDF5IO|NamedTemporaryFile|mkstemp|"
    r"mkdtemp|TemporaryDirectory|copyfile|copy2?|copytree|move|link|symlink|symlink_to|hardlink_to|touch|truncate|"
    r"EventFileWriter|SummaryWriter|FileHandler)$|^(np|numpy)\.save$|^os\.(replace|rename|renames)$"
)
LIBRARIES = {"h5py.File", "av.open", "connection"}
# What moves a finished file or folder, and what has no name that somebody could know before.
ALLOWED = {
    ("cluster/agreement.py", "touch"), ("cluster/program_cache.py", "os.open"), ("config/arguments.py", "os.open"),
    ("data/label_changes.py", "os.replace"), ("data/label_changes.py", "os.open"),
    ("doctor.py", "tempfile.NamedTemporaryFile"), ("formats/deeplabcut/tables.py", "to_csv"),
    ("hdf5_file.py", "HDFStore"), ("hdf5_file.py", "h5py.File"), ("formats/nwb.py", "connection"),
    ("label/videos.py", "symlink_to"), ("label/training.py", "symlink_to"), ("label/background.py", "os.open"),
    # In memory.
    ("labelling/sleap_file.py", "h5py.File"),
    ("formats/lightning_pose/tables.py", "os.replace"), ("prediction/index.py", "os.open"),
    ("prediction/index.py", "os.replace"), ("prediction/worker.py", "os.replace"),
    ("outputs.py", "os.replace"), ("outputs.py", "os.open"), ("data/label_changes.py", "os.replace"),
    ("prediction/job.py", "os.rename"), ("remote/restore.py", "os.replace"), ("run/status.py", "os.open"),
}  # fmt: skip


def dotted(function: ast.expr) -> str:
    """The name of what is called, with "()" for what is no name; `ast.unparse` takes ten times as long."""
    parts = []
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    return ".".join([function.id if isinstance(function, ast.Name) else "()", *reversed(parts)])


def writing_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that write files, or open them for it."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        texts += [
            str(word.value.value)
            for word in node.keywords
            if word.arg == "mode" and isinstance(word.value, ast.Constant)
        ]
        is_open = name == "open" or name.endswith(".open") or name in LIBRARIES
        if is_open and name != "os.open" and any(re.fullmatch(r"[rwaxbt+]*[wax+][rwaxbt+]*", text) for text in texts):
            yield node
        elif name == "os.open" or (WRITES.search(name) and not name.endswith((".copy", "dict.copy"))):
            yield node


def is_given_by(node: ast.Call, withs: list[ast.With]) -> bool:
    """Whether a call gets the path of a `with replace_whole(...) as path` around it."""
    for around in withs:
        for item in around.items:
            is_ours = isinstance(item.context_expr, ast.Call) and ast.unparse(item.context_expr.func) == "replace_whole"
            inside = any(inner is node for inner in ast.walk(around))
            if is_ours and inside and item.optional_vars is not None:
                given = ast.unparse(item.optional_vars)
                if any(isinstance(part, ast.Name) and part.id == given for part in ast.walk(node)):
                    return True
    return False


def test_no_other_file_of_the_package_writes_files() -> None:
    found = set()
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(PACKAGE).as_posix()
        if name in WRITERS:
            continue
        tree = ast.parse(file.read_text())
        withs = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
        for call in writing_calls(tree):
            called = ast.unparse(call.func)
            is_allowed = any(name == place and called.endswith(allowed) for place, allowed in ALLOWED)
            if not is_allowed and not is_given_by(call, withs):
                found.add(f"{name}:{call.lineno} {ast.unparse(call)[:90]}")
    assert not found, "\n".join(sorted(found))


def write_whole(file: Path, data: bytes) -> None:
    with replace_whole(file) as unfinished:
        assert unfinished.name == file.name
        unfinished.write_bytes(data)


def write_a_row(file: Path, data: bytes) -> None:
    with write_rows(file) as rows:
        rows.writerow([data.decode()])


def append(file: Path, data: bytes) -> None:
    growing = GrowingFile(file)
    try:
        growing.append(data)
    finally:
        growing.close()


WAYS: list[Callable[[Path, bytes], None]] = [write_atomic, write_whole, write_a_row]


def names_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("write", WAYS)
def test_links_with_the_names_of_temporary_files_are_not_followed(
    write: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_bytes(b"mine")
    folder.mkdir()
    planted = [".a.csv.tmp", ".a.csv.0.tmp", ".a.csv.1.tmp", "a.csv.partial", ".partial.a.csv", ".a.csv.bak.tmp"]
    for name in planted:
        (folder / name).symlink_to(victim)
    # A target that is a link is replaced, and so is a dangling one.
    (folder / "a.csv").symlink_to(victim)
    write(folder / "a.csv", b"new")
    assert victim.read_bytes() == b"mine"
    assert (folder / "a.csv").read_bytes().strip() == b"new" and not (folder / "a.csv").is_symlink()
    assert names_of(folder) == sorted([*planted, "a.csv"])
    assert names_of(tmp_path) == ["run", "victim"]


def test_links_in_place_of_folders_and_of_what_grows_are_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_bytes(b"mine")
    (tmp_path / ".out.0.tmp").symlink_to(victim)
    with write_folder(tmp_path / "out") as folder:
        (folder / "file").write_bytes(b"new")
    for name in ("train.log", ".lock"):
        (tmp_path / name).symlink_to(victim / "file")
    with pytest.raises(OSError, match="it is a symbolic link, which is not followed: remove it") as raised:
        append(tmp_path / "train.log", b"line")
    assert raised.value.filename == str(tmp_path / "train.log")
    with pytest.raises(OSError, match="symbolic link"):
        open_shared(tmp_path / ".lock", os.O_RDWR)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a pipe or device, not a file"):
        append(tmp_path / "pipe", b"line")
    with open_new(tmp_path / "train.log") as stream:
        stream.write(b"new")
    assert (victim / "file").read_bytes() == b"mine" and names_of(victim) == ["file"]
    assert not (tmp_path / "train.log").is_symlink() and (tmp_path / "out" / "file").read_bytes() == b"new"


def test_a_folder_that_is_a_link_to_another_disk_goes_on_working(tmp_path: Path) -> None:
    scratch, out = tmp_path / "scratch" / "out", tmp_path / "out"
    scratch.mkdir(parents=True)
    out.symlink_to(scratch)
    os.close(lock_folder(out))
    write_atomic(out / "a.csv", b"new")
    append(out / "train.log", b"line\n")
    assert (scratch / "a.csv").read_bytes() == b"new" and out.is_symlink()
    with write_folder(out, overwrite=True) as folder:
        (folder / "b").write_bytes(b"")
    assert out.is_symlink() and names_of(scratch) == ["b"]
    with pytest.raises(OSError, match="not empty") as raised, write_folder(out):
        pass
    assert raised.value.filename == str(scratch) and names_of(scratch) == ["b"] and names_of(scratch.parent) == ["out"]


HANG = """
    import sys, time
    from pathlib import Path
    from jaxpose.files import open_atomic, replace_whole
    file = Path(sys.argv[1])
    with open_atomic(file) as stream, replace_whole(file) as unfinished:
        stream.write(b"half")
        stream.flush()
        unfinished.write_bytes(b"half")
        print("writing", flush=True)
        time.sleep(60)
"""


def test_what_a_killed_process_leaves_is_removed_by_the_next_writer_and_a_living_ones_file_is_not(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a.csv"
    write_atomic(file, b"before")
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(HANG), file], stdout=subprocess.PIPE) as hanging:
        assert hanging.stdout and hanging.stdout.readline()
        assert names_of(tmp_path) == [".a.csv.0.tmp", ".a.csv.1.tmp", "a.csv"]
        write_atomic(file, b"meanwhile")
        assert names_of(tmp_path) == [".a.csv.0.tmp", ".a.csv.1.tmp", "a.csv"]
        hanging.kill()
    assert file.read_bytes() == b"meanwhile"
    write_atomic(file, b"after")
    assert file.read_bytes() == b"after" and names_of(tmp_path) == ["a.csv"]


def test_leftovers_do_not_pile_up(tmp_path: Path) -> None:
    for kill in range(3):
        for name in (".a.csv.0.tmp", ".a.csv.1.tmp"):
            (tmp_path / name).write_bytes(b"half")
        write_atomic(tmp_path / "a.csv", b"%d" % kill)
    assert names_of(tmp_path) == ["a.csv"]


def test_many_writers_of_one_file_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"

    def write(number: int) -> None:
        for _ in range(8):
            WAYS[number % 3](file, b"%d" % number * 3000)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(file.read_bytes().strip())) == 1 and names_of(tmp_path) == ["a.csv"]


def test_a_file_that_a_limit_or_a_quota_forbids_is_refused_before_a_library_writes_it(tmp_path: Path) -> None:
    """HDF5 would crash: the free space of the disk does not know such limits."""
    with full_disk(), pytest.raises(OSError, match=r"File too large.*labels\.slp"):
        with replace_whole(tmp_path / "labels.slp", needed_bytes=5000):
            raise AssertionError
    with replace_whole(tmp_path / "labels.slp", needed_bytes=5000) as unfinished:
        unfinished.write_bytes(b"short")
    assert names_of(tmp_path) == ["labels.slp"]


def test_a_folder_that_takes_no_files_is_an_error_and_no_endless_search_for_a_name(tmp_path: Path) -> None:
    # /proc refuses files as if it did not exist.
    with pytest.raises(FileNotFoundError, match=r"/proc/page\.html"):
        write_atomic(Path("/proc/page.html"), b"")


def test_a_process_that_ends_at_once_removes_its_unfinished_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(FileNotFoundError):
        # The writer of .slp files works in the new folder.
        with open_atomic(Path("a.csv")), replace_whole(Path("b.csv")) as new, contextlib.chdir(new.parent):
            remove_unfinished()
            assert not names_of(tmp_path)
    assert not names_of(tmp_path)


@pytest.mark.parametrize("write", [open_atomic, replace_whole])
def test_a_signal_while_a_file_is_made_leaves_nothing(
    write: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python raises it when the call of the system has made the file."""
    make = os.open

    def interrupted(path: Any, flags: int, *more: Any, **places: Any) -> int:
        descriptor = make(path, flags, *more, **places)
        if flags & os.O_EXCL:
            raise KeyboardInterrupt
        return descriptor

    monkeypatch.setattr(os, "open", interrupted)
    with pytest.raises(KeyboardInterrupt), write(tmp_path / "a.csv"):
        pass
    monkeypatch.undo()
    assert not names_of(tmp_path)


STOPPED = """
    import sys, time
    from pathlib import Path
    from jaxpose import early_signals
    from jaxpose.config.arguments import exit_code_of
    from jaxpose.files import open_atomic, replace_whole
    from jaxpose.outputs import output_folder, write_folder
    folder = Path(sys.argv[1])
    if sys.argv[2] == "saves":
        early_signals.install("jaxpose.verb")
    def work():
        with open_atomic(folder / "a") as stream, replace_whole(folder / "b") as unfinished:
            with write_folder(folder / "c") as new, output_folder(folder / "d", False) as other:
                for file in (unfinished, new / "1", other / "1"):
                    file.write_bytes(b"half")
                print("writing", flush=True)
                time.sleep(60)
    sys.exit(exit_code_of("jaxpose.verb", work))
"""


@pytest.mark.parametrize("kind", ["saves", "does not save"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_a_signal_ends_any_verb_with_its_code_and_leaves_no_unfinished_files(
    kind: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", textwrap.dedent(STOPPED), tmp_path, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline()
        assert len(names_of(tmp_path)) == 4
        process.send_signal(number)
        _, error = process.communicate(timeout=20)
    said = "interrupted" if number == signal.SIGINT and kind != "saves" else f"stopped by {number.name}"
    assert process.returncode == code and error.startswith(f"jaxpose.verb: {said}") and error.count("\n") == 1
    assert names_of(tmp_path) == ["d"] and not names_of(tmp_path / "d")


def test_long_names_and_names_that_are_not_unicode_are_written(tmp_path: Path) -> None:
    for name in ("ü" * 125 + ".csv", os.fsdecode(b"\xff" * 251 + b".csv")):
        for write in WAYS:
            write(tmp_path / name, b"new")
            assert (tmp_path / name).read_bytes().strip() == b"new"


@pytest.mark.parametrize("write", [*WAYS, append])
def test_an_error_of_a_full_disk_names_the_file_and_leaves_the_old_one(
    write: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    write(file, b"old")
    before = file.read_bytes()
    with full_disk(), pytest.raises(OSError, match="File too large|No space left") as raised:
        write(file, b"new" * 1000)
    assert raised.value.filename == str(file) and raised.value.filename2 is None
    assert file.read_bytes() == before and names_of(tmp_path) == ["a.csv"]


def test_errors_of_libraries_for_a_full_disk_become_one_of_the_system(tmp_path: Path) -> None:
    text = f"unable to flush, errno = 28, error message = '{os.strerror(errno.ENOSPC)}'"
    for error in (RuntimeError(text), OSError(text), OSError(errno.ENOSPC, text, f"{tmp_path}/.x.0.tmp/x")):
        with pytest.raises(OSError) as raised, replace_whole(tmp_path / "x"):
            raise error
        assert str(raised.value) == f"[Errno 28] {os.strerror(errno.ENOSPC)}: '{tmp_path / 'x'}'"
    # An error about another file keeps its name, and a missing folder is named by the file in it.
    with pytest.raises(OSError, match="'other'"), open_atomic(tmp_path / "x"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "other")
    with pytest.raises(FileNotFoundError) as missing:
        write_atomic(tmp_path / "no" / "x", b"")
    assert missing.value.filename == str(tmp_path / "no" / "x") and not names_of(tmp_path)
