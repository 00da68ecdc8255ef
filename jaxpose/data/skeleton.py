"""What label files say about the animal beside its keypoints. Training uses none of it; converted files keep it."""

from collections.abc import Iterable, Sequence

from jaxpose.data.cells import usable_name
from jaxpose.errors import UserError

# The name in files that must have one.
DEFAULT_ANIMAL = "animal"


def animal_name(given: object) -> str:
    """Returns the attribute `animal` of a name in a file."""
    name = usable_name(given)
    return name if name != DEFAULT_ANIMAL else ""


def known_pairs(pairs: Iterable[Sequence[object]], keypoint_names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns the pairs of two different keypoints, each once; files may hold anything else, too."""
    found = [(str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2]
    return tuple(dict.fromkeys(pair for pair in found if pair[0] != pair[1] and set(pair) <= set(keypoint_names)))


def edge_text(edge: tuple[str, str]) -> str:
    """Returns an edge as an entry of `data.skeleton`."""
    return ":".join(edge)


def edges_given(option: str, texts: Iterable[str], keypoint_names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Returns the edges of texts 'name:name', each once.

    Args:
      option: where the user gave them, for the message.
      texts: of `data.skeleton`, or of a flag.
      keypoint_names: all that there are; a name may contain a colon.

    Raises:
      UserError: a text is not two different keypoints.
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
