"""Files that a verb makes for its user, where some exist already: one rule for all verbs.

A full disk or a kill may cut off a command that makes several files. So a file that has the bytes that would be written
stays, and the same command makes the others. A file with other bytes is refused unless --overwrite is given.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.files import is_regular, sha256_of
from jaxpose.unfinished import naming_errors, unfinished_folder


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
        with unfinished_folder(folder / "output") as place:
            new = place / "new"
            new.mkdir()
            yield new
            # Backwards: a.json, which is about the file a, comes before it.
            files = sorted((file for file in new.rglob("*") if file.is_file()), reverse=True)
            targets = {file: folder / file.relative_to(new) for file in files}
            kept = [target for file, target in targets.items() if _is_same(file, target)]
            other = [target for target in targets.values() if os.path.lexists(target) and target not in kept]
            if other and not overwrite:
                raise UserError(refusal(sorted(other)))
            for file, target in targets.items():
                if target not in kept:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(file, target)


def refusal(files: list[Path]) -> str:
    """Returns the text of the error for files that exist already."""
    rule = "exists already: --overwrite replaces it" if len(files) == 1 else "exist already: --overwrite replaces them"
    return f"{', '.join(map(str, files))} {rule}; or choose another --out"


def _is_same(file: Path, other: Path) -> bool:
    is_same_size = is_regular(other) and other.stat().st_size == file.stat().st_size
    return is_same_size and sha256_of(other) == sha256_of(file)
