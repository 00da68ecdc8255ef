"""Which devices do the work."""

import dataclasses

from jaxpose.config.option import Section, option

# The one axis of the mesh of devices, over which batches are sharded.
AXIS = "data"


@dataclasses.dataclass
class MeshConfig(Section):
    platform: str = option(
        "auto",
        "auto, cpu, gpu or tpu; what is asked and absent is an error",
        choices=("auto", "cpu", "gpu", "tpu"),
        harmless=True,
    )
    devices: object = option(
        "auto",
        "auto, a number, a list, '0,2', '[1,3]', 'gpu:1', a glob 'GPU:*', or 're:' and an expression",
        harmless=True,
    )
    deterministic: bool = option(False, "GPU: only operations that repeat bit for bit (slower)")
    coordinator: str = option(
        "",
        "several processes: HOST:PORT of process 0; '' = as the environment says",
        harmless=True,
    )
    processes: int = option(0, "number of processes; 0 = as the environment says, 1 = alone", minimum=0, harmless=True)
    process: int = option(-1, "index of this process; -1 = as the environment says", minimum=-1, harmless=True)
    start_s: float = option(
        300.0, "several processes: seconds to wait for all of them to come", minimum=1.0, harmless=True
    )
    heartbeat_s: float = option(
        30.0, "several processes: seconds after which a silent one ends the run for all", minimum=1.0, harmless=True
    )
