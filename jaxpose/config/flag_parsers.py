"""Parsers, based on absl's, that turn the text of a flag into the value of an option, by the option's type."""

import ast
from typing import Any

from absl import flags

from jaxpose.errors import UserError


class _Lenient(flags.ArgumentParser):
    """Reads what a parser of absl can read; any other text stays as it is, for `validate` to refuse."""

    def __init__(self, parser: flags.ArgumentParser) -> None:
        self._parser = parser

    def parse(self, argument: Any) -> Any:
        try:
            return self._parser.parse(argument) if isinstance(argument, str) else argument
        except (TypeError, ValueError):
            return argument


class _WholeNumberOrNone(flags.IntegerParser):
    """Reads a whole number, or `none`, which stands for the preset's number."""

    def parse(self, argument: Any) -> Any:
        return None if argument.lower() == "none" else super().parse(argument)


class _NumberOrNone(flags.FloatParser):
    """Reads a number, or `none`, which stands for the preset's number."""

    def parse(self, argument: Any) -> Any:
        return None if argument.lower() == "none" else super().parse(argument)


class _Entries(flags.ArgumentParser):
    """Reads a list: "(0, 1)", "[0, 1]", "0,1", "a:b,c:d", "" (no entry) or "none"."""

    def parse(self, argument: Any) -> Any:
        if argument.strip().lower() == "none":
            return None
        value = _literal(argument)
        if isinstance(value, str):
            if any(value.count(opened) != value.count(closed) for opened, closed in ("()", "[]")):
                raise ValueError("a bracket is not closed")
            inner = value.strip()
            inner = inner[1:-1] if inner[:1] + inner[-1:] in ("()", "[]") else inner
            value = [entry.strip() for entry in inner.split(",") if entry.strip()]
        return tuple(value) if isinstance(value, list | tuple) else (value,)


class _Literal(flags.ArgumentParser):
    """Reads a number or a list; any other text stays as it is."""

    def parse(self, argument: Any) -> Any:
        return _literal(argument)


class DryRun(flags.ArgumentParser):
    """Reads `Options.dry_run`; absl gives "true" for --dry_run without a value."""

    def parse(self, argument: Any) -> Any:
        asked = {"true": "all", "all": "all", "data": "data", "memory": "memory"}.get(argument)
        if asked is None:
            raise UserError(
                f"dry_run is {argument!r}; give --dry_run, --dry_run=data to check the data without compiling, or "
                "--dry_run=memory to find the largest microbatch"
            )
        return asked


class Quiet(flags.ArgumentParser):
    """Reads `Options.quiet`; absl gives "true" for --quiet without a value."""

    def parse(self, argument: Any) -> Any:
        if argument not in ("true", "false", True, False):
            raise UserError(f"quiet is {argument!r}; give --quiet without a value")
        return argument in ("true", True)


# Type of an option -> how its text is read.
PARSERS = {
    bool: _Lenient(flags.BooleanParser()),
    int: _Lenient(_WholeNumberOrNone()),
    float: _Lenient(_NumberOrNone()),
    tuple: _Lenient(_Entries()),
    object: _Lenient(_Literal()),
}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return text
