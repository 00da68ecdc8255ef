"""An existing Lightning Pose project, trained from its own config.yaml.

For:      people who have such a project. Each ignored key is printed with the reason; see
          docs/from_lightning_pose.md.
Reached:  mirror-mouse-example with Lightning Pose's own config: not measured. With a smaller network:
          configs/small.py.
Cost:     not measured; --dry_run shows the cost of a step.
Command:  jaxpose train PATH/config.yaml
          (the same as jaxpose train --config configs/lightning_pose.py:PATH/config.yaml)
"""

import sys
from pathlib import Path

from jaxpose import config as c
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.config import read_config


def get_config(file: str = "") -> c.Config:
    """Returns the config of the project and prints each ignored key."""
    if not file:
        raise UserError("no config.yaml given: jaxpose train PATH/config.yaml")
    config, messages = read_config(Path(file).expanduser())
    for message in messages:
        print(f"{file}: {message}", file=sys.stderr)
    return config
