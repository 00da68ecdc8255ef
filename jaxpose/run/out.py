"""The place of a run folder, as far as it can be judged before the data are read. Nothing here imports jax."""

import os
from pathlib import Path

from jaxpose.config import Config, config_hash
from jaxpose.errors import UserError
from jaxpose.run.paths import FINISHED_FILE

_RUNS = Path("runs")
# Characters of patterns of file names; see `refuse_pattern`.
_SAFE = str.maketrans("[]*?", "____")


def default_path(config: Config) -> Path:
    """Returns the run folder of a config whose `out` is empty: runs/<project>/<hash of the config>.

    In the name of the project, [ ] * ? become _, because checkpoints are not found below some of them.
    """
    project = Path(config.data.project).name or "synthetic"
    return _RUNS / project.translate(_SAFE) / config_hash(config)


def refuse_unusable_out(out: str) -> None:
    """Checks that a run can write into `out`, or into runs/ if it is empty; writes nothing.

    Raises:
      UserError: a file is in the way, a folder cannot be written in, or checkpoints would not be found there.
    """
    path = Path(out).expanduser() if out else _RUNS
    # os.path takes a folder that cannot be looked into, and a name that is too long, for one that is not there.
    if not os.path.exists(path / FINISHED_FILE):
        refuse_pattern(path)
    there = next(folder for folder in (path, *path.absolute().parents) if os.path.exists(folder))
    if not there.is_dir():
        raise UserError(f"run folder {path} cannot be used: {there} is a file; choose another out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"run folder {path} cannot be used: {there} cannot be written to; choose another out")


def refuse_pattern(path: Path) -> None:
    """Raises UserError if checkpoints could not be read again: Orbax takes their path for a pattern of file names."""
    if "[" in str(path.absolute()):
        raise UserError(f"the run folder is {path.absolute()}; checkpoints need a path without '[': choose another out")
