"""Formats numbers with units for people: 1 video, 2 videos; 40 s, 3.5 hours; 3 kB, 2.9 GB."""

from collections.abc import Mapping, Sequence


def count(number: int, noun: str, plural: str = "") -> str:
    """Returns a number with its noun, such as "1 video" or "1,200 videos"; `plural` is the noun + s by default."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def listed(names: Sequence[str], most: int) -> str:
    """Returns the first names, such as "a, b and 3 more"; `most` is how many are named."""
    return ", ".join(names[:most]) + f" and {len(names) - most} more" * (len(names) > most)


def tally(numbers: Mapping[str, int]) -> list[str]:
    """Returns the numbers above 0 with their nouns, in which a star stands for the s of the plural: {"cup* of tea": 2}
    gives ["2 cups of tea"]."""
    return [f"{number:,} {noun.replace('*', 's' * (number != 1))}" for noun, number in numbers.items() if number]


def duration(seconds: float | int) -> str:
    """Returns a time in a suitable unit, such as "40 s", "12 minutes" or "3.5 hours"; 1 s at least."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:,.1f} hours"


def clock(seconds: float) -> str:
    """Returns a time as a clock shows it, such as "02:05" or "1:00:00"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def three_digits(number: float) -> str:
    """Returns a number with three digits, or all digits before the point, such as "0.805", "64.9" or "1,040"."""
    return f"{number:.3g}" if abs(number) < 999.5 else f"{number:,.0f}"


def size(number_of_bytes: float | int) -> str:
    """Returns a number of bytes in a suitable unit, 1 kB = 1000 bytes, such as "3 kB" or "2.9 GB"."""
    value, units = float(number_of_bytes), ["bytes", "kB", "MB", "GB", "TB", "PB"]
    place = 0
    while value >= 999.5 and place < len(units) - 1:
        value, place = value / 1000, place + 1
    if place == 0:
        return count(round(value), "byte")
    return f"{three_digits(value)} {units[place]}"
