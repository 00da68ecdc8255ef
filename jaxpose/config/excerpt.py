"""A value as a message shows it."""

from typing import Any

_LONGEST = 300


def excerpt(value: Any, quoted: bool = True) -> str:
    """Returns a value as Python writes it (a text without its quotes, if asked for), its end left out if it is long."""
    text = value if isinstance(value, str) and not quoted else repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
