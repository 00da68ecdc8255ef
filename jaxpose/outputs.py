"""Files that a verb makes for its user, where some exist already: one rule for all verbs.

A full disk or a kill may cut off a command that makes several files. So a file that has the bytes that would be written
stays, and the same command makes the others. A file with other bytes is refused unless --overwrite is given.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import is_same_file
from jaxpose.unfinished import LOCK_FILE, naming_errors, unfinished_folder, was_cut_off

_OUTPUT = "output"


@contextlib.contextmanager
def output_folder(folder: Path, overwrite: bool) -> Iterator[Path]:
    """Gives an empty folder to write to; at the end its files go to the same places below `folder`.

    Args:
      folder: where the files belong; it is made.
      overwrite: replace files with other content.

    Raises:
      UserError: a file exists already and has other content; no file is moved then.
      OSError: a file cannot be written; the error names it, or the folder.
    """
    with naming_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(folder / _OUTPUT) as new:
            yield new
            # Backwards: a.json, which is about the file a, comes before it.
            files = sorted(
                (file for file in new.rglob("*") if file.is_file() and file != new / LOCK_FILE), reverse=True
            )
            targets = {file: folder / file.relative_to(new) for file in files}
            kept = [target for file, target in targets.items() if is_same_file(file, target)]
            other = [target for target in targets.values() if os.path.lexists(target) and target not in kept]
            if other and not overwrite:
                raise already_exist(sorted(other))
            for file, target in targets.items():
                if target not in kept:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, target)


def already_exist(files: list[Path]) -> UserError:
    """Returns the error for files that exist already."""
    names = ", ".join(map(str, files))
    if len(files) > 1:
        return UserError(f"{names} exist already: --overwrite replaces them; or choose another --out")
    return UserError(f"{names} exists already: --overwrite replaces it; or choose another --out")


def may_be_ours(folder: Path) -> bool:
    """Returns whether a killed command may have left the files of a folder without telling its user; see `was_cut_off`.

    Then `output_folder` compares them, in place of a refusal before the work.
    """
    return was_cut_off(folder / _OUTPUT)
