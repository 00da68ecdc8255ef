"""The animal's name, skeleton and left-right pairs, from label files and keypoint names.

Training uses only the pairs; converted files keep everything.
"""

import re
from collections.abc import Iterable, Sequence

from jaxpose.data.cells import usable_name
from jaxpose.errors import UserError

# The animal's name in files that need one.
DEFAULT_ANIMAL = "animal"


def animal_name(given: object) -> str:
    """Returns the attribute `animal` of a name in a file."""
    name = usable_name(given)
    return name if name != DEFAULT_ANIMAL else ""


def known_pairs(pairs: Iterable[Sequence[object]], keypoint_names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns the pairs of two different keypoints, each once; ignores anything else in the file."""
    found = [(str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2]
    return tuple(dict.fromkeys(pair for pair in found if pair[0] != pair[1] and set(pair) <= set(keypoint_names)))


def edge_text(edge: tuple[str, str]) -> str:
    """Returns an edge in the form of `data.skeleton`."""
    return ":".join(edge)


def edges_given(option: str, texts: Iterable[str], keypoint_names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns the edges of texts 'name:name', each once.

    Args:
      option: the source of the texts, for the message.
      texts: of `data.skeleton`, or of a flag.
      keypoint_names: all names; a name may contain a colon.

    Raises:
      UserError: a text does not name two different keypoints.
    """
    edges = []
    for text in texts:
        parts = text.split(":")
        pairs = [(":".join(parts[:place]), ":".join(parts[place:])) for place in range(1, len(parts))]
        found = [pair for pair in pairs if set(pair) <= set(keypoint_names) and pair[0] != pair[1]]
        if not found:
            raise UserError(
                f"{option} has {text!r}; each entry must be 'name:name' with two keypoints of "
                f"{', '.join(keypoint_names)}"
            )
        edges.append(found[0])
    return tuple(dict.fromkeys(edges))


# Finds each keypoint's partner in a horizontal flip, from given pairs or from keypoint names.

_TOKENS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^A-Za-z\d]+")
_OTHER_SIDE = {
    "left": "right", "right": "left", "l": "r", "r": "l", "lh": "rh", "rh": "lh", "lf": "rf", "rf": "lf",
}  # fmt: skip
_HINT = (
    "give every pair in data.flip_pairs, each 'left_name:right_name' ('name:name' for one without a partner), "
    "or set augment.flip_p=0"
)


def flip_permutation(keypoint_names: list[str] | tuple[str, ...], given: tuple[str, ...]) -> tuple[int, ...]:
    """Returns, for each keypoint, the index of the keypoint that it becomes in a horizontal flip.

    Args:
      keypoint_names: every keypoint of the project, in order.
      given: pairs "left_name:right_name"; if there are any, only they count. Otherwise two names are a pair if swapping
        one whole token (left/right, l/r, lh/rh, lf/rf) makes them equal, ignoring case; tokens are split at `_ - .`,
        digits and case changes. left and right also count within a token: leftear, rightear.

    Raises:
      UserError: a pair is wrong, a name with a side has no partner or several, or no name has a side.
    """
    names = list(keypoint_names)
    partners = _partners_given(names, given) if given else _partners_by_name(names)
    return tuple(names.index(partners.get(name, name)) for name in names)


def refuse_unknown_names(keypoint_names: list[str] | tuple[str, ...], given: tuple[str, ...]) -> None:
    """Checks that every pair is "left_name:right_name" with keypoint names.

    Raises:
      UserError: one is not.
    """
    for pair in given:
        left, colon, right = pair.partition(":")
        if not colon or left not in keypoint_names or right not in keypoint_names:
            raise UserError(
                f"data.flip_pairs has {pair!r}; it must be 'left_name:right_name' with keypoints of "
                f"{', '.join(keypoint_names)}"
            )


def _partners_given(names: list[str], given: tuple[str, ...]) -> dict[str, str]:
    refuse_unknown_names(names, given)
    partners: dict[str, str] = {}
    for pair in given:
        left, _, right = pair.partition(":")
        for name in {left, right} & set(partners):
            raise UserError(f"data.flip_pairs names {name!r} twice; a keypoint can have only one partner")
        partners |= {left: right, right: left}
    forgotten = [name for name in names if name not in partners and (_swapped(name) or _joined(name, names))]
    if forgotten:
        raise UserError(f"data.flip_pairs leaves out {', '.join(forgotten)}, whose names contain a side; {_HINT}")
    return partners


def _partners_by_name(names: list[str]) -> dict[str, str]:
    partners: dict[str, str] = {}
    alone, ambiguous, hidden = [], [], []
    for name in names:
        swapped = _swapped(name)
        matches = [other for other in names if other.lower() in swapped and other != name]
        if len(matches) == 1:
            partners[name] = matches[0]
        elif matches:
            ambiguous.append(f"{name} ({' or '.join(matches)})")
        elif swapped:
            alone.append(name)
        elif partner := _joined(name, names):
            partners[name] = partner
        elif "left" in name.lower() or "right" in name.lower():
            hidden.append(name)
    problems = []
    if alone:
        problems.append(f"{', '.join(alone)} have no partner on the other side")
    if ambiguous:
        problems.append(f"{', '.join(ambiguous)} have several partners")
    if hidden:
        problems.append(f"{', '.join(hidden)} contain a side that is not a separate word")
    if not problems and not partners:
        problems.append(f"no name of {', '.join(names)} contains a side")
    if problems:
        raise UserError(f"augment.flip_p is above 0, but {'; '.join(problems)}: {_HINT}")
    return partners


def _swapped(name: str) -> set[str]:
    """Returns every lower-case name that differs from this one in one side token."""
    tokens = [token.lower() for token in _TOKENS.findall(name)]
    return {
        "".join([*tokens[:place], _OTHER_SIDE[token], *tokens[place + 1 :]])
        for place, token in enumerate(tokens)
        if token in _OTHER_SIDE
    }


def _joined(name: str, names: list[str]) -> str:
    """Returns the only other name with left and right swapped within a word, "" without one.

    "bright" has no side because no name is "bleft".
    """
    lower = name.lower()
    sides = re.findall("left|right", lower)
    wanted = lower.replace(sides[0], _OTHER_SIDE[sides[0]]) if len(sides) == 1 else ""
    matches = [other for other in names if other.lower() == wanted]
    return matches[0] if len(matches) == 1 else ""
