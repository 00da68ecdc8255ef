"""Numbers with their units, as people write them."""

import pytest

from jaxpose.terminal import count, duration, listed, size, tally, three_digits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (count(1, "video"), "1 video"),
        (count(0, "video"), "0 videos"),
        (count(1200, "match", "matches"), "1,200 matches"),
        ("; ".join(tally({"cup* of tea": 2, "egg*": 0, "cake*": 1})), "2 cups of tea; 1 cake"),
        (listed(["a", "b"], 2), "a, b"),
        (listed(["a", "b", "c", "d"], 2), "a, b and 2 more"),
        (duration(0.2), "1 s"),
        (duration(40.4), "40 s"),
        (duration(99.6), "2 minutes"),
        (duration(12 * 60), "12 minutes"),
        (duration(3.5 * 3600), "3.5 hours"),
        (duration(5000 * 3600), "5,000.0 hours"),
        (three_digits(0.80512), "0.805"),
        (three_digits(999.4), "999"),
        (three_digits(1038.2), "1,038"),
        (size(0), "0 bytes"),
        (size(1), "1 byte"),
        (size(999.4), "999 bytes"),
        (size(999.6), "1 kB"),
        (size(2860), "2.86 kB"),
        (size(999_600), "1 MB"),
        (size(2.9e9), "2.9 GB"),
        (size(1234e15), "1,234 PB"),
    ],
)
def test_a_quantity_reads_as_people_write_it(text: str, expected: str) -> None:
    assert text == expected
