"""Several processes from one command: devices, signals, logs, failures, restarts, and that none is left behind."""

import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxpose import config as c
from jaxpose import launch
from jaxpose.config.paths import TEMPLATES
from jaxpose.launch import newest_steps
from tests.forked import forked, send
from tests.small_run import command, environment, make_config, metrics_of, small_project, wait_for_step

ROOT = Path(__file__).resolve().parents[1]
# Only a hang takes so long: two processes that compile on two busy cores need minutes.
LIMIT_S = 600

# What every child begins with; a child tells that it is ready by a file with its process id.
CHILD = """
import os, signal, sys, time
from pathlib import Path
folder, index = Path(sys.argv[1]), int(os.environ["JAXPOSE_PROCESS_ID"])

def ready():
    unfinished = folder / f"unfinished{index}"
    unfinished.write_text(str(os.getpid()))
    unfinished.rename(folder / f"ready{index}")

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def sleep():
    until = time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(0.05)
"""


def drive(folder: Path, code: str, processes: int, restarts: int, patience_s: float, file_bytes: int) -> None:
    """The launcher with any code in place of a verb."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, -1))
    launch.ProcessGroup = functools.partial(launch.ProcessGroup, patience_s=patience_s)
    # Python's own library is enough for a child.
    command = [sys.executable, "-S", "-c", code, str(folder)]
    shares = [{"SHARE": str(number)} for number in range(processes)]
    sys.exit(launch.keep_running(command, ["again"], shares, folder, restarts))


class Launcher:
    """The launcher in a process of its own, with children that run some code; `file_bytes` limits the files of both."""

    def __init__(
        self,
        folder: Path,
        code: str,
        processes: int = 2,
        restarts: int = 0,
        patience_s: float = 0.5,
        file_bytes: int = -1,
    ):
        self.folder = folder
        self.out, self.err = folder / "out", folder / "err"
        numbers = processes, restarts, patience_s, file_bytes
        self.process = forked(self.out, drive, folder, CHILD + code, *numbers, errors=self.err)

    def ready(self, index: int) -> int:
        """The process id of a child, once it is ready."""
        file = self.folder / f"ready{index}"
        wait_until(file.exists)
        return int(file.read_text())

    def end(self) -> tuple[int | None, str, str]:
        """Returns (exit code, stdout, stderr)."""
        self.process.join(LIMIT_S)
        return self.process.exitcode, self.out.read_text(), self.err.read_text()

    def log(self, index: int) -> str:
        return (self.folder / f"process-{index}.log").read_text()


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_each_process_knows_who_it_is_and_all_is_logged(tmp_path: Path) -> None:
    code = """
assert sys.stdin.read() == ""
print("out", index, *(os.environ[name] for name in ("JAXPOSE_NUM_PROCESSES", "JAXPOSE_COORDINATOR", "SHARE")))
print("err", index, file=sys.stderr, end="")
"""
    (tmp_path / "process-0.log").write_text("of before\n")
    found, out, err = Launcher(tmp_path, code, processes=3).end()
    assert found == 0
    lines = [tmp_path.joinpath(f"process-{index}.log").read_text().splitlines() for index in range(3)]
    address = re.fullmatch(r"out 0 3 (localhost:(\d+)) 0\n", out)
    # Not one that the system would give to another program in the meantime.
    assert address and int(address[2]) >= 61440
    assert sorted(lines[0]) == ["err 0", "of before", f"out 0 3 {address[1]} 0"]
    for index in (1, 2):
        assert sorted(lines[index]) == [f"err {index}", f"out {index} 3 {address[1]} {index}"]
    assert sorted(err.splitlines()) == ["[1] err 1", "[2] err 2", "err 0"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 85), (signal.SIGINT, 130)])
def test_a_signal_is_passed_on_once_to_all_and_their_exit_code_is_kept(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    child = """
count = 0
def caught(number, frame):
    global count
    count += 1
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, caught)
ready()
while not count:
    time.sleep(0.02)
