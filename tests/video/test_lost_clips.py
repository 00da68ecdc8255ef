"""Clips that cannot be used: a few by name, many in one line, and no training on none."""

import shutil
from pathlib import Path

import av
import pytest

from jaxpose import config as c
from jaxpose.video.clips import UnusableClips, open_clips
from tests.painted_videos import LENGTH, data_config, windows, write
from tests.small_run import call, make_config

FRAMES = 160


def damage(path: Path, first: int, end: int) -> Path:
    """Overwrites the packets of some frames."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    content = bytearray(path.read_bytes())
    for packet in packets[first:end]:
        at = packet.pos or 0
        content[at + 5 : at + packet.size] = bytes(packet.size - 5)
    path.write_bytes(content)
    return path


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lost") / "video.mp4", FRAMES, options={"x264-params": "bframes=0:keyint=8"})


@pytest.mark.parametrize("mode", ["off", "auto"])
@pytest.mark.parametrize(("end", "lost"), [(18, 1), (50, 3), (FRAMES, 9)])
def test_many_lost_clips_are_one_line(video: Path, tmp_path: Path, mode: str, end: int, lost: int) -> None:
    path = damage(Path(shutil.copy(video, tmp_path)), 17, end)
    source = open_clips([(path,)], LENGTH, data_config(), mode)
    draws = windows(source, [FRAMES])
    assert sum(source.frames(draw) is None for draw in draws) == lost
    (text,) = source.messages()
    told = f"{lost} of its 10 clips" if lost > 1 else "frames 16 to 31"
    assert text.startswith(f"{path}: {told} are not used: frame 17 ")
    # The first clip is whole.
    for draw in (0, 7, 25):
        source.require_usable(draw)


def test_a_lost_clip_of_one_frame_is_named_as_a_frame(video: Path, tmp_path: Path) -> None:
    path = damage(Path(shutil.copy(video, tmp_path)), 17, 18)
    source = open_clips([(path,)], 1, data_config())
    lost = sum(source.frames(draw) is None for draw in windows(source, [FRAMES], 1))
    messages = source.messages()
    # The next frames up to a key frame need frame 17.
    assert 1 <= lost == len(messages) and all(" is not used: frame 17 " in message for message in messages)
    assert any(message.startswith(f"{path}: frame 17 is not used: ") for message in messages)


@pytest.mark.faults
def test_a_run_without_a_clip_to_learn_from_does_not_train(
    project: Path, video: Path, tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "videos"
    folder.mkdir()
    path = damage(Path(shutil.copy(video, folder)), 0, FRAMES)
    with pytest.raises(UnusableClips, match=r"none of the 10 clips of 1 video can be used.*: 10 of its 10 clips"):
        open_clips([(path,)], LENGTH, data_config()).require_usable(3)
    config = make_config(project, tmp_path / "run", train__steps=3, video__folder=str(folder))
    config.losses.temporal = c.TemporalConfig(weight=1e-3)
    assert call(config, tmp_path) == 1
    assert f"{path}: 10 of its 10 clips are not used" in capfd.readouterr().err
    assert not any((tmp_path / "run" / name).exists() for name in ("metrics.jsonl", "finished.json"))
