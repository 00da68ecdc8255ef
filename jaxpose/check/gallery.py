"""The sections with pictures: frames to look at first, and all other frames."""

from collections.abc import Sequence

from jaxpose.check.frames import Frame
from jaxpose.quantities import count
from jaxpose.report.section import Section, folded, paragraph, table

# Pictures that are shown without a click on their title.
_PER_FOLD = 100
_LISTED = 1000


def marked_section(
    frames: Sequence[Frame], thumbnails: Sequence[str], refused: Sequence[tuple[str, str]], notes: Sequence[str]
) -> Section:
    """Returns the frames that somebody should look at before training, and the list of refused rows.

    Args:
      frames: all, the marked ones first.
      thumbnails: figures of the first of them.
      refused: place and reason of all refused rows.
      notes: why some checks were not possible.
    """
    marked = sum(frame.is_marked for frame in frames)
    parts = [paragraph(note) for note in notes]
    if not marked and not refused:
        nothing = "Nothing: no row is refused" + ("." if notes else ", and no pose is unlike the others.")
        return Section("first", "To look at first", paragraph(nothing) + "".join(parts))
    if refused:
        more = f" The first {_LISTED:,} are listed." if len(refused) > _LISTED else ""
        parts.append(
            paragraph(
                f"{count(len(refused), 'row')} cannot be used: a training stops with them, or leaves them out with "
                f"data.on_bad_frame=skip.{more}"
            )
        )
        parts.append(table(["row", "reason"], [list(row) for row in refused[:_LISTED]], "Refused rows"))
    if any(frame.outlier for frame in frames):
        parts.append(
            paragraph(
                "An outlier is a pose that a PCA of the other labels does not expect, or in which left and right look "
                "exchanged. It may be a rare pose: look at it. Names are written at the keypoints in question; dots "
                "are the nearest plausible places, or the labels exchanged."
            )
        )
    shown = thumbnails[:marked]
    if len(shown) < marked:
        parts.append(paragraph(f"Shown are the first {len(shown):,} of {count(marked, 'picture')}."))
    return Section("first", "To look at first", "".join(parts) + _grid(shown, "frames"))


def others_section(frames: Sequence[Frame], thumbnails: Sequence[str]) -> Section:
    """Returns all other frames; arguments as those of `marked_section`."""
    marked = sum(frame.is_marked for frame in frames)
    shown, others = thumbnails[marked:], len(frames) - marked
    if not others:
        return Section("frames", "All other frames", paragraph("There are none."))
    order = "the most unusual poses first" if any(frame.unusual for frame in frames) else "in the order of the labels"
    text = f"{count(others, 'frame')}, {order}."
    if len(shown) < others:
        text = (
            f"Shown are {len(shown):,} of {count(others, 'frame')}, {order}; the page would be too large with the "
            f"other {others - len(shown):,}."
        )
    text += (
        " Rings are labels, lines are the skeleton, and frames are cut to the points. The pointer on a ring shows its "
        "name; the word after the name of a frame is its set."
    )
    return Section("frames", "All other frames", paragraph(text) + _grid(shown, "frames small"))


def _grid(figures: Sequence[str], kind: str) -> str:
    """Returns figures in a grid of a class of page.css, those after the first hundred folded in hundreds."""
    parts = []
    for start in range(0, len(figures), _PER_FOLD):
        part = figures[start : start + _PER_FOLD]
        grid = f'<div class="{kind}">{"".join(part)}</div>'
        parts.append(folded(f"Frames {start + 1:,} to {start + len(part):,}", grid) if start else grid)
    return "".join(parts)
