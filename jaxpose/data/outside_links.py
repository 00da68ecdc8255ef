"""Links that lead out of a folder: somebody else may have made it, and what such a link names is not its content.

A project may have folders on another disk (labeled-data or a folder in it as a link); these are followed. A file that
is a link must lead to a file in the project, in such a folder, or in the store of the git annex that holds the project.
"""

import os
from pathlib import Path

from jaxpose.errors import UserError

_ANNEX = Path(".git", "annex", "objects")


def refuse_link_out_of_project(file: Path, name: str) -> None:
    """Checks that a file of a project is in it.

    Args:
      file: the path, whose folders may be links.
      name: of the file, relative to the project if it lies there.

    Raises:
      UserError: the file itself is a link that leads elsewhere.
    """
    if not file.is_symlink():
        return
    depth = len(Path(name).parts) if str(file).endswith(name) else 1
    # Each folder between the project and the file may be a link of its own.
    _refuse_outside(file, name, file.parents[depth - 1], list(file.parents[:depth]))


def refuse_link_out(file: Path, name: str, folder: Path) -> None:
    """Checks that a file in a folder is there, also if folders on the way are links.

    Raises:
      UserError: it lies elsewhere.
    """
    _refuse_outside(file, name, folder, [folder])


def _refuse_outside(file: Path, name: str, folder: Path, allowed: list[Path]) -> None:
    target = Path(os.path.realpath(file))
    real = Path(os.path.realpath(folder))
    roots = [Path(os.path.realpath(place)) for place in allowed]
    roots += [place / _ANNEX for place in (real, *real.parents) if (place / _ANNEX).is_dir()]
    if not any(target.is_relative_to(root) for root in roots):
        raise UserError(f"{name} is a link to {target}, outside of {folder}; copy the file itself to {folder}")
