"""The files of launch/: that they are what the tools read, and that hosts.sh does what it says, with a fake ssh."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxpose.cluster.process_info import detect_process
from jaxpose.config import MeshConfig

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "launch"
LIMIT_S = 120
# Of job 26; see launch/slurm.sbatch.
RUN_FILE = "jaxpose-26.run_folder.txt"

# Runs the command here, as ssh does there: without the fake's own terminal, and told apart by a variable.
FAKE_SSH = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift 2; done
export FAKE_HOST=$1
shift
[[ $FAKE_HOST != unreachable ]] || exit 255
exec "$@"
"""
# Ends as $ENDS says, and notes what it was given.
FAKE_SRUN = """#!/usr/bin/env bash
echo "$*" >given
trap 'exit 85' TERM
eval "$ENDS"
"""
FAKE_SCONTROL = """#!/usr/bin/env bash
[[ $1 == show ]] && echo "JobId=$3 JobState=RUNNING" || echo "$*" >requeued
"""


@pytest.mark.parametrize("script", sorted(LAUNCH.glob("*.s*")), ids=lambda script: script.name)
def test_a_script_is_bash(script: Path) -> None:
    assert script.suffix in (".sh", ".sbatch")
    assert script.read_text().startswith("#!/usr/bin/env bash\n") or script.read_text().startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n", script], check=True)


@pytest.fixture(scope="module")
def kubernetes() -> tuple[dict[str, Any], dict[str, Any]]:
    """The Service and the Job of launch/k8s."""
    service, job = yaml.safe_load_all((LAUNCH / "k8s" / "jobset.yaml").read_text())
    return service, job


@pytest.mark.parametrize("index", [0, 1])
def test_each_pod_of_the_kubernetes_job_knows_which_process_it_is(
    kubernetes: tuple[dict[str, Any], dict[str, Any]], index: int
) -> None:
    """With the variables that the pod of a number gets, and the number itself from where Kubernetes keeps it."""
    service, job = kubernetes
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    annotations = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(index)}
    variables = {
        entry["name"]: entry.get("value") or annotations[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for entry in container["env"]
    }
    process = detect_process(variables, MeshConfig())
    assert spec["completions"] == spec["parallelism"] == 2 and (process.count, process.index) == (2, index)
    # The name of pod 0 is <job>-0.<service>.
    host, _, port = process.address.partition(":")
    assert host == f"{job['metadata']['name']}-0.{pod['subdomain']}" and pod["subdomain"] == service["metadata"]["name"]
    assert [entry["port"] for entry in service["spec"]["ports"]] == [int(port)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, ""), (1, "restart"), (2, "fail"), (3, "fail"), (4, "fail"), (75, "restart"), (85, "free"), (-9, "restart")],
)
def test_what_the_kubernetes_job_does_with_an_exit_code(
    kubernetes: tuple[dict[str, Any], dict[str, Any]], code: int, expected: str
) -> None:
    """A restart counts up to backoffLimit, a free one does not. The first rule that holds decides."""
    spec = kubernetes[1]["spec"]
    assert spec["template"]["spec"]["restartPolicy"] == "Never" and spec["backoffLimit"] > 0
    rules = [
        rule for rule in spec["podFailurePolicy"]["rules"] if code in rule.get("onExitCodes", {}).get("values", [])
    ]
    actions = {"Ignore": "free", "FailJob": "fail"}
    done = actions[rules[0]["action"]] if rules else "restart"
    assert (done if code else "") == expected


