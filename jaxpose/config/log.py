"""What a run writes about itself. None of these options changes a number of the run."""

import dataclasses

from jaxpose.config.option import Section, option


@dataclasses.dataclass
class LogConfig(Section):
    every_steps: int = option(10, "steps between two lines of metrics", minimum=1, harmless=True)
    tensorboard: bool = option(
        True, "write TensorBoard files; the viewer is in the extra `tensorboard`", harmless=True, common=True
    )
    frames: int = option(4, "validation frames with predictions shown in TensorBoard", minimum=0, harmless=True)
    tracker: str = option(
        "none",
        "where else metrics, config and report go; wandb and mlflow are extras of the same name",
        choices=("none", "wandb", "mlflow"),
        harmless=True,
        common=True,
    )
    report: bool = option(True, "write report.html at the end of a training", harmless=True)
    profile_steps: str = option("", "first and last step of a profiler trace, such as 10:15; '' = none", harmless=True)
    pace_s: float = option(
        60.0, "several processes: seconds between two comparisons of their speed", minimum=0.0, harmless=True
    )
    remote_url: str = option(
        "",
        "where to copy the run folder: s3://..., gs://..., a mounted folder; '' = nowhere",
        harmless=True,
        common=True,
    )
    remote_every_s: float = option(
        60.0, "seconds between two checks for changed files to copy", minimum=0.1, harmless=True
    )
    remote_stop_s: float = option(
        30.0, "seconds that a run waits for its copy after a signal stopped it", minimum=0.0, harmless=True
    )
    remote_hook: str = option("", "MODULE:FUNCTION to call with the path of each finished file", harmless=True)
