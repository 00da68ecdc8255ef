"""A value as a message shows it."""

from typing import Any

_LONGEST = 300


def excerpt(value: Any, quoted: bool = True) -> str:
    """Returns a value as Python writes it, cut if it is long; without `quoted`, a text has no quotes."""
    text = value if isinstance(value, str) and not quoted else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
