"""Two real processes of one run, which talk over sockets, usually with one device each."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose import config as c
from jaxpose.run.paths import PARAMETERS_FILE
from jaxpose.run.weights import load_parameters
from tests.small_run import command, environment, make_config, metrics_of, small_project

ROOT = Path(__file__).resolve().parents[1]
STEPS = 40
# Only a hang takes so long: two processes that compile on two busy cores need minutes.
LIMIT_S = 600

# Runs the verb; in the process that is told so something happens on the way.
DRIVER = """
import ctypes, dataclasses, importlib.metadata, os, signal, subprocess, sys, time, types
import jax
from jax._src import compiler, distributed
from jaxpose import train
from jaxpose.cluster import agreement
from jaxpose.config import command_line
from jaxpose.model import vit
from jaxpose.training import session
from jaxpose.training.network_training import StepLog

# JAX keeps only what process 0 compiles: the other one would compile its step in each of these tests.
class KeepsPrograms:
    process_id = 0
    client = property(lambda self: distributed.global_state.client)

compiler.distributed = types.SimpleNamespace(global_state=KeepsPrograms())

if os.environ.get("SMALL_VIT"):
    vit.FORMS["vit_small"] = dataclasses.replace(vit.FORMS["vit_small"], channels=24, depth=3)

event = sys.argv.pop(1)
write, put = StepLog.write, session.put_on_devices
if event == "another version":
    version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0.0.1" if name == "optax" else version(name)
if event.startswith("another disk at "):
    # Of its own, as another machine has it.
    agreement.SHOWN_S = 2
    assert ctypes.CDLL(None).unshare(0x00020000) == 0, "no mount namespace: not root?"
    for mount in (["--make-rprivate", "/"], ["-t", "tmpfs", "none", event.removeprefix("another disk at ")]):
        subprocess.run(["mount", *mount], check=True)

def write_slowly(step_log, taken):
    if taken.step == 3 and event != "slow":
        if event == "raise":
            raise RuntimeError("broken on purpose")
        os.kill(os.getpid(), signal.SIGTERM)
    # JAX looks for signals once a second. A test reads that the slow one loses 100 ms and more a step.
    time.sleep(0.12 if event == "slow" else 0.06)
    return write(step_log, taken)

def put_and_stop(setup):
    os.kill(os.getpid(), signal.SIGTERM)
    return put(setup)

def start_broken(*arguments, **options):
    if event == "killed while JAX starts":
        os.kill(os.getpid(), signal.SIGKILL)
    raise RuntimeError("broken on purpose")

if event.endswith("while JAX starts"):
    jax.distributed.initialize = start_broken
if event in ("raise", "stop at step 3", "slow"):
    StepLog.write = write_slowly
if event == "stop before the first step":
    session.put_on_devices = put_and_stop