time.sleep(0.3)
print(count, "signals")
sys.exit(CODE)
""".replace("CODE", str(code))
    launcher = Launcher(tmp_path, child, restarts=3)
    for index in range(2):
        launcher.ready(index)
    send(launcher.process, number)
    found, out, err = launcher.end()
    assert (found, out, err) == (code, "1 signals\n", "")
    assert launcher.log(1) == "1 signals\n"


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    child = """
signal.signal(signal.SIGINT, lambda number, frame: (folder / f"asked{index}").touch())
ready()
sleep()
"""
    launcher = Launcher(tmp_path, child, restarts=3)
    pids = [launcher.ready(index) for index in range(2)]
    send(launcher.process, signal.SIGINT)
    wait_until(lambda: all((tmp_path / f"asked{index}").exists() for index in range(2)))
    assert all(map(is_alive, pids))
    send(launcher.process, signal.SIGINT)
    assert launcher.end()[0] == 130
    assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
    ("first", "last", "expected", "says"),
    [
        # The other one is told to stop, or killed if it does not.
        ("sys.exit(7)", "ready(); sleep()", 7, "process 1 ended with exit code 7"),
        ("sys.exit(2)", "ready(); sleep()", 2, "process 1 ended with exit code 2"),
        ("sys.exit(7)", "deaf(); ready(); sleep()", 7, "exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ready(); sleep()", 137, "process 1 was ended by SIGKILL"),
        # The other one fails too, with a code of its own.
        ("sys.exit(7)", "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); ready(); sleep()", 7, "process 1"),
        # The first one to end only followed the other, which ends later; SIGTERM is what JAX catches there.
        ("os.abort()", "deaf(); ready(); time.sleep(0.3); sys.exit(6)", 6, "process 0 ended with exit code 6"),
        ("sys.exit('v: process 1 on h failed: x')", "deaf(); ready(); time.sleep(.3); sys.exit(6)", 6, "code 6"),
        # The other one is frozen: nothing but SIGKILL ends it.
        (
            "os.abort()", "ready(); os.kill(os.getpid(), signal.SIGSTOP)", 134,
            "process 1 was ended by SIGABRT; see {folder}/process-1.log; process 0 did not answer and was killed",
        ),
        # In good order: it is waited for.
        ("sys.exit(4)", "ready(); time.sleep(.4); print('done')", 4, ""),
        ("sys.exit(85)", "ready(); time.sleep(.4); sys.exit(85)", 85, ""),
    ],
)  # fmt: skip
def test_when_one_fails_all_end_and_its_exit_code_is_kept(
    tmp_path: Path, first: str, last: str, expected: int, says: str
) -> None:
    child = f"""
if index == 0:
    {last}
else:
    while not (folder / "ready0").exists():
        time.sleep(0.01)
    {first}
"""
    launcher = Launcher(tmp_path, child)
    pid = launcher.ready(0)
    code, out, err = launcher.end()
    assert code == expected, err
    assert says.format(folder=tmp_path) in err, err
    assert not is_alive(pid)
    assert ("done" in out) == ("done" in last)


def test_children_die_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    child = """
deaf()
ready()
if index == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
sleep()
"""
    launcher = Launcher(tmp_path, child)
    pids = [launcher.ready(index) for index in range(2)]
    launcher.process.kill()
    wait_until(lambda: not any(map(is_alive, pids)))
    launcher.end()


def test_a_full_log_and_a_closed_console_end_nothing(tmp_path: Path) -> None:
    (tmp_path / "process-0.log").write_bytes(b"-" * 4096)
    child = """
print("line")
ready()
while not (folder / "closed").exists():
    time.sleep(0.01)
