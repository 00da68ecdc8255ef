"""The fit of frames inside of a program, beside that of the host, which OpenCV does."""

import jax
import numpy as np
import pytest

from jaxpose import geometry
from jaxpose.export.command import random_frames
from jaxpose.export.frame_fit import make_fit
from jaxpose.geometry import fit_still

# Frame, input, resize, crop.
CASES = [
    ((640, 480), (256, 256), "pad", ()),
    ((640, 480), (256, 192), "pad", ()),
    ((406, 396), (256, 256), "stretch", ()),
    ((100, 75), (256, 256), "pad", ()),
    ((333, 211), (64, 96), "pad", ()),
    ((333, 211), (64, 96), "pad", (31, 17, 250, 160)),
    ((512, 512), (128, 128), "stretch", (0, 0, 256, 256)),
    ((300, 4), (64, 64), "pad", ()),
    ((320, 240), (128, 96), "stretch", ()),
    ((200, 120), (128, 96), "stretch", ()),
    ((406, 396), (256, 256), "lightning_pose", ()),
]


@pytest.mark.parametrize(("frame_px", "input_px", "resize", "crop_px"), CASES)
def test_pixels_are_those_of_the_host(
    frame_px: tuple[int, int], input_px: tuple[int, int], resize: str, crop_px: tuple[int, ...]
) -> None:
    frames = random_frames(2, frame_px)
    got = np.asarray(jax.jit(make_fit(frame_px, input_px, resize, crop_px))(frames))
    affine = geometry.input_from_frame(frame_px, input_px, resize, crop_px)
    expected = np.stack([fit_still(frame, affine, input_px, resize, crop_px) for frame in frames])
    assert got.shape == expected.shape and np.array_equal(got, np.round(got))
    levels = np.abs(got - expected.astype(int))
    # XLA may join a product and a sum, so a value at half a level can round to the other side.
    assert levels.max() <= 1 and (levels > 0).sum() <= 4
    # The same pixels are black.
    assert np.array_equal((got == 0).all((0, 3)), (expected == 0).all((0, 3)))


@pytest.mark.parametrize("resize", ["pad", "stretch", "lightning_pose"])
def test_a_ramp_shows_where_each_pixel_of_the_input_lies_in_the_frame(resize: str) -> None:
    """A fit that is off by a part of a pixel would move every keypoint."""
    width, height, crop_px = 250, 180, (8, 20, 236, 150)
    ramp = np.broadcast_to(np.arange(width)[None, :, None], (height, width, 3)).astype(np.uint8)
    turned = np.broadcast_to(np.arange(height)[:, None, None], (height, width, 3)).astype(np.uint8)
    fit = make_fit((width, height), (64, 40), resize, crop_px)
    along_x, along_y = np.asarray(jax.jit(fit)(np.stack([ramp, turned])))[..., 0]
    columns, rows = np.meshgrid(np.arange(64), np.arange(40))
    places = geometry.apply(fit.frame_from_input, np.stack([columns, rows], axis=-1).reshape(1, -1, 2).astype(float))
    x, y = places.reshape(40, 64, 2).transpose(2, 0, 1)
    inside = (x > 14) & (x < 236) & (y > 26) & (y < 162)
    assert inside.sum() > 1000
    for off in ((along_x - x)[inside], (along_y - y)[inside]):
        # Half a level for each rounding.
        assert np.abs(off).max() <= 1 and abs(off.mean()) < 0.05


def test_frames_of_the_size_of_the_input_are_not_touched() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 64, 96, 3), np.uint8)
    for resize in ("pad", "stretch", "lightning_pose"):
        assert np.array_equal(jax.jit(make_fit((96, 64), (96, 64), resize))(frames), frames)
