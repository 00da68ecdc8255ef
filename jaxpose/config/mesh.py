"""Which devices do the work."""

import dataclasses

from jaxpose.config.option import option


@dataclasses.dataclass
class MeshConfig:
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
    heartbeat_s: int = option(
        30, "several processes: seconds after which a silent one ends the run for all", minimum=5, harmless=True
    )
