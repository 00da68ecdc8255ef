"""Corners of rendered boards, whose places are known, and what `--board` may be."""

import dataclasses

import numpy as np
import pytest

from jaxpose.calibrate.boards import read_board
from jaxpose.errors import UserError
from tests.calibrate.rendered import markers_of, pixels_of, render, view

SIZE_PX = (400, 320)


@pytest.mark.parametrize("square_px", [24, 40])
@pytest.mark.parametrize(
    "text", ["charuco:6x5:20:15", "charuco:8x11:24:18.75", "charuco:6x6:20:12", "chessboard:10x7:20"]
)
def test_corners_have_no_bias(text: str, square_px: int) -> None:
    """At most 0.02 px in x and y, and no corner is off by much; integers are pixel centres."""
    board = markers_of(read_board(text))
    random = np.random.default_rng(4)
    off = []
    for _ in range(3):
        there = view(board, square_px, SIZE_PX, random)
        off.append(board.find(render(board, there, SIZE_PX)) - pixels_of(board, there))
    off = np.concatenate(off)
    off = off[np.isfinite(off[:, 0])]
    assert len(off) > 30
    assert np.abs(off.mean(axis=0)).max() < 0.02 and np.sqrt(np.mean(off**2)) < 0.06


def test_the_markers_and_the_old_pattern_are_recognised() -> None:
    for family, is_old in (("5x5", True), ("6x6", False), ("apriltag_36h11", False)):
        asked = read_board("charuco:6x6:20:15")
        shown = dataclasses.replace(asked, family=family, is_old=is_old)
        there = view(shown, 36, SIZE_PX, np.random.default_rng(0))
        assert asked.chosen_by(iter([np.full(SIZE_PX[::-1], 90, np.uint8), render(shown, there, SIZE_PX)])) == shown


def test_a_chessboard_that_is_upside_down_has_the_same_first_corner() -> None:
    board = read_board("chessboard:10x7:20")
    there = view(board, 30, SIZE_PX, np.random.default_rng(1))
    image = render(board, there, SIZE_PX)
    turned = board.find(np.ascontiguousarray(image[::-1, ::-1]))
    assert np.abs(np.array(SIZE_PX) - 1 - turned - pixels_of(board, there)).max() < 0.1


def test_other_boards_are_refused() -> None:
    def message(text: str) -> str:
        with pytest.raises(UserError) as raised:
            read_board(text)
        return str(raised.value)

    assert "--board is charuco:8x11:24; it must be charuco:COLUMNSxROWS:SQUARE:MARKER" in message("charuco:8x11:24")
    assert "it must be charuco:" in message("chessboard:8x11:24:18") and "it must be" in message("aruco:3x3:1:1")
    assert "a marker is smaller than a square" in message("charuco:8x11:18.75:24")
    assert "at least 3 x 3 squares" in message("chessboard:2x5:20")
    assert "looks the same upside down" in message("chessboard:9x7:20")
    assert "no known dictionary has 1250 markers" in message("charuco:50x50:2:1")
    wide = read_board("charuco:8x5:20:15")
    there = view(markers_of(wide), 40, SIZE_PX, np.random.default_rng(0))
    image = render(markers_of(wide), there, SIZE_PX)
    with pytest.raises(
        UserError, match="--board is charuco:5x8:20:15, but the videos show the board charuco:8x5:20:15"
    ):
        read_board("charuco:5x8:20:15").chosen_by(iter([image]))
    with pytest.raises(UserError, match="no image shows a third of the board charuco:7x12:20:15"):
        read_board("charuco:7x12:20:15").chosen_by(iter([image]))
