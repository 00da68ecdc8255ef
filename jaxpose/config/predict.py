"""How prediction divides video among workers and readers."""

import dataclasses

from jaxpose.config.option import Section, option


@dataclasses.dataclass
class PredictConfig(Section):
    stretch_minutes: float = option(
        10.0, "minutes of video that one worker claims at a time, cut at key frames", minimum=1e-3, harmless=True
    )
    decoders: int = option(
        1,
        "segments of video that are decoded at the same time per device, each by one thread",
        minimum=1,
        harmless=True,
    )