sys.exit(command_line.run(train.main, verb="jaxpose.train", description=""))
"""


OURS = {"JAXPOSE_COORDINATOR": "localhost:{port}", "JAXPOSE_NUM_PROCESSES": "2", "JAXPOSE_PROCESS_ID": "{index}"}
TORCHRUN = {"MASTER_ADDR": "localhost", "MASTER_PORT": "{port}", "WORLD_SIZE": "2", "RANK": "{index}"}
# A teacher, which is believed within the run, and whose maps agree between the views of `small`.
TEACHER: dict[str, Any] = {"model__views_agree": True, "losses__consistency__weight": 1.0}
TEACHER |= {"losses__consistency__frames_per_step": 3}
TEACHER |= {"losses__consistency__start_steps": 2, "losses__consistency__ramp_steps": 4}
KUBERNETES = OURS | {"JAXPOSE_PROCESS_ID": "", "JOB_COMPLETION_INDEX": "{index}"}


class Pair:
    """Two processes of one run; ends them when it is left.

    Args:
      config: the run's config.
      folder: where their logs go.
      event: what happens in process 1: see DRIVER.
      more: arguments of process 1 alone.
      variables: of which {port} and {index} are filled in.
      present: the processes that come at all.
      devices: of each process.
    """

    def __init__(
        self,
        config: c.Config,
        folder: Path,
        event: str = "",
        more: tuple[str, ...] = (),
        variables: dict[str, str] = OURS,
        present: tuple[int, ...] = (0, 1),
        devices: int = 1,
    ):
        folder.mkdir(exist_ok=True)
        self._logs = [folder / f"process{index}.log" for index in range(2)]
        arguments = command(config, folder)
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        self._processes = []
        for index in present:
            mine = ["", *arguments] if index == 0 else [event, *arguments, *more]
            told = {name: value.format(port=port, index=index) for name, value in variables.items()}
            told |= environment() | {"JAX_NUM_CPU_DEVICES": str(devices)}
            with open(self._logs[index], "w") as stream:
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", DRIVER, *mine], cwd=ROOT, env=told, stdout=stream, stderr=stream
                    )
                )

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *error: Any) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def text(self, index: int) -> str:
        return self._logs[index].read_text() if self._logs[index].exists() else "absent"

    def send(self, index: int, number: signal.Signals) -> None:
        self._processes[index].send_signal(number)

    def code(self, index: int, limit_s: float) -> int:
        """The exit code of one, once it has ended."""
        return self._processes[index].wait(limit_s)

    def is_alive(self) -> bool:
        return all(process.poll() is None for process in self._processes)

    def codes(self, limit_s: float = LIMIT_S) -> list[int]:
        """The exit codes, once both have ended."""
        until = time.monotonic() + limit_s
        try:
            return [process.wait(max(until - time.monotonic(), 0.01)) for process in self._processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {limit_s} s\n{self.logs()}") from None

    def wait_for(self, index: int, text: str) -> None:
        until = time.monotonic() + LIMIT_S
        while text not in self.text(index):
            assert time.monotonic() < until, self.logs()
            time.sleep(0.02)

    def logs(self) -> str:
        return "\n".join(f"---- process {index}\n{self.text(index)}" for index in range(2))


def small(folder: Path, out: str, **changes: Any) -> c.Config:
    # SGD and one validation: rounding stays rounding, and cannot choose another best checkpoint.
    options = {"optim__name": "sgd", "optim__lr": 0.01, "model__loss": "kl", "mesh__devices": "auto"}
    # It compiles faster; test_parallel.py shows that augmentation does not depend on the layout.
    options |= {"augment__preset": "none", "augment__flip_p": 0.0}
    # One clip, half of it on each process, and a copy of a frame between them.
    options |= {"losses__temporal__weight": 1e-3, "losses__temporal__epsilon_px": (1.0,), "losses__anneal_init": 1.0}
    options |= {"losses__pca_multiview__weight": 1e-3, "video__sequence_length": 7}
    options |= {"losses__pca_multiview__views": ("left_front_paw,left_hind_paw", "right_front_paw,right_hind_paw")}
    options |= {"train__steps": STEPS, "train__val_every_epochs": STEPS, "log__tensorboard": False}
    return make_config(folder / "project", folder / out, **(options | changes))


def weights_of(run: Path) -> dict[str, Any]:
    """The exported weights of a run."""
    return load_parameters(run / PARAMETERS_FILE)[0]


def losses_of(run: Path) -> np.ndarray:
    """The loss of each of the STEPS of a run."""
    lines = [line for line in metrics_of(run) if "loss" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    return np.array([line["loss"] for line in lines])


def make_uninterrupted(folder: Path) -> None:
    """Trains in two processes that nothing happens to, started as Kubernetes does.

    The second one finds the project at another mount point.
    """
    config = small(folder, "uninterrupted")
    project = small_project(Path(config.data.project))
    mount = shutil.copytree(project, folder / "mount" / project.name)
    more = (f"data.project={mount}",)
    with Pair(config, folder / "uninterrupted-logs", more=more, variables=KUBERNETES) as pair:
        assert pair.codes() == [0, 0], pair.logs()
        assert re.search(r"processes +2\n", pair.text(0)) and "everything is in" in pair.text(0), pair.logs()
        # The second one says what it waits for; the rest is JAX's own.
        assert len(pair.text(1).splitlines()) <= 3, pair.logs()
