"""A value as a message shows it."""

from typing import Any

_LONGEST = 300


def excerpt(value: Any, quoted: bool = True, longest: int = _LONGEST) -> str:
    """Returns a value as Python writes it, cut after `longest` characters; without `quoted`, a text has no quotes."""
    text = value if isinstance(value, str) and not quoted else repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."
