"""The result of a check of labels as files: a table, and a picture of each doubtful image."""

import csv
import io
import os
import textwrap
from pathlib import Path, PurePosixPath

import cv2
import numpy as np

from jaxpose.data.cells import path_cell
from jaxpose.data.image_file import decode_image
from jaxpose.data.overlay import overlay_keypoints
from jaxpose.errors import UserError
from jaxpose.files import read_bytes, write_folder, write_new
from jaxpose.labelling.label_check import Finding

_LEGEND = "ring: label; dot: nearest plausible pose, or the labels exchanged"
# Of the font at its size of 1.
_LETTER_PX, _LINE_PX, _SIZE = 18, 40, 0.5
LIST_FILE = "label_check.csv"


def refuse_foreign(out: Path) -> None:
    """Checks that a folder is absent, empty, or an earlier result.

    Raises:
      UserError: it holds other files, or is a file.
    """
    if not os.path.lexists(out) or (out.is_dir() and (not any(out.iterdir()) or (out / LIST_FILE).is_file())):
        return
    raise UserError(f"--out is {out}, which holds other files than an earlier check; choose another folder")


def write_findings(out: Path, findings: list[Finding]) -> int:
    """Writes label_check.csv and the pictures into a folder, in place of an earlier result; returns their number.

    A picture <kind>/<video>_<image>.png shows each label as a ring; dots show where the labels might belong. The text
    of the finding stands below.

    Args:
      out: the folder.
      findings: what was found.
    """
    with write_folder(out, overwrite=True) as folder:
        pictures = [_write_picture(folder, finding) for finding in findings]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["kind", "place", "image", "keypoints", "text", "picture"])
        for finding, picture in zip(findings, pictures, strict=True):
            cells = finding.place, finding.image, " ".join(finding.keypoints), finding.text, picture
            writer.writerow([finding.kind, *map(path_cell, cells)])
        write_new(folder / LIST_FILE, text.getvalue().encode())
    return sum(bool(picture) for picture in pictures)


def _write_picture(folder: Path, finding: Finding) -> str:
    """Returns the picture of a finding, relative to the folder; "" if the image cannot be shown."""
    if finding.path is None or finding.labelled_px is None:
        return ""
    try:
        image = decode_image(read_bytes(finding.path, most_bytes=None), finding.rule)
    except (OSError, UserError):
        return ""
    expected_px = np.full_like(finding.labelled_px, np.nan) if finding.expected_px is None else finding.expected_px
    (picture,) = overlay_keypoints(image[None], expected_px[None], finding.labelled_px[None])
    path = PurePosixPath(finding.image)
    name = f"{finding.kind}/{path.parent.name}_{path.stem}.png"
    (folder / finding.kind).mkdir(exist_ok=True)
    _, content = cv2.imencode(".png", _with_caption(picture, finding.text)[..., ::-1])
    write_new(folder / name, content.tobytes())
    return name


def _with_caption(picture: np.ndarray, text: str) -> np.ndarray:
    """Returns a picture (h, w, 3) with lines of text below; OpenCV draws only ASCII."""
    letters, line_px = max(10, int(picture.shape[1] / (_LETTER_PX * _SIZE))), int(_LINE_PX * _SIZE)
    lines = [line for part in (text, _LEGEND) for line in textwrap.wrap(part, letters)]
    bar = np.full((line_px * len(lines) + line_px // 2, picture.shape[1], 3), 255, np.uint8)
    for number, line in enumerate(lines, 1):
        shown = line.encode("ascii", "replace").decode()
        cv2.putText(bar, shown, (4, number * line_px), cv2.FONT_HERSHEY_SIMPLEX, _SIZE, (0, 0, 0), 1, cv2.LINE_AA)
    return np.concatenate([picture, bar])