print("line " * 100000)
(folder / f"done{index}").touch()
"""
    os.mkfifo(tmp_path / "out")
    console = os.open(tmp_path / "out", os.O_RDONLY | os.O_NONBLOCK)
    launcher = Launcher(tmp_path, child, file_bytes=4096)
    for index in range(2):
        launcher.ready(index)
    os.close(console)
    (tmp_path / "closed").touch()
    launcher.process.join(LIMIT_S)
    assert launcher.process.exitcode == 0, launcher.err.read_text()
    assert (tmp_path / "done0").exists() and (tmp_path / "done1").exists()
    assert (tmp_path / "process-0.log").stat().st_size == 4096


# Each start of process 0 adds a line to a file, and a checkpoint where it is told so.
CRASHES = """
starts = folder / f"starts{index}"
starts.write_text((starts.read_text() if starts.exists() else "") + ".")
number = len(starts.read_text())
if index == 0:
    Path(os.environ["JAXPOSE_RUN_FILE"]).write_text(f"{folder}\\n")
    if number in STEPS:
        checkpoint = folder / "checkpoints" / str(STEPS[number])
        checkpoint.mkdir(parents=True)
        (checkpoint / "manifest.json").touch()
    (folder / "checkpoints" / "900").mkdir(parents=True, exist_ok=True)
    (folder / f"made{number}").touch()
else:
    while not (folder / f"made{number}").exists():
        time.sleep(0.01)
    code = CODES.get(number, 1)
    os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""


@pytest.mark.parametrize(
    ("steps", "codes", "restarts", "starts", "expected"),
    [
        ({}, {}, 0, 1, 1),
        ({}, {}, 2, 3, 1),
        ({}, {1: -9, 2: -6, 3: 0}, 3, 3, 0),  # at the third start all ends well
        ({2: 50, 4: 60}, {}, 2, 6, 1),  # a new checkpoint at the 4th start, and then two restarts without one
        ({1: 50, 3: 50}, {}, 1, 2, 1),
        ({}, {1: 2}, 3, 1, 2),
        ({}, {1: 1, 2: 85}, 3, 2, 85),
        ({}, {1: 4}, 3, 1, 4),
    ],
)
def test_a_crash_starts_all_again_until_it_brings_nothing(
    tmp_path: Path, steps: dict[int, int], codes: dict[int, int], restarts: int, starts: int, expected: int
) -> None:
    child = CRASHES.replace("STEPS", repr(steps)).replace("CODES", repr(codes))
    launcher = Launcher(tmp_path, child, restarts=restarts)
    code, _, err = launcher.end()
    assert code == expected, err
    assert (tmp_path / "starts0").read_text() == "." * starts == (tmp_path / "starts1").read_text(), err
    assert err.count("starts all processes again") == starts - 1
    assert ("gives up" in err) == (expected == 1)


def test_once_a_run_folder_is_open_a_restart_does_not_overwrite_it(tmp_path: Path) -> None:
    (tmp_path / "run_folder.txt").write_text("of_another_launch\n")
    child = """
starts = folder / "starts"
number = len(starts.read_text()) if starts.exists() else 0
starts.write_text("." * (number + 1))
print("started with", sys.argv[2:], flush=True)
if number == 1:
    Path(os.environ["JAXPOSE_RUN_FILE"]).write_text(f"{folder}\\n")
sys.exit(1)
"""
    code, out, _ = Launcher(tmp_path, child, processes=1, restarts=3).end()
    assert code == 1
    again = f"['again', 'out={tmp_path}']"
    assert re.findall("started with (.*)", out) == ["[]", "[]", again, again]


