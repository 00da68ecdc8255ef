"""The devices and processes of a run."""

import dataclasses

from jaxpose.config.option import Section, option

# The only axis of the device mesh; batches are sharded over it.
AXIS = "data"


@dataclasses.dataclass
class MeshConfig(Section):
    platform: str = option(
        "auto",
        "kind of device; an error if the machine has none",
        choices=("auto", "cpu", "gpu", "tpu"),
        harmless=True,
        common=True,
    )
    devices: object = option(
        "auto",
        "auto = all; a number; a list such as '0,2' or '[1,3]'; a name 'gpu:1'; a glob 'GPU:*'; or 're:' and a regular "
        "expression that matches whole names",
        harmless=True,
        common=True,
    )
    deterministic: bool = option(False, "GPU: use only operations that repeat bit for bit (slower)", common=True)
    cpu_threads: int = option(
        0,
        "CPU: threads among which each process divides its arithmetic; another number changes the last bits. 0 = one "
        "for each allowed core or, with train.shards, 8",
        minimum=0,
        maximum=1024,
    )
    coordinator: str = option(
        "",
        "several processes: HOST:PORT of process 0; '' = from the environment",
        harmless=True,
    )
    processes: int = option(
        0, "number of processes; 0 = from the environment, 1 = this one alone", minimum=0, harmless=True
    )
    process: int = option(-1, "index of this process; -1 = from the environment", minimum=-1, harmless=True)
    start_s: float = option(
        300.0, "several processes: seconds to wait for all processes to connect", minimum=1.0, harmless=True
    )
    heartbeat_s: float = option(
        30.0,
        "several processes: seconds of silence after which a process counts as lost and the run ends",
        minimum=1.0,
        harmless=True,
    )
