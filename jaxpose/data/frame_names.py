"""The number of the frame in the name of an image, of several numbers there: others name an animal or a trial.

Of mouse1_img0042.png, mouse1_img0090.png and mouse2_img0042.png, 42 and 90 are frames, 1 and 2 are mice.
"""

import re
from collections.abc import Iterable
from pathlib import PurePath

_NUMBER = re.compile("[0-9]+")
# Label tools write img0042.png, and frame42.png.
_NAMED = re.compile("(?:img|frame)[ _-]?([0-9]+)", re.IGNORECASE)


class FrameNames:
    """The names of the images of one folder. A place in a name counts its numbers from 0; the suffix has none."""

    def __init__(self, names: Iterable[str]):
        self._varying: dict[str, set[int]] = {}
        self._of_shape: dict[str, list[str]] = {}
        values: dict[tuple[int, str], str] = {}
        for name in names:
            self._of_shape.setdefault(_shape(name), []).append(name)
            for place, match in enumerate(_numbers(name)):
                rest = f"{name[: match.start()]}#{name[match.end() :]}"
                if values.setdefault((place, rest), match[0]) != match[0]:
                    self._varying.setdefault(_shape(name), set()).add(place)

    def places(self, name: str) -> list[int]:
        """Returns the places in a name that may be the frame's number, the likeliest first; [] without a number.

        The number after "img" or "frame" is the frame's. Without one, it may be any number that varies among the names
        of the folder while all else is equal, and is most often the last.
        """
        matches = _numbers(name)
        starts = [match.start() for match in matches]
        named = [starts.index(match.start(1)) for match in _NAMED.finditer(name) if match.start(1) in starts]
        return (
            named[-1:]
            or sorted(self._varying.get(_shape(name), ()), reverse=True)
            or [len(matches) - 1][: len(matches)]
        )

    def of_shape(self, name: str) -> list[str]:
        """Returns the names that differ from one in their numbers only, including it."""
        return self._of_shape.get(_shape(name), [])

    def number(self, name: str) -> int | None:
        """Returns the number of the frame by the likeliest place, None if the name has no number."""
        places = self.places(name)
        return number_at(name, places[0]) if places else None

    def renumbered(self, name: str, number: int) -> str:
        """Returns the name of another frame by the likeliest place."""
        return renumbered(name, self.places(name)[0], number)


def frame_of(name: str) -> int | str:
    """Returns what identifies the frame of an image in its folder, so that img7.png and img00000007.png are the same.

    It is the number in a name that has only one, and otherwise the name, without zeros that pad its numbers.
    """
    numbers = _numbers(name)
    return int(numbers[0][0]) if len(numbers) == 1 else _NUMBER.sub(lambda match: str(int(match[0])), name)


def number_at(name: str, place: int) -> int:
    """Returns the number at a place of a name."""
    return int(_numbers(name)[place][0])


def renumbered(name: str, place: int, number: int) -> str:
    """Returns a name with another number, padded with as many zeros: img07.png, 0, 8 is img08.png."""
    match = _numbers(name)[place]
    return f"{name[: match.start()]}{str(number).zfill(len(match[0]))}{name[match.end() :]}"


def series(name: str, place: int) -> str:
    """Returns a name with a mark in place of the number that runs, and of its length: the same for all frames of it."""
    match = _numbers(name)[place]
    return f"{name[: match.start()]}#{name[match.end() :]}"


def _numbers(name: str) -> list[re.Match[str]]:
    return list(_NUMBER.finditer(name, 0, len(name) - len(PurePath(name).suffix)))


def _shape(name: str) -> str:
    return _NUMBER.sub("#", name)
