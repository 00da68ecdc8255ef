"""A run on boxes is the same run only with the same boxes, those of its clips included."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.data.boxes import write_boxes
from jaxpose.errors import UserError
from jaxpose.run.folder import open_run
from jaxpose.training.start import list_files
from tests.small_run import make_config
from tests.training.setups import begin

NUMBERS = [str(number) for number in range(33)]


@pytest.fixture
def boxed(project: Path, tmp_path: Path) -> Path:
    """A project with a box of 40 px for each labelled image and each frame of its three videos."""
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    images = list(pd.read_csv(folder / "CollectedData.csv", header=[0, 1, 2], index_col=0).index)
    write_boxes(folder / "boxes" / "bbox.csv", images, np.tile((20, 6, 40, 40), (len(images), 1)))
    for video in (folder / "videos").glob("*.mp4"):
        write_boxes(folder / "boxes" / f"{video.stem}_bbox.csv", NUMBERS, np.tile((4, 6, 40, 40), (33, 1)))
    return folder


def config_of(folder: Path, **more: object) -> c.Config:
    return make_config(folder, folder.parent / "run", data__boxes=str(folder / "boxes" / "bbox.csv"), **more)


def refusal_of(config: c.Config) -> str:
    setup = begin(config)
    with pytest.raises(UserError) as refused, open_run(setup.config, list_files(setup)):
        pass
    return str(refused.value)


def test_other_boxes_of_labelled_images_are_another_run(boxed: Path) -> None:
    setup = begin(config_of(boxed))
    assert any("labels lie outside of their boxes" in message for message in setup.messages)
    with open_run(setup.config, list_files(setup)) as folder:
        assert "data.boxes" in (folder.path / "split.csv").read_text()
    file = boxed / "boxes" / "bbox.csv"
    table = pd.read_csv(file, index_col=0)
    # The notation of numbers, the order of the rows, other images and videos without a loss on them do not matter.
    other = pd.concat([table.iloc[::-1].astype(float), pd.DataFrame([[0.0, 0, 9, 9]], ["other.png"], table.columns)])
    other.to_csv(file)
    (boxed / "boxes" / "session00_bbox.csv").unlink()
    setup = begin(config_of(boxed))
    with open_run(setup.config, list_files(setup)):
        pass
    table.iloc[3, 0] += 1
    table.to_csv(file)
    assert "data.boxes gives other boxes for the labelled frames, or for the videos" in refusal_of(config_of(boxed))


def test_other_boxes_of_clips_are_another_run(boxed: Path) -> None:
    options = {"losses__temporal__weight": 1.0, "video__sequence_length": 8}
    setup = begin(config_of(boxed, **options))
    clips = setup.clips["clips"].source
    assert clips.frames(0) is not None
    # 40 px of the frame are the 32 px of the input.
    np.testing.assert_allclose(clips.frame_from_input(0)[0, 0], [1.25, 0, 4.125])
    with open_run(setup.config, list_files(setup)):
        pass
    file = boxed / "boxes" / "session01_bbox.csv"
    boxes_px = np.tile((4, 6, 40, 40), (33, 1))
    boxes_px[7, 0] = 5
    write_boxes(file, NUMBERS, boxes_px)
    assert "data.boxes gives other boxes" in refusal_of(config_of(boxed, **options))
    file.unlink()
    with pytest.raises(UserError, match="session01.mp4 needs boxes, but .*session01_bbox.csv does not exist"):
        begin(config_of(boxed, **options))