def test_the_newest_steps_are_those_of_the_newest_whole_checkpoints(tmp_path: Path) -> None:
    def save(run: Path, name: str, is_whole: bool = True) -> None:
        (run / "checkpoints" / name).mkdir(parents=True)
        if is_whole:
            (run / "checkpoints" / name / "manifest.json").touch()

    run = tmp_path / "a run" / "of mine"
    assert newest_steps(run) == [-1]
    for name in ("8", "12", "other"):
        save(run, name)
    save(run, "40", is_whole=False)
    assert newest_steps(run) == [12]
    # A step that was saved again after a resume.
    save(run, "16-2")
    assert newest_steps(run) == [16]
    ensemble = tmp_path / "ensemble"
    for member, name in (("0", "8"), ("0", "16"), ("1", "8")):
        save(ensemble / "members" / member, name)
    assert newest_steps(ensemble) == [16, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--processes 2", "the arguments of the verb are missing; give them after --"),
        ("--processes 0 -- x", "--processes is 0; it must be at least 1"),
        ("--processes 2 --restarts=-1 -- x", "--restarts is -1; it must be at least 0"),
        ("--proceses 2 -- x", "there is no flag --proceses; did you mean --processes?"),
        ("--processes 2 --verb evaluate -- x", "--verb is evaluate; it must be one of "),
        ("-- x", "--processes is required"),
        ("--template slurm -- x y=1", "--template is slurm, which only prints a file: remove x y=1"),
        ("--processes 2 --template=hosts", "--template is hosts, which only prints a file: remove --processes 2"),
    ],
)
def test_mistakes_are_told_in_a_line(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(arguments.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jaxpose.launch: ") and message in line


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_printed_as_it_is_shipped(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["--template", name]) == 0
    printed = capsys.readouterr()
    assert printed.out == (ROOT / "launch" / TEMPLATES[name]).read_text() and printed.err == ""
    # Its first lines write it and start what was written: an installed package has no folder launch/.
    head = printed.out.partition("set -")[0].partition("#SBATCH")[0].partition("apiVersion")[0]
    (file,) = re.findall(rf"jaxpose launch --template {name} > (\S+)$", head, re.MULTILINE)
    assert re.search(rf"^#   (sbatch|bash|kubectl apply -f) {re.escape(file)}", head, re.MULTILINE)
    assert "launch/" not in head
    if name.startswith("slurm"):
        for needed in ("--partition=", "--account=", "--mem=", "JAXPOSE_CACHE=$SCRATCH", "jaxpose.doctor --out"):
            assert needed in printed.out


def test_the_verb_starts_a_verb_and_keeps_its_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert launch.main(["--processes", "1", "--", "--config", "absent.py"]) == 2
    shown = capsys.readouterr().err
    assert "starts 1 x jaxpose.train, process 0 with JAX_NUM_CPU_DEVICES=1; logs in logs/" in shown
    assert "jaxpose.train: --config: there is no file 'absent.py'" in shown and "starts all" not in shown
    (log,) = tmp_path.glob("logs/*/process-0.log")
    assert log.read_text() == "jaxpose.train: --config: there is no file 'absent.py'\n"


def _launch(config: c.Config, folder: Path, log: Path) -> subprocess.Popen:
    """python -m jaxpose.launch with two processes, which keep what they compile in a folder."""
    with open(log, "w") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", "jaxpose.launch", "--processes", "2", "--restarts", "1",
             "--log_dir", str(folder), "--", *command(config, folder, "resume=overwrite")],
            env=environment(), stdout=stream, stderr=stream,
        )  # fmt: skip


def _child(launcher: int, index: int) -> int:
    """The process id of the child that is so numbered."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    own = f"JAXPOSE_PROCESS_ID={index}".encode()
    return next(int(child) for child in children if own in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"))


@pytest.mark.faults
def test_a_frozen_process_is_killed_and_the_run_is_started_again_and_ends(tmp_path: Path) -> None:
    """That a run of two processes which goes on has the same bits, tests/cluster/test_multiprocess.py shows."""
    project, run, log = small_project(tmp_path / "project"), tmp_path / "run", tmp_path / "log"
    options = {"train__steps": 20, "train__val_every_epochs": 10, "train__save_every_steps": 5, "log__frames": 0}
    options |= {"mesh__devices": "auto", "mesh__heartbeat_s": 3.0, "log__tensorboard": False}
    # It compiles faster.
    options |= {"augment__preset": "none", "augment__flip_p": 0.0}
    process = _launch(make_config(project, run, **options), tmp_path, log)
    try:
        wait_for_step(run, 8, lambda: process.poll() is None)
        os.kill(_child(process.pid, 1), signal.SIGSTOP)
        assert process.wait(LIMIT_S) == 0, log.read_text()
    finally:
        process.terminate()
        process.wait()
    text = log.read_text()
    assert text.count("starts all processes again") == 1, text
    assert "process 1 did not answer and was killed" in text, text
    assert [line["step"] for line in metrics_of(run) if "loss" in line] == [*range(1, 21)]
    assert json.loads((run / "finished.json").read_text())["steps"] == 20
