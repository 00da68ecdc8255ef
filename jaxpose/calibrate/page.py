"""The page about a calibration: errors by camera, frame and cell of the images, and pictures of the worst frames."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxpose.calibrate.recordings import Recording
from jaxpose.cameras.calibration import CELLS, Calibration
from jaxpose.report.page import Section, escaped, folded, make_page, number, paragraph, table
from jaxpose.report.pictures import draw_picture
from jaxpose.terminal import count

_WORST, _LONGEST_PX = 3, 900


def page_of(title: str, found: Calibration, recordings: Mapping[str, Recording], lines: Sequence[str]) -> str:
    """Returns the HTML of the page; `lines` are what the command printed."""
    sections = [
        Section("result", "Result", "".join(paragraph(line.strip()) for line in lines)),
        Section("worst", "Worst frames", _worst_pictures(found, recordings)),
        Section("cells", "Cells of the images", _cell_tables(found)),
        Section("frames", "Frames", _frame_table(found)),
    ]
    return make_page(title, sections, [], [], "jaxpose calibrate")


def _worst_pictures(found: Calibration, recordings: Mapping[str, Recording]) -> str:
    """Returns the images with the largest median errors; rings are detected corners, dots are where the cameras put
    them.
    """
    used = found.used
    is_seen = np.isfinite(found.errors_px)
    medians = np.where(is_seen.any(axis=2), _median(found.errors_px, 2), -1)
    order = np.argsort(-medians, axis=None, kind="stable")[:_WORST]
    predicted_px = used.corners_px + found.scene.errors_px(used.corners, used.corners_px)
    names = [f"corner {place}" for place in range(len(used.corners))]
    parts = []
    for view, at in (divmod(int(place), medians.shape[1]) for place in order):
        name, frame = used.names[view], used.frames[at]
        image = next(image for _, image in recordings[name].frames(frame.__eq__))
        caption = f"{name}, frame {frame}: median error {medians[view, at]:.2f} px"
        there_px, seen_px = predicted_px[view, at], used.corners_px[view, at]
        picture = draw_picture(image, names, [], caption, _LONGEST_PX, predicted_px=there_px, labelled_px=seen_px)
        parts.append(f"<figure>{picture}<figcaption>{escaped(caption)}</figcaption></figure>")
    text = "Rings are the detected corners; dots are where the calibrated cameras expect them."
    return paragraph(text) + f'<div class="frames">{"".join(parts)}</div>'


def _cell_tables(found: Calibration) -> str:
    """Returns a table for each camera: the median error and the number of corners in each cell of its image."""
    text = (
        "Each cell shows the median error in px and the number of corners. In cells without corners, the lens is "
        "extrapolated."
    )
    parts = [paragraph(text)]
    head = ["", *(f"column {column + 1}" for column in range(CELLS))]
    for view, (name, size_px) in enumerate(zip(found.used.names, found.used.sizes_px, strict=True)):
        pixels, errors_px = found.used.corners_px[view], found.errors_px[view]
        cells = np.floor(np.nan_to_num(pixels, nan=-1e6) / np.array(size_px) * CELLS).astype(int)
        rows = []
        for row in range(CELLS):
            texts = []
            for column in range(CELLS):
                inside = errors_px[(cells[..., 0] == column) & (cells[..., 1] == row)]
                texts.append(f"{np.median(inside):.2f} ({len(inside):,})" if len(inside) else "-")
            rows.append([f"row {row + 1}", *texts])
        parts.append(table(head, rows, name))
    return "".join(parts)


def _frame_table(found: Calibration) -> str:
    """Returns the median error of each camera in each frame, folded."""
    medians = _median(found.errors_px, 2)
    rows = [
        [f"{frame}", *(number(medians[view, at]) for view in range(len(medians)))]
        for at, frame in enumerate(found.used.frames)
    ]
    return folded(count(len(rows), "frame"), table(["frame", *found.used.names], rows, "median error in px"))


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """Returns the median without NaN, NaN where there is nothing else."""
    is_known = np.isfinite(values)
    filled = np.where(is_known.any(axis=axis, keepdims=True), values, 0.0)
    return np.where(is_known.any(axis=axis), np.nanmedian(filled, axis=axis), np.nan)
