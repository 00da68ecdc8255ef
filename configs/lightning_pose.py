"""An existing Lightning Pose project, by its own config.yaml.

python -m jaxpose.train --config configs/lightning_pose.py:PATH/config.yaml

What cannot be taken over is printed, a line for each; see docs/lightning_pose.md.
"""

import sys
from pathlib import Path

from jaxpose import config as c
from jaxpose.formats.lightning_pose.config import read_config


def get_config(file: str = "") -> c.Config:
    """Returns the config of the project and prints what is not taken over from it."""
    config, messages = read_config(Path(file).expanduser())
    for message in messages:
        print(f"{file}: {message}", file=sys.stderr)
    return config
