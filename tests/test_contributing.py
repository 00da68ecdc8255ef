"""What CONTRIBUTING.md names exists: every file, every symbol in a file of its row, every option."""

import re
from pathlib import Path

import pytest

from jaxpose.config import Config
from jaxpose.config.option import flat_options

ROOT = Path(__file__).resolve().parents[1]
ROWS = [
    line
    for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| you want", "| `")) and "`" in line
]


def files_of(row: str) -> dict[str, list[Path]]:
    """The files and folders that each path in a row means; a bare name lies next to a file named before it."""
    folders, found = [ROOT], {}
    for name in re.findall(r"`([^`]+)`", row):
        is_option = bool(re.fullmatch(r"\w+(\.\w+)+", name)) and not is_file_name(name)
        if is_option or not re.fullmatch(r"[\w./-]*(\.\w+|/)", name):
            continue
        places = [folder / name for folder in folders if (folder / name).exists()]
        found[name] = places
        folders += [place if place.is_dir() else place.parent for place in places]
    return found


def is_file_name(name: str) -> bool:
    return name.rpartition(".")[2] in {"py", "js", "md", "toml", "yml", "yaml", "cff"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:50])
def test_a_row_names_what_exists(row: str) -> None:
    files = files_of(row)
    assert not [name for name, places in files.items() if not places]
    texts = [
        text.read_text()
        for places in files.values()
        for place in places
        for text in (place.rglob("*.py") if place.is_dir() else [place])
    ]
    for name in re.findall(r"`([^`]+)`", row):
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            assert any(re.search(rf"\b{name}\b", text) for text in texts), name
        elif re.fullmatch(r"[a-z]+(\.[a-z_]+)+", name) and not is_file_name(name):
            assert name in flat_options(Config()) or any(name in text for text in texts), name