def test_the_runs_of_the_kubernetes_job_lie_on_the_volume_of_all_pods(
    kubernetes: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    pod = kubernetes[1]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    places = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    assert "persistentVolumeClaim" in places["/runs"]
    assert any(argument.startswith("out=/runs/") for argument in container["args"])


def _batch_job(folder: Path, script: str, *arguments: str, **variables: str) -> subprocess.Popen:
    """A batch script as SLURM runs it, with a fake srun and scontrol; its log is job.log, which grows."""
    for name, text in (("srun", FAKE_SRUN), ("scontrol", FAKE_SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    environment |= {"SLURM_JOB_ID": "26", "SLURM_JOB_NODELIST": "n1", "SLURM_NTASKS": "1"}
    with open(folder / "job.log", "a") as log:
        return subprocess.Popen(
            ["bash", LAUNCH / script, *arguments], cwd=folder, env=environment | variables, stdout=log, stderr=log
        )


@pytest.mark.parametrize(
    ("script", "code", "turn", "tasks", "is_requeued"),
    [
        ("slurm.sbatch", 0, 1, 2, False),
        ("slurm.sbatch", 1, 1, 2, False),
        ("slurm.sbatch", 85, 9, 2, True),
        ("slurm.sbatch", 75, 1, 2, True),
        # One that failed with a code of its own ended the other tasks: srun tells the highest code.
        ("slurm.sbatch", 143, 1, 2, False),
        ("slurm.sbatch", 143, 3, 1, True),
        ("slurm.sbatch", 143, 4, 1, False),
        ("predict.sbatch", 4, 1, 1, False),
        ("predict.sbatch", 85, 9, 1, True),
        ("predict.sbatch", 143, 3, 1, True),
        ("predict.sbatch", 143, 4, 1, False),
    ],
)
def test_a_batch_script_puts_back_into_the_queue_what_another_turn_may_end(
    tmp_path: Path, script: str, code: int, turn: int, tasks: int, is_requeued: bool
) -> None:
    variables = {"SLURM_RESTART_COUNT": str(turn - 1), "SLURM_NTASKS": str(tasks), "ENDS": f"exit {code}"}
    job = _batch_job(tmp_path, script, **variables)
    assert job.wait(LIMIT_S) == code
    assert f"exit code {code}, JobState=RUNNING" in (tmp_path / "job.log").read_text()
    assert (tmp_path / "requeued").exists() == is_requeued


@pytest.mark.parametrize("script", ["slurm.sbatch", "predict.sbatch"])
def test_a_batch_script_that_is_told_to_stop_waits_for_the_run(tmp_path: Path, script: str) -> None:
    job = _batch_job(tmp_path, script, ENDS="touch ready; while [[ ! -e go ]]; do sleep 0.05; done; exit 3")
    _wait_until((tmp_path / "ready").exists)
    for _ in range(2):
        job.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert job.poll() is None
    (tmp_path / "go").touch()
    assert job.wait(LIMIT_S) == 3


@pytest.mark.parametrize(
    ("opened", "is_auto"),
    [
        ("runs/my-project/0a1b2c3d\n", True),
        # All turns were lost before they opened the run folder.
        ("", False),
        # Somebody removed the file. Then nothing may be overwritten.
        (None, True),
    ],
)
def test_a_later_turn_overwrites_only_if_none_has_opened_the_run_folder(
    tmp_path: Path, opened: str | None, is_auto: bool
) -> None:
    if opened is not None:
        (tmp_path / RUN_FILE).write_text(opened)
    job = _batch_job(tmp_path, "slurm.sbatch", "resume=overwrite", SLURM_RESTART_COUNT="2", ENDS="exit 0")
    assert job.wait(LIMIT_S) == 0
    expected = " resume=overwrite" + " resume=auto" * is_auto
    assert (tmp_path / "given").read_text().endswith(f"jaxpose.train{expected}\n")


def test_a_later_turn_of_an_extension_still_extends(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).write_text("runs/my-project/0a1b2c3d\n")
    job = _batch_job(tmp_path, "slurm.sbatch", "resume=extend", SLURM_RESTART_COUNT="1", ENDS="exit 0")
    assert job.wait(LIMIT_S) == 0
    assert (tmp_path / "given").read_text().endswith("jaxpose.train resume=extend\n")


def test_the_first_turn_overwrites(tmp_path: Path) -> None:
    # Of an earlier job with the same number.
    (tmp_path / RUN_FILE).write_text("runs/my-project/0a1b2c3d\n")
    job = _batch_job(tmp_path, "slurm.sbatch", "resume=overwrite", ENDS="exit 0")
    assert job.wait(LIMIT_S) == 0
    assert (tmp_path / "given").read_text().endswith("jaxpose.train resume=overwrite\n")
    assert (tmp_path / RUN_FILE).read_text() == ""


def test_a_job_in_a_folder_that_is_read_only_runs_without_the_file(tmp_path: Path) -> None:
    (tmp_path / RUN_FILE).symlink_to(tmp_path / "absent" / "file")
    ends = 'echo "${JAXPOSE_RUN_FILE-none}" >named'
    assert _batch_job(tmp_path, "slurm.sbatch", ENDS=ends).wait(LIMIT_S) == 0
    assert (tmp_path / "named").read_text() == "none\n"


def test_the_turns_of_a_job_overwrite_once(tmp_path: Path) -> None:
    # The fake run opens its folder in its second turn.
    given = []
    for turn, opens in enumerate(("", "echo runs/a >$JAXPOSE_RUN_FILE; ", "")):
        ends = f"{opens}exit 75"
        job = _batch_job(tmp_path, "slurm.sbatch", "resume=overwrite", SLURM_RESTART_COUNT=str(turn), ENDS=ends)
        assert job.wait(LIMIT_S) == 75
        given.append((tmp_path / "given").read_text().partition("jaxpose.train ")[2].split())
    overwrite = ["resume=overwrite"]
    assert given == [overwrite, overwrite, [*overwrite, "resume=auto"]]


class Hosts:
    """hosts.sh with a command, on hosts that are all this machine."""

    def __init__(self, folder: Path, hosts: str, *command: str, **variables: str):
        self.folder = folder
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(FAKE_SSH)
        (folder / "bin" / "ssh").chmod(0o755)
        environment = os.environ | {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            ["bash", LAUNCH / "hosts.sh", hosts, *command],
            cwd=folder,
            env=environment | {"LOGS": str(folder / "logs"), "PATIENCE_S": "1"} | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def end(self) -> tuple[int, str, str]:
        """Returns (exit code, stdout, stderr)."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err

    def log(self, name: str) -> str:
        return (self.folder / "logs" / f"{name}.log").read_text()


def _wait_until(is_so: Callable[[], Any]) -> None:
    until = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


# A process that tells who it is and waits for a signal.
WAITS = """
import os, signal, sys, time
from pathlib import Path
index = os.environ["JAXPOSE_PROCESS_ID"]
def stop(number, frame):
    print("stopped", flush=True)
    sys.exit(85)
if "deaf" not in sys.argv:
    signal.signal(signal.SIGTERM, stop)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(f"unfinished{index}").write_text(str(os.getpid()))
os.rename(f"unfinished{index}", f"ready{index}")
time.sleep(100)
"""


def test_each_host_runs_the_command_and_knows_who_it_is(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "print(*(os.environ[name] for name in ('FAKE_HOST', 'JAXPOSE_PROCESS_ID', 'MINE')), sys.argv[1:])\n"
        "print(os.environ['JAXPOSE_NUM_PROCESSES'], os.environ['JAXPOSE_COORDINATOR'], os.getcwd(), sys.stdin.read())"
    )
    arguments = ["a b", "$HOME", "'\"", "line\nline", "*", ""]
    hosts = Hosts(
        tmp_path, "me@one\ntwo three", sys.executable, "-c", code, *arguments, PORT="77", SETUP="export MINE=x"
    )
    exit_code, out, err = hosts.end()
    assert exit_code == 0, err
    assert "3 processes, process 0 on me@one; logs in " in err
    names = ["0-me@one", "1-two", "2-three"]
    assert sorted(os.listdir(tmp_path / "logs")) == [f"{name}.log" for name in names]
    for name in names:
        index, _, host = name.partition("-")
        assert hosts.log(name) == f"{host} {index} x {arguments}\n3 one:77 {tmp_path} \n"
    assert out == hosts.log("0-me@one")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_to_every_host(tmp_path: Path, number: signal.Signals) -> None:
    hosts = Hosts(tmp_path, "one two", sys.executable, "-c", WAITS)
    _wait_until(lambda: all((tmp_path / f"ready{index}").exists() for index in range(2)))
    if number == signal.SIGINT:  # as a terminal does it: to all that was started there
        os.killpg(hosts.process.pid, number)
    else:
        hosts.process.send_signal(number)
    code, out, err = hosts.end()
    assert (code, out) == (85, "stopped\n"), err
    assert hosts.log("0-one") == hosts.log("1-two") == "stopped\n"


def test_when_the_script_is_killed_every_host_stops(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "one two three", sys.executable, "-c", WAITS, "deaf", PATIENCE_S="0.2")
    _wait_until(lambda: all((tmp_path / f"ready{index}").exists() for index in range(3)))
    pids = [int((tmp_path / f"ready{index}").read_text()) for index in range(3)]
    hosts.process.kill()
    _wait_until(lambda: not any(map(_is_alive, pids)))
    hosts.end()


def test_a_host_that_fails_stops_the_others(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, "one two unreachable", sys.executable, "-c", WAITS, "deaf")
    code, _, err = hosts.end()
    log = tmp_path / "logs" / "2-unreachable.log"
    assert code == 255 and f"process 2 on unreachable ended with exit code 255; see {log}\n" in err
    assert "rite error" not in err and "roken pipe" not in err
    assert "process 0 on one ended with exit code" in err and "process 1 on two ended with exit code" in err


@pytest.mark.slow
def test_the_doctor_runs_on_every_host(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    doctor = (sys.executable, "-m", "jaxpose.doctor", "--out", str(tmp_path / "runs"))
    hosts = Hosts(tmp_path, "127.0.0.1 127.0.0.1", *doctor, PORT=port)
    code, out, err = hosts.end()
    assert code == 0, out + err
    for index in range(2):
        text = hosts.log(f"{index}-127.0.0.1")
        assert f"this would be process {index} of 2, with process 0 at 127.0.0.1:{port}" in text
        assert re.search(r"^coordinator +ok ", text, re.MULTILINE), text


def test_without_a_command_it_says_how_it_is_used(tmp_path: Path) -> None:
    code, out, err = Hosts(tmp_path, "one").end()
    assert (code, out) == (2, "") and 'bash hosts.sh "node1 node2" python -m jaxpose.train' in err
    assert not (tmp_path / "logs").exists()
