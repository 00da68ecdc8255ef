"""The first moments of a verb, as processes: the first line, mistakes, a look at the data, and signals."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpose.data.synthetic import make_project
from tests.small_run import command, environment, files_in, make_config
from tests.terminal import show

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 300
# A verb in which something may be imported only after the first line, and says so in its place.
WITHOUT = """
import runpy, sys

class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            print("IMPORTED", name, flush=True)
            raise SystemExit(9)

sys.meta_path.insert(0, Refusal())
sys.argv[0] = "jaxpose"
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
HEAVY = ("jax", "jaxlib", "flax", "optax", "orbax", "grain", "cv2", "av", "numpy", "pandas", "rich")


def verb_without(absent: tuple[str, ...], *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Runs a verb to which some packages are as if they were not installed; returns exit code, stdout and stderr."""
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(absent=absent), *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, env=os.environ | variables,
    )  # fmt: skip
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["jaxpose.train", "--help"], 0, "usage: python -m jaxpose.train"),
        (["jaxpose.train", "--config", "nowhere.py"], 2, "there is no file 'nowhere.py'"),
        (["jaxpose.predict", "--help"], 0, "usage: python -m jaxpose.predict"),
        (["jaxpose.predict", "--runn", "x"], 2, "there is no flag --runn"),
        (["jaxpose.evaluate", "--help"], 0, "usage: python -m jaxpose.evaluate"),
        (["jaxpose.evaluate"], 2, "jaxpose.evaluate: RUN is required"),
    ],
)
def test_help_and_mistakes_in_the_arguments_need_no_package_that_takes_long(
    arguments: list[str], code: int, says: str
) -> None:
    found, out, err = verb_without(HEAVY, *arguments)
    assert found == code and says in (err if code else out), err
    assert "IMPORTED" not in out


def test_the_first_line_comes_before_the_packages(project: Path, tmp_path: Path) -> None:
    config = make_config(project, tmp_path / "run")
    code, out, _ = verb_without(("jax",), "jaxpose.train", *command(config, tmp_path))
    first, imported = out.splitlines()
    assert first.startswith("jaxpose ") and first.endswith(f": trains on {project}")
    assert imported == "IMPORTED jax"


def test_what_is_not_there_is_told_without_jax(tmp_path: Path) -> None:
    config = make_config(tmp_path / "nowhere", tmp_path / "run")
    for arguments, says in (
        (["jaxpose.train", *command(config, tmp_path)], f"but {tmp_path}/nowhere does not exist; give the folder"),
        (["jaxpose.predict", "--run", str(tmp_path), "video.mp4"], f"{tmp_path} is not a run folder"),
        (["jaxpose.evaluate", "--run", str(tmp_path)], f"{tmp_path} is not a run folder"),
    ):
        code, out, err = verb_without(("jax",), *arguments)
        assert code == 2 and says in err and err.count("\n") == 1
        # A busy machine tells what takes longer than three seconds.
        _, *slow = out.splitlines()
        assert all(line.startswith("loading the packages") for line in slow) and "IMPORTED" not in out


def test_a_variable_that_jax_refuses_is_one_line(project: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    command = [sys.executable, "-m", "jaxpose.predict", "--run", str(tmp_path), str(project)]
    done = subprocess.run(command, env=os.environ | {"JAX_ENABLE_X64": "maybe"}, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.endswith(
        "'JAX_ENABLE_X64': JAX does not accept this value; correct or unset the variable"
    )


def test_a_look_at_the_data_needs_no_jax_and_no_other_process_and_writes_nothing(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", videos=2, labelled_frames=3, video_frames=5, side_px=64)
    labels = project / "CollectedData.csv"
    lines = labels.read_text().splitlines()
    lines[3] = lines[3].replace("img", "gone")
    labels.write_text("\n".join(lines) + "\n")
    (project / "videos" / "broken.mp4").write_bytes(b"no video")
    config = make_config(project, tmp_path / "run", data__on_bad_frame="skip", mesh__platform="gpu")
    arguments = command(config, tmp_path, "--dry_run=data")
    before = files_in(tmp_path)
    variables = {"JAXPOSE_COORDINATOR": "nowhere:1234", "JAXPOSE_NUM_PROCESSES": "2", "SLURM_NTASKS": "4"}
    code, out, err = verb_without(("jax", "jaxlib"), "jaxpose.train", *arguments, **variables)
    assert (code, err) == (0, ""), err
    for part in (
        f"project      {project}\n", "labels       CollectedData.csv: 5 images with ", "sets         ",
        "images       5 of 64 x 64 px; ", "input        32 x 32 px", "videos       2 videos with 10 frames, ",
        "  session00.mp4: 64 x 64 px, 5 frames, ", "broken.mp4 is not a readable video", "every image decodes\n",
        f"left out     1 row that cannot be used:\n  {labels}:4: ",
    ):  # fmt: skip
        assert part in out, (part, out)
    assert files_in(tmp_path) == before


def test_a_place_that_cannot_be_written_is_refused_before_the_data_are_read(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", videos=1, labelled_frames=3, video_frames=5, side_px=64)
    (tmp_path / "file").write_text("mine")
    before = files_in(tmp_path)
    is_a_file = f"{tmp_path / 'file'} is a file; choose another out"
    has_a_bracket = f"the run folder is {tmp_path / 'run [1]'}; checkpoints need a path without '['"
    for out, dry_run, says in (
        ("file", "--dry_run=data", f"run folder {tmp_path / 'file'} cannot be used: {is_a_file}"),
        ("file/run", "--dry_run", is_a_file),
        ("file/run", "train.epochs=1", is_a_file),
        ("run [1]", "--dry_run=data", has_a_bracket),
    ):
        code, printed, err = verb_without(("jax",), "jaxpose", "train", str(project), f"out={tmp_path / out}", dry_run)
        assert code == 2 and says in err and err.count("\n") == 1 and printed.count("\n") == 1, (printed, err)
    assert files_in(tmp_path) == before


def start(arguments: list[str], folder: Path, **options: object) -> subprocess.Popen:
    variables = environment() | {"JAXPOSE_CACHE": str(folder / "cache")}
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, **options,  # pyright: ignore
    )  # fmt: skip


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


AGAIN = {signal.SIGTERM: "press Ctrl-C twice", signal.SIGINT: "press Ctrl-C again"}


@pytest.mark.faults
@pytest.mark.parametrize(
    ("verb", "number", "code", "moments_s"),
    [
        ("train", signal.SIGTERM, 85, (0.0, 3.0)),
        ("train, by the command", signal.SIGINT, 130, (1.5,)),
        ("predict", signal.SIGTERM, 85, (0.0, 2.0)),
        ("evaluate", signal.SIGINT, 130, (1.0,)),
    ],
)
def test_a_signal_at_any_moment_of_a_start_is_one_line(
    trained_run: Path,
    project: Path,
    tmp_path: Path,
    verb: str,
    number: signal.Signals,
    code: int,
    moments_s: tuple[float, ...],
) -> None:
    """From the first line on: while it imports, starts the devices, reads images, makes the network and compiles."""
    arguments = {
        "train": ["jaxpose.train", *command(make_config(project, tmp_path / "run"), tmp_path)],
        "train, by the command": ["jaxpose", "train", *command(make_config(project, tmp_path / "run"), tmp_path)],
        "predict": ["jaxpose.predict", "--run", str(trained_run), "--out", str(tmp_path / "out"),
                    str(trained_run.parent / "project" / "videos")],
        "evaluate": ["jaxpose.evaluate", "--run", str(trained_run), "--out", str(tmp_path / "out")],
    }[verb]  # fmt: skip
    for after_s in moments_s:
        process = start(arguments, tmp_path)
        assert process.stdout is not None and process.stdout.readline().startswith("jaxpose ")
        time.sleep(after_s)
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)
        if verb in ("predict", "evaluate") and after_s and process.returncode == 0:
            break  # A fast machine has read the few frames by then, and ends or has ended.
        assert process.returncode == code, (after_s, err)
        assert "Traceback" not in err
        if after_s and err == f"{number.name}: saving at the next step, {AGAIN[number]} to leave at once\n":
            return  # A fast machine trains by then, and has saved.
        if verb != "predict" or f"stopped by {number.name}" in err:
            name = verb.partition(",")[0]
            assert err.count("\n") == 1 and err.startswith(f"jaxpose.{name}: stopped by {number.name}"), err
    assert not list(tmp_path.glob("run/checkpoints/*/manifest.json"))
    assert not (tmp_path / "run" / "finished.json").exists()


@pytest.mark.faults
@pytest.mark.parametrize(("number", "code", "after_s"), [(signal.SIGTERM, 85, 1.5), (signal.SIGINT, 130, 0.0)])
def test_a_signal_to_several_processes_that_start_ends_all_of_them(
    project: Path, tmp_path: Path, number: signal.Signals, code: int, after_s: float
) -> None:
    """Passed on by the launcher at once, and while JAX is loaded; then to one of two that have met, alone."""
    run = make_config(project, tmp_path / "run", mesh__start_s=LIMIT_S)
    arguments = [
        "jaxpose.launch",
        "--processes",
        "2",
        "--log_dir",
        str(tmp_path / "logs"),
        "--",
        *command(run, tmp_path),
    ]
    process = start(arguments, tmp_path)
    assert process.stderr is not None and "starts 2 x jaxpose.train" in process.stderr.readline()
    time.sleep(after_s)
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code and "Traceback" not in err, err
    one = tmp_path / "logs" / "process-1.log"
    # A signal at once leaves no second process, and so no log of it.
    before = one.stat().st_size if one.exists() else 0
    process = start(arguments, tmp_path)
    wait_until(lambda: one.exists() and b"waits for process 0" in one.read_bytes()[before:])
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[1]), number)
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == code and "Traceback" not in err, err
    assert f"stopped by {number.name}" in err
    assert not (tmp_path / "run" / "finished.json").exists()


# A start that is held up in a call from which Python does not come back, as in a compilation.
HELD = """
import sys
from jaxpose import early_signals
early_signals.install("verb")
print("ready", flush=True)
import ctypes
with __import__("jaxpose.progress").progress.phase("compiling"):
    ctypes.CDLL(None).sleep(60)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_a_signal_does_not_wait_for_a_call_that_takes_minutes(number: signal.Signals, code: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", HELD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert err == f"verb: stopped by {number.name} while compiling; nothing is lost, the same command continues\n"


# Interrupt takes over, and gives back; what comes after the end changes no exit code.
HANDED_OVER = """
import os, signal, sys, time
from jaxpose import early_signals
early_signals.install("verb")
from jaxpose.cluster.signals import Interrupt
with Interrupt() as interrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    while interrupt.signal is None:
        time.sleep(0.01)
    time.sleep(0.1)
    print("saved", interrupt.exit_code, flush=True)
early_signals.ended(interrupt.exit_code if sys.argv[1] == "stops" else 0)
os.kill(os.getpid(), signal.SIGINT)
time.sleep(20)
"""


@pytest.mark.parametrize(("end", "code"), [("stops", 85), ("finishes", 0)])
def test_the_loop_takes_the_signals_over_and_the_end_keeps_its_exit_code(end: str, code: int) -> None:
    ended = subprocess.run([sys.executable, "-c", HANDED_OVER, end], capture_output=True, text=True, timeout=LIMIT_S)
    assert (ended.returncode, ended.stdout) == (code, "saved 85\n"), ended.stderr


# A signal while Python leaves: when it calls the functions for the exit, or later, when it removes the modules.
LATE = """
import atexit, os, runpy, sys

class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=int(sys.argv[2])):
        kill(me, number)

late = [Late()]
if sys.argv[1] == "at the exit":
    atexit.register(late.clear)
sys.argv[:3] = []
sys.argv.insert(0, "jaxpose")
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


def code_after_a_late_signal(moment: str, number: signal.Signals, *arguments: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-c", LATE, moment, str(int(number)), *arguments],
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    return ended.returncode, ended.stderr


HELP, MISTAKE = ("jaxpose.doctor", "--help"), ("jaxpose", "suggest", "--frames", "x")


@pytest.mark.parametrize(
    ("moment", "number", "arguments"),
    [
        ("at the exit", signal.SIGTERM, HELP),
        ("at the exit", signal.SIGINT, MISTAKE),
        ("modules are removed", signal.SIGTERM, MISTAKE),
        ("modules are removed", signal.SIGINT, HELP),
    ],
)
def test_a_signal_after_the_end_of_a_verb_changes_no_exit_code(
    moment: str, number: signal.Signals, arguments: tuple[str, ...]
) -> None:
    wrong = 2, "jaxpose.suggest: --frames is x; it must be a whole number\n"
    assert code_after_a_late_signal(moment, number, *arguments) == ((0, "") if arguments == HELP else wrong)


@pytest.mark.parametrize("verb", ["train", "watch"])
def test_no_verb_that_is_entered_dies_of_a_signal_after_its_end(verb: str) -> None:
    assert code_after_a_late_signal("modules are removed", signal.SIGTERM, f"jaxpose.{verb}", "--help") == (0, "")


# Phases on a terminal and elsewhere, with short times.
PHASES = """
import sys, time
from jaxpose import progress
progress.FIRST_S, progress.AGAIN_S, progress.SHOWN_ON_TERMINAL_S, progress.TICK_S = 0.1, 0.2, 0.1, 0.05
progress.speak("begins", is_first=sys.argv[1] == "0")
with progress.phase("soon over"):
    pass
with progress.phase("compiling"):
    time.sleep(0.5)
with progress.phase("reading images", total=8) as reading:
    for _ in range(8):
        time.sleep(0.06)
        reading.update()
print("ends", flush=True)
"""


def test_phases_that_take_long_have_lines_on_the_first_process_alone() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([sys.executable, "-c", PHASES, index], **pipes) for index in "01"]
    (first, err), shown = processes[0].communicate(timeout=60), processes[1].communicate(timeout=60)
    lines = first.splitlines()
    assert (lines[0], lines[-1]) == ("begins", "ends")
    assert lines[1] == "compiling ..." and lines[2].startswith("compiling (") and "soon over" not in first
    assert any(line.startswith("reading images: ") and " of 8" in line for line in lines)
    assert shown == ("ends\n", "") and err == ""


def test_phases_on_a_terminal_are_a_spinner_and_a_bar_that_vanish() -> None:
    shown = show([sys.executable, "-c", PHASES, "0"])
    assert shown.lines == ["begins", "ends"] and not shown.is_cursor_hidden
    assert re.search(r"[|/\\-]\S* compiling \S*0:00:00", shown.text), shown.text
    assert re.search(r"^reading images \u2501.* \d/8 \d+% ETA", shown.bars[-1]), shown.bars
