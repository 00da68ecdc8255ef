"""Files that a label file names by the paths of another machine: which file here is meant, and when nobody can tell."""

import unicodedata
from pathlib import Path

import pytest

from jaxpose.data.named_files import find_files

COMPOSED = unicodedata.normalize("NFC", "M\u00e4use")
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)


def make(folder: Path, *names: str) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{number}")


def found(folder: Path, *names: str) -> list[str]:
    """Returns the place of each file in the folder, or the reason why there is none."""
    matches = find_files(names, [[folder]]).values()
    return [str(match.file.relative_to(folder)) if match.file else match.reason for match in matches]


@pytest.mark.parametrize(
    ("there", "name", "place"),
    [
        ("day1/a.mp4", "C:\\rec\\day1\\a.mp4", "day1/a.mp4"),
        ("day1/a.mp4", "//server/share/rec/day1/a.mp4", "day1/a.mp4"),
        ("a.mp4", "../../rec/day1/a.mp4", "a.mp4"),
        ("a.mp4", "rec/./day1/a.mp4", "a.mp4"),
        ("vid/img1.PNG", "vid/img1.png", "vid/img1.PNG"),
        ("Vid/IMG1.PNG", "/home/me/vid/img1.png", "Vid/IMG1.PNG"),
        (f"{COMPOSED}/a.png", f"{DECOMPOSED}/a.png", f"{COMPOSED}/a.png"),
        (f"{DECOMPOSED}/a.png", f"D:/{COMPOSED}/a.png", f"{DECOMPOSED}/a.png"),
        ("b.mp4", "C:/rec/day1/a.mp4", ""),
    ],
)
def test_the_longest_end_that_exists_is_the_file(tmp_path: Path, there: str, name: str, place: str) -> None:
    make(tmp_path, there)
    assert found(tmp_path, name) == [place]


def test_an_end_that_two_names_share_tells_nothing(tmp_path: Path) -> None:
    """The letter of a drive counts: two memory cards have the same folders."""
    make(tmp_path, "DCIM/a.avi")
    first, second = found(tmp_path, "E:/DCIM/a.avi", "F:/DCIM/a.avi")
    assert (
        first
        == f"{tmp_path}/DCIM/a.avi could be E:/DCIM/a.avi or F:/DCIM/a.avi; put the former at {tmp_path}/E/DCIM/a.avi"
    )
    assert second.endswith(f"put the former at {tmp_path}/F/DCIM/a.avi")
    make(tmp_path, "E/DCIM/a.avi")
    assert found(tmp_path, "E:/DCIM/a.avi", "F:/DCIM/a.avi")[0] == "E/DCIM/a.avi"
    # The same name twice is one name.
    assert found(tmp_path, "E:/DCIM/a.avi", "E:\\DCIM\\a.avi") == ["E/DCIM/a.avi"] * 2


def test_one_file_serves_one_name(tmp_path: Path) -> None:
    make(tmp_path, "vid/img1.PNG")
    shown = f"{tmp_path}/vid/img1.PNG could be vid/img1.png or vid/IMG1.png; put the former at {tmp_path}/"
    assert found(tmp_path, "vid/img1.png", "vid/IMG1.png")[0].startswith(shown)


def test_two_files_that_fit_are_refused_unless_they_are_copies(tmp_path: Path) -> None:
    make(tmp_path, "a/IMG.png", "a/img.PNG")
    (reason,) = found(tmp_path, "a/img.png")
    assert (
        reason
        == f"{tmp_path}/a/IMG.png and {tmp_path}/a/img.PNG both match a/img.png, but differ: keep only the right one"
    )
    (tmp_path / "a/img.PNG").write_text("0")
    assert found(tmp_path, "a/img.png") == ["a/IMG.png"]


def test_the_file_that_the_name_says_wins_over_another_beside(tmp_path: Path) -> None:
    """A copy of it in the folder is used instead: the project was copied."""
    make(tmp_path, "elsewhere/a.mp4", "here/b.mp4", "here/a.mp4")
    name = str(tmp_path / "elsewhere/a.mp4")
    (match,) = find_files([name], [[tmp_path / "here"]]).values()
    assert str(match.file) == name and match.is_exact
    (tmp_path / "here/a.mp4").write_text("0")
    (match,) = find_files([name], [[tmp_path / "here"]]).values()
    assert match.file == tmp_path / "here/a.mp4"
