"""The section of the worst frames: those with the largest errors, as pictures."""

import numpy as np

from jaxpose.codes import TEST, VALIDATION
from jaxpose.errors import UserError
from jaxpose.report.errors import NOT_MEASURED
from jaxpose.report.facts import RunFacts
from jaxpose.report.pictures import Drawing, cut_around, draw_picture
from jaxpose.report.project_labels import ProjectLabels
from jaxpose.report.section import Section, escaped, paragraph

_FRAMES, _LONGEST_PX = 9, 480


def worst_rows(errors_px: np.ndarray, rows: np.ndarray, most: int) -> np.ndarray:
    """Returns up to `most` of some rows of errors (n, k) by their mean error, the largest first; without NaN rows."""
    measured = rows[np.isfinite(errors_px[rows]).any(axis=1)]
    means = np.array([np.nanmean(errors_px[row]) for row in measured])
    return measured[np.argsort(-means, kind="stable")[:most]]


def worst_section(facts: RunFacts, labels: ProjectLabels | None) -> Section:
    """Returns the worst frames of the validation and test sets; `labels` is None if the project cannot be read."""
    title, frames = "Worst frames", facts.frames
    if frames is None:
        return Section("worst", title, paragraph(NOT_MEASURED))
    if labels is None:
        return Section("worst", title, paragraph("The project cannot be read, so there are no pictures."))
    parts = []
    for name in (TEST, VALIDATION):
        rows = frames.rows(name)
        chosen = worst_rows(frames.errors_px, rows, _FRAMES)
        if len(chosen):
            text = f"The {len(chosen)} of {len(rows)} {name} frames with the largest mean error, the worst first."
            parts.append(f"<h3>{escaped(name.capitalize())} frames</h3>{paragraph(text)}")
            parts.append(
                f'<div class="frames">{"".join(_picture(facts, labels, row) for row in chosen.tolist())}</div>'
            )
    if not parts:
        return Section("worst", title, paragraph("No frame was held out from the training."))
    text = (
        "A ring is a label, a dot is a prediction of the same colour, and a line joins the two. The names of the "
        "farthest keypoints are written; the others show when the pointer rests on a mark. Frames are cut to the "
        "points. Some of the labels may be wrong."
    )
    return Section("worst", title, paragraph(text) + "".join(parts))


def _picture(facts: RunFacts, labels: ProjectLabels, row: int) -> str:
    frames = facts.frames
    assert frames is not None
    errors_px, name = frames.errors_px[row], frames.images[row]
    worst = int(np.nanargmax(errors_px))
    text = (
        f"{name}: {np.nanmean(errors_px):.1f} px on average, {frames.keypoint_names[worst]} {errors_px[worst]:.1f} px "
        f"with confidence {frames.confidence[row, worst]:.2f}"
    )
    try:
        if labels.rows[row] < 0:
            raise UserError("it is not in the project any more")
        image, origin_px = labels.image(int(labels.rows[row]))
    except (UserError, OSError) as error:
        return f"<figure>{paragraph(f'no picture: {error}')}<figcaption>{escaped(text)}</figcaption></figure>"
    image, corner_px = cut_around(
        image, np.concatenate([frames.predicted_px[row], labels.labelled_px[row]]) - origin_px
    )
    shift_px = origin_px + corner_px
    predicted_px, labelled_px = frames.predicted_px[row] - shift_px, labels.labelled_px[row] - shift_px
    drawing = Drawing(frames.keypoint_names, labels.edges, predicted_px, labelled_px)
    return f"<figure>{draw_picture(image, drawing, text, _LONGEST_PX)}<figcaption>{escaped(text)}</figcaption></figure>"
