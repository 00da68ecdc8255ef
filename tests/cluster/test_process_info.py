"""Which process of a run this is: every way to be told, and what is refused."""

import re

import pytest

from jaxpose.cluster.gpus import gpus_of_process
from jaxpose.cluster.process_info import ProcessInfo, detect_process
from jaxpose.config import MeshConfig

OURS = {"JAXPOSE_COORDINATOR": "a:5", "JAXPOSE_NUM_PROCESSES": "2", "JAXPOSE_PROCESS_ID": "1"}
# The body of a batch script of three tasks, and a task of its step.
BATCH = {"SLURM_JOB_ID": "4100", "SLURM_NTASKS": "3", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
STEP = BATCH | {"SLURM_PROCID": "2", "SLURM_STEP_NODELIST": "n[03-04,7],m1", "SLURM_STEP_ID": "0"}
MPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
MPI |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
TORCH = {"MASTER_ADDR": "h", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}
RANK = {"RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def brief(process: ProcessInfo) -> tuple:
    return process.address, process.count, process.index, process.count_here, process.index_here


@pytest.fixture(autouse=True)
def no_scontrol(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("", 1, 0, 1, 0)),
        ({"PATH": "/bin", "WORLD_SIZE": "4", "RANK": ""}, ("", 1, 0, 1, 0)),
        (OURS, ("a:5", 2, 1, 1, 0)),
        (OURS | {"JAXPOSE_NUM_PROCESSES": "1", "JAXPOSE_PROCESS_ID": "0"}, ("", 1, 0, 1, 0)),
        # An indexed Job of Kubernetes.
        (OURS | {"JAXPOSE_PROCESS_ID": "", "JOB_COMPLETION_INDEX": "1"}, ("a:5", 2, 1, 1, 0)),
        (STEP, ("n03:61444", 3, 2, 1, 0)),
        (STEP | {"SLURM_STEP_NODELIST": "m1,n[1-2]"}, ("m1:61444", 3, 2, 1, 0)),
        (STEP | {"SLURM_STEP_ID": "1"}, ("n03:61541", 3, 2, 1, 0)),
        (STEP | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, ("", 1, 0, 1, 0)),
        (
            STEP | {"SLURM_STEP_TASKS_PER_NODE": "1(x2),2", "SLURM_NODEID": "2", "SLURM_LOCALID": "1"},
            ("n03:61444", 3, 2, 2, 1),
        ),
        # Ours before SLURM's, and mpirun's or torchrun's where their starters are the tasks.
        (STEP | OURS, ("a:5", 2, 1, 1, 0)),
        (STEP | {"JAXPOSE_COORDINATOR": "a:5"}, ("a:5", 3, 2, 1, 0)),
        (STEP | MPI | {"JAXPOSE_COORDINATOR": "a:5"}, ("a:5", 4, 3, 2, 1)),
        (STEP | TORCH | RANK, ("h:29500", 4, 3, 2, 1)),
        (BATCH | MPI | {"JAXPOSE_COORDINATOR": "a:5"}, ("a:5", 4, 3, 2, 1)),
        (MPI | {"OMPI_MCA_orte_hnp_uri": "7.0;tcp://10.9.0.1,10.8.0.1:345"}, ("10.9.0.1:64130", 4, 3, 2, 1)),
        (TORCH | RANK, ("h:29500", 4, 3, 2, 1)),
        # There the port is that of torchrun itself.
        (TORCH | RANK | {"TORCHELASTIC_USE_AGENT_STORE": "True"}, ("h:29501", 4, 3, 2, 1)),
        # The world counts nodes.
        (TORCH | {"NODE_RANK": "3", "LOCAL_RANK": "0"}, ("h:29500", 4, 3, 1, 0)),
        (TORCH | {"WORLD_SIZE": "1", "RANK": "0"}, ("", 1, 0, 1, 0)),
    ],
)
def test_detect_process(variables: dict[str, str], expected: tuple) -> None:
    assert brief(detect_process(variables, MeshConfig())) == expected


def test_mpi_on_one_machine_needs_no_address() -> None:
    ranks = [
        detect_process(MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
                          "OMPI_COMM_WORLD_RANK": str(rank), "PMIX_NAMESPACE": "job-1"}, MeshConfig())
        for rank in range(4)
    ]  # fmt: skip
    assert [(process.index, process.index_here, process.count_here) for process in ranks] == [
        (rank, rank, 4) for rank in range(4)
    ]
    assert len({process.address for process in ranks}) == 1 and ranks[0].address.startswith("127.0.0.1:")


