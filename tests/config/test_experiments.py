"""The configs to copy from: each one tells what it is for, keeps the rules, and starts its data step."""

import ast
import re
from pathlib import Path

import pytest

from jaxpose import config as c
from jaxpose import train
from jaxpose.config import command_line
from jaxpose.data.synthetic import make_project

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs").glob("*.py"))
# That of Lightning Pose needs one of its files, see tests/formats/test_lightning_pose_config.py.
OWN = [file for file in FILES if file.stem != "lightning_pose"]
VIEWS = ("top", "side")


@pytest.fixture(scope="module")
def one_camera(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(
        tmp_path_factory.mktemp("one") / "project", videos=4, labelled_frames=4, video_frames=33, side_px=64
    )


@pytest.fixture(scope="module")
def two_cameras(one_camera: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as two cameras that see the same."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "labeled-data").mkdir()
    (folder / "videos").mkdir()
    labels = (one_camera / "CollectedData.csv").read_text()
    for view in VIEWS:
        (folder / f"CollectedData_{view}.csv").write_text(
            re.sub("^(labeled-data/[^/]+)/", rf"\1_{view}/", labels, flags=re.MULTILINE)
        )
        for images in (one_camera / "labeled-data").iterdir():
            (folder / "labeled-data" / f"{images.name}_{view}").symlink_to(images)
        for video in (one_camera / "videos").glob("*.mp4"):
            (folder / "videos" / f"{video.stem}_{view}.mp4").symlink_to(video)
    return folder


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_config_says_what_it_is_for(file: Path) -> None:
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    titles = re.findall(r"^(\w+):  +\S", text, re.MULTILINE)
    assert titles == ["For", "Reached", "Cost", "Command"]
    assert f"--config configs/{file.name}" in text
    for page in re.findall(r"(?:docs|benchmarks|configs)/\w+\.(?:md|py)", text):
        assert (ROOT / page).exists(), page


@pytest.mark.parametrize("project", ["", "some/project"])
@pytest.mark.parametrize("file", OWN, ids=lambda file: file.stem)
def test_a_config_keeps_the_rules(file: Path, project: str) -> None:
    config, _ = command_line.read(["--config", f"{file}:{project}" if project else str(file)])
    resolved = c.resolve(config)
    assert resolved.data.project.endswith(project)


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.stem)
def test_a_config_reads_its_data(
    file: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    several = "views=" in file.read_text()
    project = request.getfixturevalue("two_cameras" if several else "one_camera")
    config, options = command_line.read(["--config", f"{file}:{project}", "--dry_run=data"])
    assert train.main(config, options) == 0
    assert capsys.readouterr().out
