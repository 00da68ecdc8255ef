"""Videos of more than 8 bits per channel: their upper 8 bits, by the depth that the file states."""

import logging
from pathlib import Path

import av
import numpy as np
import pytest

from jaxpose.errors import UserError
from jaxpose.video.decoding import RangeReader
from jaxpose.video.file import describe_depth
from jaxpose.video.index import read_index
from jaxpose.video.video import read_chunks, scan
from tests.random_predictor import predictor_of

GREY = np.tile(np.linspace(0, 255, 64).astype(np.uint8), (48, 1))
# By pixel format: how far a grey level of 8 bits is shifted.
FORMATS = {"gray10le": 2, "gray12le": 4, "gray16le": 8, "yuv420p10le": 0, "gbrp12le": 0}


def write(path: Path, pixel_format: str, shift: int = 0) -> Path:
    """Writes two frames of a ramp of grey levels, in the format itself where they are shifted."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, pixel_format
        for _ in range(2):
            frame = av.VideoFrame.from_ndarray(np.repeat(GREY[..., None], 3, axis=2), "rgb24")
            frame = frame.reformat(format=pixel_format)
            if shift:
                rows = np.zeros((48, frame.planes[0].line_size // 2), np.uint16)
                rows[:, :64] = GREY.astype(np.uint16) << shift
                frame.planes[0].update(rows.tobytes())
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.mark.parametrize("pixel_format", FORMATS)
def test_the_upper_8_bits_are_read_by_every_reader(tmp_path: Path, pixel_format: str) -> None:
    path = write(tmp_path / "deep.mkv", pixel_format, FORMATS[pixel_format])
    video = scan(path)
    assert f"of its {video.bits} bits per channel, the upper 8 are used" in describe_depth(path, video.bits)
    (chunk,) = read_chunks(video, np.eye(2, 3), (64, 48), 4)
    clip = dict(RangeReader(read_index(path), 0, 2, np.eye(2, 3), (64, 48)))
    assert np.abs(chunk[1].astype(int) - GREY[..., None]).max() <= 2
    np.testing.assert_array_equal(clip[1], chunk[1])


def test_a_format_of_16_bits_with_values_of_12_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "dark.mkv", "gray16le", 4)
    for read in (scan, read_index):
        with pytest.raises(UserError, match="dark.mkv has a format of 16 bits per channel, but its first frame"):
            read(path)


def test_a_prediction_says_how_many_bits_are_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep, plain = write(tmp_path / "deep.mkv", "gray12le", 4), write(tmp_path / "plain.mkv", "gray")
    predictor = predictor_of("heatmap")
    with caplog.at_level(logging.INFO, "jaxpose"):
        found = predictor.predict_video(deep)[0]
        assert "deep.mkv: of its 12 bits per channel, the upper 8 are used" in caplog.text
        caplog.clear()
        np.testing.assert_allclose(predictor.predict_video(plain)[0], found, rtol=0, atol=1e-4)
    assert "bits" not in caplog.text
