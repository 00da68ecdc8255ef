"""The section of the worst frames: those with the largest errors, as pictures."""

import numpy as np

from jaxpose.codes import TEST, VALIDATION
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.report.errors import NOT_MEASURED
from jaxpose.report.facts import RunFacts
from jaxpose.report.labelled import errors_of_frames, rows_of_set
from jaxpose.report.pictures import cut_around, draw_picture
from jaxpose.report.project_labels import edges_of_run, labelled_frame_px, read_image, rows_in_project
from jaxpose.report.section import Section, escaped, paragraph

_FRAMES, _LONGEST_PX = 9, 480


def worst_rows(errors_px: np.ndarray, rows: np.ndarray, most: int) -> np.ndarray:
    """Returns up to `most` of some rows of errors (n, k) by their mean error, the largest first; without NaN rows."""
    measured = rows[np.isfinite(errors_px[rows]).any(axis=1)]
    means = np.array([np.nanmean(errors_px[row]) for row in measured])
    return measured[np.argsort(-means, kind="stable")[:most]]


def worst_section(facts: RunFacts, project: Project | None) -> Section:
    """Returns the worst frames of the validation and test sets; `project` is None if it cannot be read."""
    title, frames = "Worst frames", facts.frames
    if frames is None:
        return Section("worst", title, paragraph(NOT_MEASURED))
    if project is None:
        return Section("worst", title, paragraph("The project cannot be read, so there are no pictures."))
    parts = []
    for name in (TEST, VALIDATION):
        rows = rows_of_set(frames, name)
        chosen = worst_rows(errors_of_frames(frames), rows, _FRAMES)
        if len(chosen):
            text = f"The {len(chosen)} of {len(rows)} {name} frames with the largest mean error, the worst first."
            parts.append(f"<h3>{escaped(name.capitalize())} frames</h3>{paragraph(text)}")
            parts.append(
                f'<div class="frames">{"".join(_picture(facts, project, row) for row in chosen.tolist())}</div>'
            )
    if not parts:
        return Section("worst", title, paragraph("No frame was held out from the training."))
    text = (
        "A ring is a label, a dot is a prediction of the same colour, and a line joins the two. The names of the "
        "farthest keypoints are written; the others show when the pointer rests on a mark. Frames are cut to the "
        "points. Some of the labels may be wrong."
    )
    return Section("worst", title, paragraph(text) + "".join(parts))


def _picture(facts: RunFacts, project: Project, row: int) -> str:
    frames = facts.frames
    assert frames is not None
    errors_px, name = errors_of_frames(frames)[row], frames.poses.frames[row]
    names, (points_px, confidence) = frames.poses.keypoint_names, frames.poses.one_animal()
    worst = int(np.nanargmax(errors_px))
    text = (
        f"{name}: {np.nanmean(errors_px):.1f} px on average, {names[worst]} {errors_px[worst]:.1f} px "
        f"with confidence {confidence[row, worst]:.2f}"
    )
    try:
        if (place := int(rows_in_project(project, frames)[row])) < 0:
            raise UserError("it is not in the project any more")
        image, origin_px = read_image(project, place, facts.config.data.white)
    except (UserError, OSError) as error:
        return f"<figure>{paragraph(f'no picture: {error}')}<figcaption>{escaped(text)}</figcaption></figure>"
    marks = {"predicted_px": points_px[row], "labelled_px": labelled_frame_px(project, frames)[row]}
    image, corner_px = cut_around(image, np.concatenate(list(marks.values())) - origin_px)
    marks = {name: points - (origin_px + corner_px) for name, points in marks.items()}
    picture = draw_picture(image, names, edges_of_run(facts.config.data), text, _LONGEST_PX, **marks)
    return f"<figure>{picture}<figcaption>{escaped(text)}</figcaption></figure>"