def test_the_config_comes_first() -> None:
    mesh = MeshConfig(coordinator="c:7", processes=3, process=2)
    assert brief(detect_process(STEP | OURS | MPI, mesh)) == ("c:7", 3, 2, 1, 0)
    # One process alone, whatever the variables are; even in the body of a batch script.
    assert brief(detect_process(BATCH, MeshConfig(processes=1))) == ("", 1, 0, 1, 0)


@pytest.mark.parametrize(
    ("variables", "mesh", "message"),
    [
        (OURS | {"JAXPOSE_PROCESS_ID": ""}, {}, "JAXPOSE_COORDINATOR is set, but JAXPOSE_PROCESS_ID is not; set all"),
        ({"JAXPOSE_COORDINATOR": "a:5"}, {}, "JAXPOSE_COORDINATOR is set, but JAXPOSE_NUM_PROCESSES is not"),
        (OURS | {"JAXPOSE_COORDINATOR": "a"}, {}, "JAXPOSE_COORDINATOR is 'a'; it must be HOST:PORT"),
        (OURS | {"JAXPOSE_COORDINATOR": "a:70000"}, {}, "JAXPOSE_COORDINATOR is 'a:70000'; it must be HOST:PORT"),
        (OURS | {"JAXPOSE_NUM_PROCESSES": "0"}, {}, "JAXPOSE_NUM_PROCESSES is '0'; it must be a whole number from 1"),
        (OURS | {"JAXPOSE_PROCESS_ID": "2"}, {}, "JAXPOSE_PROCESS_ID is '2'; it must be a whole number from 0 to 1"),
        (
            BATCH,
            {},
            "this is a SLURM job of 3 tasks (SLURM_NTASKS), but the command was started without srun: use srun",
        ),
        ({"JOB_COMPLETION_INDEX": "1"}, {}, "but JAXPOSE_COORDINATOR and JAXPOSE_NUM_PROCESSES are not set: set them"),
        (
            MPI,
            {},
            "Open MPI started 4 processes without the address of process 0: add -x JAXPOSE_COORDINATOR=",
        ),
        ({"RANK": "1", "WORLD_SIZE": "4"}, {}, "RANK and WORLD_SIZE are set, but MASTER_ADDR is not"),
        (TORCH | {"RANK": "4"}, {}, "RANK is '4'; it must be a whole number from 0 to 3"),
        ({}, {"processes": 2}, "mesh.coordinator is '', mesh.processes 2 and mesh.process -1; give all three"),
        ({}, {"coordinator": "a:5", "processes": 2, "process": 2}, "mesh.process is '2'; it must be a whole number"),
        ({}, {"coordinator": "a", "processes": 2, "process": 1}, "mesh.coordinator is 'a'; it must be HOST:PORT"),
    ],
)
def test_what_makes_no_sense_is_refused(variables: dict[str, str], mesh: dict, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        detect_process(variables, MeshConfig(**mesh))


@pytest.mark.parametrize(
    ("count_here", "index_here", "visible", "of_job", "expected"),
    [
        # One process for each GPU; all of them visible, or each its own.
        (4, 2, 4, "4", [2]),
        (4, 2, 1, "4", [0]),
        (4, 2, 1, "", [0]),
        # One process for all GPUs, or no GPU anywhere.
        (1, 0, 8, "8", None),
        (4, 2, 0, "", None),
    ],
)
def test_three_layouts_of_gpus(
    count_here: int, index_here: int, visible: int, of_job: str, expected: list[int] | None
) -> None:
    process = ProcessInfo("a:5", 8, 3, count_here, index_here)
    assert gpus_of_process(process, visible, {"SLURM_GPUS_ON_NODE": of_job}) == expected


@pytest.mark.parametrize(
    ("count_here", "visible", "of_job", "message"),
    [
        (2, 8, "8", "2 processes of the run are on this machine, and this one sees 8 GPUs: start one process for each "
                    "GPU (#SBATCH --ntasks-per-node=8), or one for all GPUs (#SBATCH --ntasks-per-node=1)"),
        (4, 1, "1", "4 processes of the run are on this machine, and this one sees 1 GPU: start one process"),
        (1, 0, "8", "the job has 8 GPUs on this node (SLURM_GPUS_ON_NODE), but the task sees none of them"),
    ],
)  # fmt: skip
def test_gpus_that_do_not_fit_are_refused(count_here: int, visible: int, of_job: str, message: str) -> None:
    process = ProcessInfo("a:5", 8, 3, count_here, 0)
    with pytest.raises(ValueError, match=re.escape(message)):
        gpus_of_process(process, visible, {"SLURM_STEP_ID": "0", "SLURM_GPUS_ON_NODE": of_job})
