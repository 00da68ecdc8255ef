"""A mistake of the user is a line and exit code 2; a mistake of the program is a traceback and exit code 1."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpose.checksums import DamagedFile, signed_csv
from jaxpose.config.arguments import exit_code_of
from jaxpose.config.option import OptionError
from jaxpose.data.image_file import decode_image
from jaxpose.data.labels import read_labels
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile
from jaxpose.formats.lightning_pose.config import read_config
from jaxpose.run.status import Status, status_of
from jaxpose.run.weights import load_parameters
from jaxpose.video.file import scan

ROOT = Path(__file__).resolve().parents[1]
# A table without rows: a mistake of the caller, which jaxpose itself raises.
BUG = "from jaxpose.checksums import signed_csv; signed_csv('path,set\\n')"


def refuse() -> int:
    raise UserError("train.steps is 0; it must be at least 1\ntrain.seed is -1; it must be at least 0")


def test_a_user_error_is_a_line_for_each_mistake_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("jaxpose.train", refuse) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.splitlines() == [
        "jaxpose.train: train.steps is 0; it must be at least 1",
        "jaxpose.train: train.seed is -1; it must be at least 0",
    ]


def test_a_name_of_a_strangers_file_cannot_control_the_terminal_or_fill_it(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        raise UserError(
            f"tracks.csv has the column \x1b]0;title\x07\x1b[31m\u202egnp{'x' * 100_000}; rename it\n\u00e9, \u732b"
        )

    assert exit_code_of("jaxpose.track", work) == 2
    line, other = capsys.readouterr().err.splitlines()
    assert r"tracks.csv has the column \x1b]0;title\x07\x1b[31m\u202egnpxxx" in line and line.endswith("xxx; rename it")
    assert len(line) < 2000 and "characters) ..." in line
    assert other == "jaxpose.track: \u00e9, \u732b"


def test_another_value_error_is_passed_on_although_jaxpose_raises_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="a table without rows") as caught:
        exit_code_of("jaxpose.train", lambda: len(signed_csv("path,set\n")))
    assert not isinstance(caught.value, UserError) and capsys.readouterr() == ("", "")
    assert status_of(caught.value) == Status(1, "ValueError: a table without rows has no checksum")


def test_the_program_ends_with_the_code_and_only_a_bug_shows_its_traceback() -> None:
    verb = "import sys\nfrom jaxpose.config.arguments import exit_code_of\nfrom jaxpose.errors import UserError\n"
    for body, code, lines in (("raise UserError('no such run')", 2, ["verb: no such run"]), (BUG, 1, None)):
        text = f"{verb}def work():\n    {body}\nsys.exit(exit_code_of('verb', work))\n"
        done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == code, done.stderr
        assert "Traceback" in done.stderr if lines is None else done.stderr.splitlines() == lines


@pytest.mark.parametrize("arguments", ["--help", "train --help_options", "evaluate --help", "convert --help"])
def test_a_reader_that_has_seen_enough_gets_no_traceback(arguments: str) -> None:
    """`jaxpose train --help | head`."""
    end, start = os.pipe()
    os.close(end)
    command = [sys.executable, "-m", "jaxpose", *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, stdout=start, stderr=subprocess.PIPE, text=True)
    os.close(start)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize(
    "error", [DamagedFile("a.json was damaged"), NotRegularFile(Path("a.json"), "is a pipe"), OptionError("no option")]
)
def test_what_is_wrong_with_files_and_options_is_the_users_mistake(error: Exception) -> None:
    assert isinstance(error, UserError) and status_of(error) == Status(2, str(error))


@pytest.mark.parametrize(
    ("name", "content", "read"),
    [
        ("config.yaml", b"data: [", read_config),
        ("config.yaml", b"\xff\xfe", read_config),
        ("config.yaml", b"training: {max_epochs: 2024-13-45}", read_config),
        ("config.yaml", b"training: {max_epochs: !!int many}", read_config),
        ("config.yaml", b"training: {max_epochs: !!bool many}", read_config),
        ("config.yaml", b"training: {max_epochs: !!timestamp many}", read_config),
        ("config.yaml", b"training: {max_epochs: " + b"9" * 5000 + b"}", read_config),
        ("labels.csv", b"\xff\xfe\xff", lambda file: read_labels(file, "ignore")),
        ("labels.csv", b'scorer,"a', lambda file: read_labels(file, "ignore")),
        ("frame.png", b"", lambda file: decode_image(file.read_bytes())),
        ("frame.png", b"\x89PNG\r\n\x1a\n", lambda file: decode_image(file.read_bytes())),
        ("frame.jpg", b"\xff\xd8\xff", lambda file: decode_image(file.read_bytes())),
        ("video.mp4", b"no video", scan),
        ("best.safetensors", b"no parameters", load_parameters),
    ],
)
def test_a_file_that_a_library_cannot_read_is_the_users_mistake(
    name: str, content: bytes, read: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError):
        read(tmp_path / name)


# One of two processes fails where both agree.
DRIVER = """
import sys
import jax
from jaxpose.cluster.agreement import broadcast_from_0, on_all_processes
from jaxpose.cluster.processes import run_distributed
from jaxpose.config import MeshConfig
from jaxpose.config.arguments import exit_code_of
from jaxpose.errors import UserError

agree = {"all": on_all_processes, "0": broadcast_from_0}[sys.argv[1]]
kind = {"UserError": UserError, "ValueError": ValueError}[sys.argv[2]]
failing = sys.argv[3]

def look():
    if str(jax.process_index()) == failing:
        raise kind("broken on purpose")

def work():
    agree(look)
    return 0

mesh = MeshConfig(platform="cpu", start_s=60.0)
sys.exit(exit_code_of("verb", lambda: run_distributed("verb", mesh, work)))
"""


@pytest.mark.faults
@pytest.mark.parametrize(
    ("agree", "failing", "kind"), [("all", 1, "ValueError"), ("0", 0, "ValueError"), ("all", 1, "UserError")]
)
def test_a_bug_of_one_process_is_no_mistake_of_the_user_for_the_others(agree: str, failing: int, kind: str) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    both = {"JAXPOSE_COORDINATOR": address, "JAXPOSE_NUM_PROCESSES": "2", "JAX_PLATFORMS": "cpu"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", DRIVER, agree, kind, str(failing)],
            cwd=ROOT,
            env=os.environ | both | {"JAXPOSE_PROCESS_ID": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        texts = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    codes = [process.returncode for process in processes]
    if kind == "UserError":
        assert codes == [2, 2], texts
        assert all("broken on purpose" in text and "Traceback" not in text for text in texts), texts
    else:
        assert codes == [1, 1], texts
        assert "ValueError: broken on purpose" in texts[failing] and "Traceback" in texts[failing]
        other = texts[1 - failing]
        assert f"process {failing} on " in other and "failed: ValueError" in other and "Traceback" not in other, other
