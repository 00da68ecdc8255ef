"""Detects the number of this process in a run from the options `mesh.*` and the environment. Starts nothing."""

import dataclasses
import re
import shutil
import subprocess
import zlib
from collections.abc import Mapping

from jaxpose.config import MeshConfig
from jaxpose.errors import UserError

_OURS = ("JAXPOSE_COORDINATOR", "JAXPOSE_NUM_PROCESSES", "JAXPOSE_PROCESS_ID")
# A job step has all of these variables; the batch script itself lacks the first.
_SLURM = ("SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID")
_OPEN_MPI = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")
_TORCHRUN = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
# JAX uses the same range. It lies above the ports that systems assign by themselves.
FIRST_PORT, PORTS = 61440, 4096

Environment = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class ProcessInfo:
    """One of the processes of a run.

    Attributes:
      address: host:port of process 0; "" for a single process.
      count: number of processes.
      index: number of this process, from 0.
      count_here: number of processes of the run on this machine; 1 if unknown.
      index_here: number of this process among those, from 0.
      name_comes_later: whether the host name in the address may be unknown until process 0 has started.
    """

    address: str = ""
    count: int = 1
    index: int = 0
    count_here: int = 1
    index_here: int = 0
    name_comes_later: bool = False


def detect_process(environment: Environment, mesh: MeshConfig) -> ProcessInfo:
    """Returns the number and address of this process: from `mesh.*`, or else from environment variables.

    The variables are those of jaxpose, SLURM, Open MPI or torchrun; the first source that is set wins. Kubernetes sets
    an index only (JOB_COMPLETION_INDEX), which replaces JAXPOSE_PROCESS_ID.

    Raises:
      UserError: a value is missing or out of range, or a batch script of several tasks does not use `srun`.
    """
    if mesh.processes or mesh.coordinator or mesh.process >= 0:
        return _from_config(mesh)
    if environment.get(_OURS[1]) or environment.get(_OURS[2]):
        return _from_jaxpose(environment)
    inner = _from_open_mpi(environment) or _from_torchrun(environment)
    outer = _from_slurm(environment)
    # In a batch script, the tasks of a step may be the starters of mpirun or torchrun, not the processes of the run.
    if outer and not (inner and inner.count != outer.count):
        return outer
    if inner:
        return inner
    if environment.get(_OURS[0]):
        raise UserError(f"{_OURS[0]} is set, but {_OURS[1]} is not; set all of {', '.join(_OURS)}, or none")
    alone = "or run a single process with mesh.processes=1"
    if (tasks := environment.get("SLURM_NTASKS", "1")) != "1" and "SLURM_JOB_ID" in environment:
        raise UserError(
            f"this is a SLURM job of {tasks} tasks (SLURM_NTASKS), but the command was started without srun: use "
            f"srun python -m ..., {alone}"
        )
    if "JOB_COMPLETION_INDEX" in environment:
        raise UserError(
            f"this is a pod of an indexed Job (JOB_COMPLETION_INDEX), but {_OURS[0]} and {_OURS[1]} are not set: set "
            f"them as launch/k8s/jobset.yaml does, {alone}"
        )
    return ProcessInfo()


def _from_config(mesh: MeshConfig) -> ProcessInfo:
    if mesh.processes == 1:
        return ProcessInfo()
    if not (mesh.processes and mesh.coordinator and mesh.process >= 0):
        raise UserError(
            f"mesh.coordinator is {mesh.coordinator!r}, mesh.processes {mesh.processes} and mesh.process "
            f"{mesh.process}; give all three of them, or none"
        )
    values = {"mesh.processes": str(mesh.processes), "mesh.process": str(mesh.process)}
    count, index = _numbers(values, "mesh.processes", "mesh.process")
    return ProcessInfo(_checked("mesh.coordinator", mesh.coordinator), count, index)


def _from_jaxpose(environment: Environment) -> ProcessInfo:
    index_name = _OURS[2] if environment.get(_OURS[2]) else "JOB_COMPLETION_INDEX"
    missing = [name for name in (*_OURS[:2], index_name) if not environment.get(name)]
    if missing:
        given = next(name for name in _OURS if environment.get(name))
        name = _OURS[2] if missing[0] == "JOB_COMPLETION_INDEX" else missing[0]
        raise UserError(f"{given} is set, but {name} is not; set all of {', '.join(_OURS)}, or none")
    address = _checked(_OURS[0], environment[_OURS[0]])
    count, index = _numbers(environment, _OURS[1], index_name)
    if count == 1:
        return ProcessInfo()
    in_kubernetes = "JOB_COMPLETION_INDEX" in environment
    return ProcessInfo(address, count, index, name_comes_later=in_kubernetes)


