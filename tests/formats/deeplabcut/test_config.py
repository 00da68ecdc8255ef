"""Names in config.yaml: text as in YAML 1.2, spelled as the label files spell them."""

import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from jaxpose import config as c
from jaxpose.config import command_line
from jaxpose.data.dataset import select_keypoints
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.project import read_label_table, read_project
from jaxpose.text_file import read_yaml
from tests.formats.other_projects import KEYPOINTS, deeplabcut_project

NFC, NFD = "Schw\u00e4nz", "Schwa\u0308nz"


def project(folder: Path, bodyparts: list[str], labelled: list[str] | None = None, more: str = "") -> Path:
    """Returns a project with these words in config.yaml, and these names in the label files."""
    deeplabcut_project(folder)
    config = (folder / "config.yaml").read_text()
    for old, new, label in zip(KEYPOINTS, bodyparts, labelled or bodyparts, strict=True):
        config = config.replace(f"- {old}\n", f"- {new}\n")
        for file in folder.glob("labeled-data/*/*.csv"):
            file.write_text(file.read_text().replace(f",{old},{old}", f",{label},{label}"))
    (folder / "config.yaml").write_text(config + more)
    return folder


def read(folder: Path, **options) -> Project:
    data = c.DataConfig(project=str(folder), **options)
    return select_keypoints(read_project(data), data)


@pytest.mark.parametrize(
    ("bodyparts", "labelled"),
    [
        (["no", "on", "off", "12:30"], None),
        (["y", "yes", "2024-01-01", "1_000"], None),
        (["01", "1e3", "0x10", "true"], None),
        # As DeepLabCut writes these words.
        (["08", "1e3", "true", ".5"], ["8", "1000.0", "True", "0.5"]),
        (["'01'", '"on"', "1", "null"], ["01", "on", "1", "null"]),
        ([NFC, "b", "c", "d"], [NFD, "b", "c", "d"]),
    ],
)
def test_every_bodypart_is_found(tmp_path: Path, bodyparts: list[str], labelled: list[str] | None) -> None:
    found = read(project(tmp_path / "p", bodyparts, labelled))
    assert found.poses.keypoint_names == tuple(labelled or bodyparts)
    assert not any("bodyparts" in note for note in found.notes)
    assert (found.visibility > 0).sum() == 2 * (12 - 1)
    # The edge of the skeleton has the names of the config.
    assert found.poses.skeleton.edges == ((found.poses.keypoint_names[0], found.poses.keypoint_names[3]),)


def test_a_config_in_utf_16_is_read(tmp_path: Path) -> None:
    file = project(tmp_path / "p", [NFC, "b", "c", "d"]) / "config.yaml"
    file.write_text(file.read_text(), "utf-16")
    assert read(tmp_path / "p").poses.keypoint_names == (NFC, "b", "c", "d")


def test_a_bodypart_that_no_label_file_has_is_refused_unless_the_others_are_named(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", ["nose", "left_ear", "rihgt_ear", "tail"], list(KEYPOINTS))
    with pytest.raises(UserError, match="names the keypoints rihgt_ear, but no label file has them") as caught:
        read(folder)
    (option,) = shlex.split(str(caught.value).rpartition(": ")[2])
    config, _ = command_line.read([str(folder), option])
    names = config.data.keypoint_names
    assert read(folder, keypoint_names=names).poses.keypoint_names == names == ("nose", "left_ear", "tail")
    # Looking at the labels, converting and merging them goes on.
    assert (
        "no label file has the bodyparts rihgt_ear of config.yaml: they are not trained"
        in read_label_table(c.DataConfig(project=str(folder))).notes
    )


def test_a_project_of_several_animals_with_one_animal_is_read(tmp_path: Path) -> None:
    more = "individuals: [mouse]\nmultianimalbodyparts: [nose, left_ear, right_ear, tail]\nuniquebodyparts: []\n"
    folder = project(tmp_path / "p", list(KEYPOINTS), None, more)
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace("multianimalproject: false", "multianimalproject: true"))
    for labels in folder.glob("labeled-data/*/*.csv"):
        table = pd.read_csv(labels, header=[0, 1, 2], index_col=[0, 1, 2])
        table.columns = pd.MultiIndex.from_tuples(
            [(scorer, "mouse", *rest) for scorer, *rest in table.columns],
            names=["scorer", "individuals", "bodyparts", "coords"],
        )
        table.to_csv(labels)
    found = read(folder)
    assert found.poses.keypoint_names == KEYPOINTS and np.isfinite(found.keypoints_frame_px).sum() == 2 * 2 * 11
    file.write_text(file.read_text().replace("[mouse]", "[mouse, rat]"))
    assert read(folder).most_animals == 0
    file.write_text(file.read_text().replace("uniquebodyparts: []", "uniquebodyparts: [corner]"))
    assert read(folder).poses.keypoint_names == KEYPOINTS


def test_a_name_may_be_given_in_another_unicode_form(tmp_path: Path) -> None:
    folder = project(tmp_path / "p", [NFD, "b", "c", "d"])
    assert read(folder, keypoint_names=("d", NFC)).poses.keypoint_names == ("d", NFD)


def test_plain_words_have_the_meaning_of_yaml_1_2(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("a: [no, 010, 0o10, 0x10, 1e3, .5, -.inf, ~, True, 12:30, 1.5.2]\nb: &b {c: 1}\nd: {<<: *b}\n")
    values, words = read_yaml(file)
    assert values["a"] == ["no", 10, 8, 16, 1000.0, 0.5, -np.inf, None, True, "12:30", "1.5.2"]
    assert words["a"] == ["no", "010", "0o10", "0x10", "1e3", ".5", "-.inf", "~", "True", "12:30", "1.5.2"]
    assert values["d"] == {"c": 1}
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(UserError, match="the key 'a' appears twice"):
        read_yaml(file)
    file.write_text("a: \x1b[31m\n")
    with pytest.raises(UserError, match="config.yaml is not a YAML file: unacceptable character #x001b"):
        read_yaml(file)


@pytest.mark.parametrize("key", ["scorer", "bodyparts", "skeleton", "video_sets", "multianimalproject"])
def test_aliases_of_aliases_do_not_fill_the_memory(key: str, tmp_path: Path) -> None:
    letters = list(zip("abcdefghijk", "bcdefghijkl", strict=True))
    bomb = ", ".join(["&a [x, x]", *(f"&{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in letters)])
    folder = project(tmp_path / "p", ["a", "b", "c", "d"])
    options = yaml.safe_load((folder / "config.yaml").read_text())
    options.pop(key, None)
    (folder / "config.yaml").write_text(f"{yaml.safe_dump(options)}{key}: [{bomb}]\n")
    with pytest.raises(
        UserError, match=r"config.yaml: its aliases \(\*\) expand to \d+ values; jaxpose reads at most 100000"
    ):
        read(folder)


def test_a_long_file_without_aliases_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"a: &a 1\nb: *a\nc: [{'1,' * 100_000}]\n")
    values, _ = read_yaml(file)
    assert values["b"] == 1 and sum(values["c"]) == 100_000
