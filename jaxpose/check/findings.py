"""The findings of a check (all that the page marks) as a list, for a terminal and as CSV."""

import csv
import dataclasses
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jaxpose.data.cells import path_cell
from jaxpose.errors import UserError
from jaxpose.terminal import count

ROW, OUTSIDE, SWAP, OUTLIER = "row", "outside", "swap", "outlier"
_HEADER = "kind,place,image,keypoints,text\n"


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to review.

    Attributes:
      kind: row (unusable), outside (unusable: a point is outside its image), swap or outlier.
      place: FILE:LINE, or FILE: and the entry of the file.
      image: its name, "" if unknown.
      keypoints: names of the keypoints that look wrong.
      text: the problem, for the user.
    """

    kind: str
    place: str
    image: str
    keypoints: tuple[str, ...]
    text: str

    def line(self) -> str:
        """Returns the finding for a terminal."""
        named = f"{self.image}: " if self.image and self.image not in self.text else ""
        return f"{self.place}: {named}{self.text}"


def headline(usable: str, findings: Sequence[Finding], is_compared: bool) -> str:
    """Returns the result of a check in one line.

    Args:
      usable: what can be used, such as "90 usable frames".
      findings: all.
      is_compared: whether all views' poses were compared.
    """
    found = Counter(finding.kind for finding in findings)
    refused, poses = found[ROW] + found[OUTSIDE], found[SWAP] + found[OUTLIER]
    outside = f" ({found[OUTSIDE]} with points outside of the image)" if found[OUTSIDE] else ""
    parts = [f"{usable}; {count(refused, 'row')} {'is' if refused == 1 else 'are'} refused{outside}"]
    if poses or is_compared:
        swapped = f" ({found[SWAP]} with left and right exchanged)" if found[SWAP] else ""
        parts.append(f"{count(poses, 'pose')} look{'s' * (poses == 1)} unlike the others{swapped}")
    else:
        parts.append("poses are not compared")
    return "; ".join(parts)


def as_csv(findings: Sequence[Finding]) -> bytes:
    """Returns the findings as a table: kind, place, image, keypoints (joined by spaces) and text."""
    text = io.StringIO()
    text.write(_HEADER)
    writer = csv.writer(text, lineterminator="\n")
    for finding in findings:
        cells = finding.place, finding.image, " ".join(finding.keypoints), finding.text
        writer.writerow([finding.kind, *map(path_cell, cells)])
    return text.getvalue().encode()


def list_file(page: Path) -> Path:
    """Returns the list file of a page."""
    return page.with_suffix(".csv")


def refuse_other_list(page: Path, overwrite: bool) -> None:
    """Checks that the list next to a page is absent or was written by a check.

    Args:
      page: the file of --out.
      overwrite: the list may be another file.

    Raises:
      UserError: it is a folder or another file.
    """
    file = list_file(page)
    if file.is_dir():
        raise UserError(f"--out is {page}, but its list {file} is a folder: choose another name")
    if not file.exists() or overwrite:
        return
    with file.open("rb") as stream:
        head = stream.read(len(_HEADER))
    if head != _HEADER.encode():
        raise UserError(
            f"--out is {page}, and its list would be {file}, which jaxpose check did not write: --overwrite replaces "
            "it; or choose another name"
        )
