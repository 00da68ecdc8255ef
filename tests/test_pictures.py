"""The pictures of the documents are those that docs/pictures.py makes, small, and in use."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"


def made() -> set[str]:
    """The names of the pictures that the script makes."""
    spec = importlib.util.spec_from_file_location("pictures", FOLDER.with_suffix(".py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return set(module.PICTURES)


def shown(page: Path) -> list[tuple[str, Path]]:
    """(what is written for those who do not see it, file) of each picture of a page."""
    found = re.findall(r"!\[([^]]*)\]\((.+?)\)", page.read_text())
    return [(text, (page.parent / file).resolve()) for text, file in found]


def test_the_pictures_are_those_of_the_script_and_small() -> None:
    files = list(FOLDER.iterdir())
    assert {file.name for file in files} == made()
    sizes = [file.stat().st_size for file in files]
    assert max(sizes) < 150_000 and sum(sizes) < 700_000
    assert all(file.read_bytes().startswith(b"\xff\xd8") for file in files), "not every picture is a JPEG file"


def test_every_picture_is_shown_with_a_description() -> None:
    pictures = [one for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) for one in shown(page)]
    assert {file for _, file in pictures} >= set(FOLDER.iterdir())
    assert all(file.is_file() and len(text) > 20 for text, file in pictures)


def test_the_readme_shows_the_report_and_a_labelled_frame() -> None:
    names = {file.name for _, file in shown(ROOT / "README.md")}
    assert {"report.jpg", "labelled_frame.jpg"} <= names
