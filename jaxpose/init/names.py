"""What the names of keypoints tell: pairs of left and right, and views of one body part, as in a mirror."""

import re

from jaxpose.data.flip_pairs import flip_permutation
from jaxpose.errors import UserError

# Not front and back, which are more often parts of the body: front_left_paw.
_WORDS_OF_VIEWS = {"top", "bot", "bottom", "side", "mirror", "direct", "cam1", "cam2", "cam3"}
# Body parts that the views must share. Fewer may be one body part: pupil_top, pupil_bottom.
_SHARED = 3


def left_right_pairs(names: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """Returns the pairs that a flip swaps, as `data.flip_pairs` has them, and the reason if there are none."""
    try:
        partners = flip_permutation(names, ())
    except UserError as error:
        # The advice after the reason is for another option.
        return (), str(error).removeprefix("augment.flip_p is above 0, but ").partition(": give every pair")[0]
    pairs = [(name, names[partner]) for place, (name, partner) in enumerate(zip(names, partners, strict=True))
             if place < partner]  # fmt: skip
    return tuple(f"{name}:{partner}" for name, partner in pairs), ""


def mirrored_views(names: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Returns, for each view, the keypoints of the body parts that all views show, in one order; () without views.

    A view is a word such as top, bot, side or mirror at the start or the end of a name: paw1_top and paw1_bot.
    """
    by_view: dict[str, dict[str, str]] = {}
    for name in names:
        words = re.split(r"[_\-. ]", name.lower())
        for place in (-1, 0):
            if len(words) > 1 and words[place] in _WORDS_OF_VIEWS:
                part = "_".join(words[:-1] if place else words[1:])
                by_view.setdefault(words[place], {})[part] = name
                break
    # A view with fewer is a word for something else: lamp_top.
    by_view = {word: parts for word, parts in by_view.items() if len(parts) >= _SHARED}
    shared = [part for part in next(iter(by_view.values()), {}) if all(part in parts for parts in by_view.values())]
    if len(by_view) < 2 or len(shared) < _SHARED:
        return ()
    return tuple(tuple(parts[part] for part in shared) for parts in by_view.values())
