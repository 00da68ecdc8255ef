"""What a user may name: files, folders of any depth, globs and lists; and the place of each in the results."""

import os
from pathlib import Path

import pytest

from jaxpose import config as c
from jaxpose.data.inputs import find_inputs, video_files
from jaxpose.labelling.recordings import find_recordings


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of videos and images, which is the working folder."""
    root = tmp_path / "data"
    for name in (
        "notes.txt", "x10.mp4", "x9.mp4", "a/x.mp4", "a/img2.png", "a/img10.png", "b/x.mp4", "b/deep/y.AVI",
        "b/deep/img1.png", ".hidden/z.mp4", "b/.z.mp4", "b/a.b.mp4",
    ):  # fmt: skip
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    os.symlink(root / "a", root / "b" / "link", target_is_directory=True)
    monkeypatch.chdir(root)
    return root


def found(*names: object) -> tuple[dict[str, str], dict[str, list[str]]]:
    """{place: video} and {place: images}, as text."""
    inputs = find_inputs([str(name) for name in names])
    return (
        {place.as_posix(): file.as_posix() for place, file in inputs.videos.items()},
        {place.as_posix(): [file.as_posix() for file in files] for place, files in inputs.images.items()},
    )


def test_a_folder_is_mirrored_in_natural_order(tree: Path) -> None:
    videos, images = found(tree)
    assert list(videos) == ["a/x", "b/a.b", "b/deep/y", "b/x", "x9", "x10"]
    assert all(Path(file).is_relative_to(tree) for file in videos.values())
    assert list(images) == ["data/a", "data/b/deep"]
    assert [Path(file).name for file in images["data/a"]] == ["img2.png", "img10.png"]
    # What is named itself may be a link.
    assert found(tree / "b" / "link")[0] == {"x": f"{tree}/b/link/x.mp4"}


def test_relative_names_stay_as_given(tree: Path) -> None:
    assert found("b") == (
        {"a.b": "b/a.b.mp4", "deep/y": "b/deep/y.AVI", "x": "b/x.mp4"},
        {"b/deep": ["b/deep/img1.png"]},
    )
    assert found("a/img10.png", "x9.mp4") == ({"x9": "x9.mp4"}, {"a": ["a/img10.png"]})


def test_several_are_flat_unless_two_names_are_equal(tree: Path) -> None:
    assert found("a/x.mp4", "x9.mp4")[0] == {"x": "a/x.mp4", "x9": "x9.mp4"}
    assert found("a/x.mp4", "b/x.mp4", "x9.mp4")[0] == {"a/x": "a/x.mp4", "b/x": "b/x.mp4", "x9": "x9.mp4"}
    assert found("a", "b")[0] == {"a/x": "a/x.mp4", "b/a.b": "b/a.b.mp4", "b/deep/y": "b/deep/y.AVI", "b/x": "b/x.mp4"}
    assert list(found("a", "b")[1]) == ["a", "b/deep"]
    for place in "ab":
        (tree / place / "frames").mkdir()
        (tree / place / "frames" / "1.png").write_text("")
    assert list(found("a/frames", "b/frames")[1]) == ["data/a/frames", "data/b/frames"]


def test_globs_and_lists(tree: Path) -> None:
    assert found("*/x.mp4")[0] == {"a/x": "a/x.mp4", "b/x": "b/x.mp4"}
    assert found(tree / "*" / "x.mp4")[0] == {"a/x": f"{tree}/a/x.mp4", "b/x": f"{tree}/b/x.mp4"}
    assert list(found("x*")[0]) == ["x9", "x10"]
    # Folders that match are searched, and what several matches name is one file; ** goes through links, as in a shell.
    assert sorted(found("b/**")[0]) == ["a.b", "deep/y", "link/x", "x"]
    assert list(found("[b]")[0]) == ["b/a.b", "b/deep/y", "b/x"]
    (tree / "list.txt").write_text("# of today\n\n  a/x.mp4\nb/d*\n")
    assert found("@list.txt")[0] == {"x": "a/x.mp4", "deep/y": "b/deep/y.AVI"}
    (tree / "list.txt").write_text("b/d*\r\n", "utf-16")
    assert found("@list.txt")[0] == {"deep/y": "b/deep/y.AVI"}
    (tree / "list.txt").write_text("M\u00e4use.mp4\n", "cp1252")
    with pytest.raises(
        ValueError, match="list.txt is not a list of images and videos in UTF-8 or UTF-16: save it as UTF-8$"
    ):
        found("@list.txt")
    (tree / "odd[1].mp4").write_text("")
    assert found("odd[1].mp4")[0] == {"odd[1]": "odd[1].mp4"}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["x.mp4"], "x.mp4 does not exist; did you mean x[0-9]+.mp4?"),
        (["notes.txt"], "notes.txt is neither an image .* nor a video"),
        ([".hidden", "b/.z.mp4", "x9.mp4", "x9*.mp4"], "x9.mp4 is given twice; name it once"),
        (["*.txt"], r"\*.txt matches neither images"),
        (["@none.txt"], "the list none.txt cannot be read: No such file"),
        (["@unread.txt"], "^unread.txt is not a list of images and videos in UTF-8 or UTF-16: save it as UTF-8$"),
        (["x9.mp4", "x9_temporal_norm.mp4"], "x9.mp4 and .*x9_temporal_norm.mp4 would both write x9_temporal_norm.csv"),
        (["x9.mp4", "twin/x9.mkv", "twin/x9.mp4"], "twin/x9.mkv and .*twin/x9.mp4 would both write twin/x9.csv"),
    ],
)
def test_what_cannot_be_is_told(tree: Path, names: list[str], message: str) -> None:
    (tree / "twin").mkdir()
    (tree / "twin" / "x9.mkv").write_text("")
    (tree / "twin" / "x9.mp4").write_text("")
    (tree / "x9_temporal_norm.mp4").write_text("")
    (tree / "unread.txt").write_bytes(b"x.mp4\n\xff\n")
    with pytest.raises(ValueError, match=message):
        find_inputs(names)


SPELLINGS = [
    (
        "m\u00e4use",
        "ma\u0308use",
        r"(?=.*m\\xe4use)(?=.*ma\\u0308use).* differ only in the Unicode form of their letters",
    ),
    ("day1", "Day1", r"(?=.*day1)(?=.*Day1).* differ only in the case of their letters"),
    (
        "ma\u0308use",
        "M\xe4use",
        r"(?=.*ma\\u0308use)(?=.*M\\xe4use).* differ only in the case and Unicode form of",
    ),
    (
        "strasse",
        "stra\xdfe",
        r"(?=.*strasse)(?=.*stra\\xdfe).* differ only in letters that are the same where case",
    ),
]


@pytest.mark.parametrize(("one", "other", "difference"), SPELLINGS)
def test_two_spellings_of_a_name_are_one_name(tree: Path, one: str, other: str, difference: str) -> None:
    """A system that ignores the difference would keep the tables of one of them."""
    for name in (one, other):
        for file in (f"{name}.mp4", f"{name}/{name}.mp4", f"{name}/1.png"):
            (tree / "alike" / file).parent.mkdir(parents=True, exist_ok=True)
            (tree / "alike" / file).write_text("")
    for names in ([f"alike/{one}.mp4", f"alike/{other}.mp4"], [f"alike/{one}/1.png", f"alike/{other}/1.png"]):
        with pytest.raises(
            ValueError, match=f"would write tables that are the same file on some systems .*{difference}"
        ):
            find_inputs(names)
    with pytest.raises(ValueError, match=r"\(.*/predictions.csv'? and .*/predictions.csv'? differ only"):
        find_inputs(names)
    (tree / "b" / f"{other}.mp4").write_text("")
    places = found(f"alike/{one}.mp4", f"b/{other}.mp4")[0]
    assert places == {f"alike/{one}": f"alike/{one}.mp4", f"b/{other}": f"b/{other}.mp4"}
    data = c.DataConfig(project=str(tree))
    for video in (
        c.VideoConfig(folder=f"{tree}/alike"),
        c.VideoConfig(files=(f"alike/{one}.mp4", f"alike/{other}.mp4")),
    ):
        with pytest.raises(ValueError, match=f"have names that are the same on some systems .*{difference}"):
            video_files(data, video)
    video = c.VideoConfig(files=(f"alike/{one}.mp4", f"b/{other}.mp4"))
    assert list(video_files(data, video)) == [f"alike_{one}", f"b_{other}"]
    with pytest.raises(ValueError, match=f"have the same name .*{difference}.*, and so would their frames"):
        find_recordings([f"alike/{one}.mp4", f"b/{other}.mp4"], (), {})


def test_one_video_of_two_spellings_is_not_two_videos(tree: Path) -> None:
    (tree / "linked").mkdir()
    (tree / "linked" / "a.mp4").write_text("")
    (tree / "linked" / "A.mp4").symlink_to("a.mp4")
    data = c.DataConfig(project=str(tree))
    for video in (c.VideoConfig(folder="linked"), c.VideoConfig(files=("linked/a.mp4", "linked/A.mp4"))):
        assert {name: file.name for name, file in video_files(data, video).items()} == {"a": "a.mp4", "A": "A.mp4"}
    with pytest.raises(ValueError, match="video.files has .*linked/a.mp4 twice; keep one of them"):
        video_files(data, c.VideoConfig(files=("linked/a.mp4", "linked/a.mp4")))
    (tree / "linked" / "A.mp4").unlink()
    (tree / "linked" / "A.mp4").write_text("")
    with pytest.raises(ValueError, match=r"on some systems \((a and A|A and a) differ only in the case"):
        video_files(data, c.VideoConfig(files=("linked/a.mp4", "linked/A.mp4")))


def test_signs_that_only_look_like_digits_sort_as_letters(tree: Path) -> None:
    (tree / "²").mkdir()
    expected = ["2.png", "2²1.png", "2²2.png", "2²10.png", "2٣1.png", "2①1.png", "10.png"]
    for name in sorted(expected):
        (tree / "²" / name).write_text("")
    for given in ("²", "²/*.png", "."):
        (files,) = (files for place, files in found(given)[1].items() if place.endswith("²"))
        assert [Path(file).name for file in files] == expected


def test_links_in_a_circle_end(tree: Path) -> None:
    expected = ["a.b", "deep/y", "link/x", "x"]
    for number in range(3):
        os.symlink(tree / "b", tree / "b" / "deep" / f"up{number}", target_is_directory=True)
    assert sorted(found("b/**")[0]) == expected and sorted(found("b/**/*.mp4")[0]) == ["a.b", "link/x", "x"]
    assert sorted(found("b")[0]) == ["a.b", "deep/y", "x"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("loop.png", "Too many levels"), ("pipe.mp4", "is a pipe or device"), ("null.png", "is a pipe or device")],
)
def test_what_is_no_file_is_refused_and_not_waited_for(tree: Path, name: str, reason: str) -> None:
    if name == "pipe.mp4":
        os.mkfifo(tree / name)
    else:
        os.symlink({"loop.png": "loop.png", "null.png": "/dev/zero"}[name], tree / name)
    for given in (name, ".", "*.*", f"@{name}"):
        with pytest.raises(ValueError, match=f"{name}.*{reason}"):
            find_inputs([given])


@pytest.mark.parametrize("name", ["a\nb.png", "a\rb.mp4", "a\u2028b.mp4", "a\x85b.png", "a\tb.png", "a\udcffb.mp4"])
def test_a_name_that_breaks_the_lines_of_a_table_is_refused(tree: Path, name: str) -> None:
    (tree / name).write_text("")
    for given in (name, "."):
        with pytest.raises(ValueError, match=rf"U\+{ord(name[1]):04X} in place \d+; names must not have .*; rename it"):
            find_inputs([given])
