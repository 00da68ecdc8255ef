"""A choice for a project, with its reason."""

import dataclasses
from typing import Any

# Frames of one update.
BATCH = 16
# With that batch, 300 epochs of more training frames than these are at least 1,500 steps.
FEW_FRAMES = 64


@dataclasses.dataclass(frozen=True)
class Choice:
    """Options that belong together.

    Attributes:
      title: a line such as "Size of the network's input".
      reason: sentences; may name what to change, and when.
      options: {dotted name: value}.
    """

    title: str
    reason: str
    options: dict[str, Any]
