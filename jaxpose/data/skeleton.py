"""What label files say about the animal beside its keypoints. Training uses none of it; converted files keep it."""

import dataclasses
from collections.abc import Iterable, Sequence

from jaxpose.data.cells import usable_name

# The name in files that must have one.
DEFAULT_ANIMAL = "animal"


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """The animal of a label file.

    Attributes:
      animal: its name, "" if the file has none that says more than `DEFAULT_ANIMAL`.
      edges: pairs of names of keypoints that are drawn with a line between them.
      symmetries: pairs of names of keypoints that a mirror image exchanges.
    """

    animal: str = ""
    edges: tuple[tuple[str, str], ...] = ()
    symmetries: tuple[tuple[str, str], ...] = ()


def animal_name(given: object) -> str:
    """Returns the attribute `animal` of a name in a file."""
    name = usable_name(given)
    return name if name != DEFAULT_ANIMAL else ""


def known_pairs(pairs: Iterable[Sequence[object]], keypoint_names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Returns the pairs of two different keypoints, each once; files may hold anything else, too."""
    found = [(str(pair[0]), str(pair[1])) for pair in pairs if len(pair) == 2]
    return tuple(dict.fromkeys(pair for pair in found if pair[0] != pair[1] and set(pair) <= set(keypoint_names)))
