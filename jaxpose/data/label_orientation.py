"""Decides whether the labels of images with an EXIF orientation count upright or stored pixels.

Tools that show images in a browser show them upright; many others show the stored pixels. The points themselves do not
tell, so the option `data.orientation` or the label file decides: never a guess.
"""

from collections.abc import Sequence

from jaxpose.data.image_file import AUTO, UPRIGHT, ImageFacts
from jaxpose.data.label_table import LabelTable
from jaxpose.data.orientation import NORMAL, describe, upright_size_px
from jaxpose.errors import UserError
from jaxpose.quantities import count


def decide_orientation(given: str, table: LabelTable, facts: Sequence[ImageFacts | None]) -> str:
    """Returns how the labels of a table count pixels: upright, stored, or auto if no image needs it or nothing tells.

    A label file that gives the upright size of an image was made with upright images. One that gives the stored size
    tells nothing: several browser tools also store that.

    Args:
      given: `data.orientation`; another value than auto decides.
      table: n rows.
      facts: of the n images, None for those that cannot be used.
    """
    if given != AUTO:
        return given
    sizes_px = {
        (seen, one.stored_px, upright_size_px(one.stored_px, one.orientation))
        for row, one in enumerate(facts)
        if one and one.orientation != NORMAL and (seen := _seen_px(table, row))
    }
    is_upright = any(seen == upright != stored for seen, stored, upright in sizes_px)
    is_stored = any(seen == stored != upright for seen, stored, upright in sizes_px)
    return UPRIGHT if is_upright and not is_stored else AUTO


def refuse_undecided(table: LabelTable, row: int, facts: ImageFacts, decided: str) -> None:
    """Raises UserError if an image has an orientation and nothing tells how its labels count pixels."""
    if facts.orientation == NORMAL or decided != AUTO:
        return
    image = table.poses.frames[row]
    (width, height), (across, down) = facts.stored_px, upright_size_px(facts.stored_px, facts.orientation)
    raise UserError(
        f"{image} has {describe(facts.orientation)}; do its labels count pixels of the upright "
        f"picture ({across} x {down}) or of the stored one ({width} x {height})? Give data.orientation=upright if the "
        "label tool showed it upright, as browsers do, or data.orientation=stored"
    )


def describe_orientation(given: str, decided: str, facts: Sequence[ImageFacts]) -> str:
    """Returns a sentence for the user, "" if no image has an orientation; arguments as those of the functions above."""
    turned = sum(one.orientation != NORMAL for one in facts)
    if not turned or decided == AUTO:
        return ""
    why = "because the label file gives their upright size" if given == AUTO else f"by data.orientation={given}"
    return f"{count(turned, 'image')} with an EXIF orientation: labels and results count {decided} pixels, {why}"


def _seen_px(table: LabelTable, row: int) -> tuple[int, int] | None:
    name = table.poses.frames[row]
    return table.sizes_px.get(name) or table.shown_sizes_px.get(name)
