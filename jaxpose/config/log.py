"""What is written while it runs. None of these changes a number of the run."""

import dataclasses

from jaxpose.config.option import option


@dataclasses.dataclass
class LogConfig:
    every_steps: int = option(10, "steps between lines of metrics", minimum=1, harmless=True)
    tensorboard: bool = option(True, "write TensorBoard files", harmless=True)
    frames: int = option(4, "predicted validation frames shown in TensorBoard", minimum=0, harmless=True)
    profile_steps: str = option("", "first:last step of a profiler trace, such as 10:15; '' = none", harmless=True)
    pace_s: float = option(
        60.0, "several processes: seconds between comparisons of their pace", minimum=0.0, harmless=True
    )
