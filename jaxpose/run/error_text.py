"""The mean error of a set as text, the same wherever it is shown: its figures are those of evaluation.json."""

from collections.abc import Mapping
from typing import Any

from jaxpose.quantities import count


def error_text(figures: Mapping[str, Any]) -> str:
    """Returns the mean error of a set, and of how many frames; also with or without points marked as not visible."""
    error_px, frames = figures["mean_px_error"], count(figures["frames"], "frame")
    other = not_visible_text(figures)
    if error_px is None:
        return f"unknown: {frames} without labels{f'; {other}' if other else ''}"
    return f"{error_px:.2f} px (mean over {frames}{f'; {other}' if other else ''})"


def not_visible_text(figures: Mapping[str, Any]) -> str:
    """Returns what points marked as not visible would change in the mean error of a set; "" without such points."""
    if not (about := figures.get("not_visible")):
        return ""
    points = count(about["points"], "point")
    other_px = about["otherwise"]["mean_px_error"]
    shown = "unknown" if other_px is None else f"{other_px:.2f} px"
    return f"{shown} {'without' if about['counted'] else 'with'} {points} marked as not visible"