def _from_slurm(environment: Environment) -> ProcessInfo | None:
    if not all(environment.get(name) for name in _SLURM):
        return None
    count, index = _numbers(environment, "SLURM_NTASKS", "SLURM_PROCID")
    if count == 1:
        return ProcessInfo()
    # Each step gets its own port, because steps of one job may run at the same time.
    step = environment.get("SLURM_STEP_ID", "0")
    number = int(environment["SLURM_JOB_ID"]) + 97 * (int(step) if step.isdecimal() else 0)
    first = f"{_first_host(environment['SLURM_STEP_NODELIST'])}:{FIRST_PORT + number % PORTS}"
    here = _tasks_here(environment)
    return ProcessInfo(_address(environment, first), count, index, here, int(environment["SLURM_LOCALID"]))


def _from_open_mpi(environment: Environment) -> ProcessInfo | None:
    if not all(environment.get(name) for name in _OPEN_MPI):
        return None
    count, index = _numbers(environment, *_OPEN_MPI)
    if count == 1:
        return ProcessInfo()
    local = ("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
    count_here, index_here = _numbers(environment, *local) if all(environment.get(name) for name in local) else (1, 0)
    starter = environment.get("OMPI_MCA_orte_hnp_uri", "")
    job = environment.get("PMIX_NAMESPACE") or starter.partition(".")[0]
    port = FIRST_PORT + zlib.crc32(job.encode()) % PORTS
    first = ""
    if count_here == count:
        first = f"127.0.0.1:{port}"
    elif address := re.search(r"tcp6?://\[?([^,:\]]+)", starter):
        first = f"{address[1]}:{port}"  # the host of mpirun, which process 0 shares unless a host file says otherwise
    elif not environment.get(_OURS[0]):
        raise UserError(
            f"Open MPI started {count} processes without the address of process 0: add -x {_OURS[0]}=HOST:PORT to "
            "mpirun, with the host of process 0 and a free port"
        )
    return ProcessInfo(_address(environment, first), count, index, count_here, index_here)


def _from_torchrun(environment: Environment) -> ProcessInfo | None:
    # WORLD_SIZE counts processes if RANK is set, and nodes if only NODE_RANK is set.
    index_name = next((name for name in ("RANK", "NODE_RANK") if environment.get(name)), "")
    if not index_name or not environment.get("WORLD_SIZE"):
        return None
    count, index = _numbers(environment, "WORLD_SIZE", index_name)
    if count == 1:
        return ProcessInfo()
    if missing := [name for name in _TORCHRUN if not environment.get(name)]:
        raise UserError(
            f"{index_name} and WORLD_SIZE are set, but {missing[0]} is not; set it as well, or none of them"
        )
    address = _checked("MASTER_ADDR:MASTER_PORT", f"{environment['MASTER_ADDR']}:{environment['MASTER_PORT']}")
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # torchrun itself listens on that port.
        host, _, port = address.rpartition(":")
        address = f"{host}:{int(port) % 65535 + 1}"
    local = ("LOCAL_WORLD_SIZE", "LOCAL_RANK")
    has_local = index_name == "RANK" and all(environment.get(name) for name in local)
    count_here, index_here = _numbers(environment, *local) if has_local else (1, 0)
    return ProcessInfo(_address(environment, address), count, index, count_here, index_here)


def _address(environment: Environment, default: str) -> str:
    given = environment.get(_OURS[0])
    return _checked(_OURS[0], given) if given else default


def _checked(name: str, address: str) -> str:
    if not re.fullmatch(r".+:\d{1,5}", address) or not 0 < int(address.rpartition(":")[2]) < 65536:
        raise UserError(f"{name} is {address!r}; it must be HOST:PORT of process 0, such as node1:1234")
    return address


def _numbers(values: Environment, count_name: str, index_name: str) -> tuple[int, int]:
    count, index = (int(text) if (text := values[name]).isdecimal() else -1 for name in (count_name, index_name))
    if count < 1:
        raise UserError(f"{count_name} is {values[count_name]!r}; it must be a whole number from 1")
    if not 0 <= index < count:
        raise UserError(f"{index_name} is {values[index_name]!r}; it must be a whole number from 0 to {count - 1}")
    return count, index


def _tasks_here(environment: Environment) -> int:
    """Returns the number of tasks of this step on this node, from a list such as 2(x3),1."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE", "")
    counts: list[int] = []
    for entry in text.split(","):
        if match := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry.strip()):
            counts += [int(match[1])] * int(match[2] or 1)
    node = environment.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else 1


def _first_host(nodes: str) -> str:
    """Returns the first host of a SLURM host list, such as n[1-2],m7."""
    if shutil.which("scontrol"):
        listed = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True)
        if listed.returncode == 0 and listed.stdout.split():
            return listed.stdout.split()[0]
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodes)[0])
