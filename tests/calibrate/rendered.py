"""Images of a board with known corners: printed squares under a perspective, a pixel being the mean over its area."""

import dataclasses

import cv2
import numpy as np

from jaxpose.calibrate.boards import CHARUCO, Board, charuco_detector

_SQUARE_PX, _FINE = 48, 6


def markers_of(board: Board, family: str = "4x4") -> Board:
    return dataclasses.replace(board, family=family) if board.kind == CHARUCO else board


def printed(board: Board) -> np.ndarray:
    """The board with a white margin of one square."""
    size_px = board.columns * _SQUARE_PX, board.rows * _SQUARE_PX
    if board.kind == CHARUCO:
        image = charuco_detector(board).getBoard().generateImage(size_px)
    else:
        y, x = np.mgrid[: size_px[1], : size_px[0]] // _SQUARE_PX
        image = (255 * ((x + y) % 2)).astype(np.uint8)
    return np.pad(image, _SQUARE_PX, constant_values=255)


def render(board: Board, image_from_board: np.ndarray, size_px: tuple[int, int], blur_px: float = 0.7) -> np.ndarray:
    """Returns a grey image; `image_from_board` (3, 3) maps the board's plane to pixels, whose centres are integers."""
    unit = board.square / _SQUARE_PX
    board_from_print = np.array([[unit, 0, unit / 2 - board.square], [0, unit, unit / 2 - board.square], [0, 0, 1]])
    fine_from_image = np.array([[_FINE, 0, _FINE / 2 - 0.5], [0, _FINE, _FINE / 2 - 0.5], [0, 0, 1]])
    whole = fine_from_image @ image_from_board @ board_from_print
    fine = cv2.warpPerspective(printed(board), whole, (size_px[0] * _FINE, size_px[1] * _FINE), borderValue=(128,))
    return cv2.GaussianBlur(cv2.resize(fine, size_px, interpolation=cv2.INTER_AREA), (0, 0), blur_px)


def pixels_of(board: Board, image_from_board: np.ndarray) -> np.ndarray:
    """The true pixels (n, 2) of the corners."""
    pixels = np.pad(board.corners[:, :2], [(0, 0), (0, 1)], constant_values=1) @ image_from_board.T
    return pixels[:, :2] / pixels[:, 2:]


def view(board: Board, square_px: float, size_px: tuple[int, int], random: np.random.Generator) -> np.ndarray:
    """A homography (3, 3) that shows the middle of the board near the middle of the image, tilted at random."""
    focal = 900.0
    matrix = np.array([[focal, 0, (size_px[0] - 1) / 2], [0, focal, (size_px[1] - 1) / 2], [0, 0, 1]])
    turn = cv2.Rodrigues(random.uniform(-0.4, 0.4, 3))[0]
    middle = board.square * np.array([board.columns / 2, board.rows / 2, 0])
    away = np.array([*random.uniform(-0.5, 0.5, 2), focal / square_px]) * board.square
    return matrix @ np.column_stack([turn[:, 0], turn[:, 1], away - turn @ middle])
