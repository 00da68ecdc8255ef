"""One option of a config: its default, its meaning, and the rule that its value has to keep."""

import dataclasses
from typing import Any


def option(
    default: Any,
    doc: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | int | None = None,
    maximum: float | int | None = None,
    harmless: bool = False,
    is_path: bool = False,
) -> Any:
    """Returns a dataclass field that carries its documentation and its rule.

    Args:
      default: the value when nobody says otherwise.
      doc: meaning and unit, one line.
      choices: the only strings allowed, where given.
      minimum: the smallest number allowed (of every entry of a tuple).
      maximum: the largest number allowed.
      harmless: True if a run may be resumed with another value, because no number of it can change.
      is_path: True for a file or folder. An absolute one says where something lies on this machine, which does not make
        another run: split.csv records what lies there.
    """
    metadata = {
        "doc": doc,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "harmless": harmless,
        "is_path": is_path,
    }
    return dataclasses.field(default=default, metadata=metadata)
