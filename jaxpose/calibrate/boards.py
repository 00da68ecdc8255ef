"""Calibration boards: what `--board` names, and the corners of a board in an image, by OpenCV."""

import dataclasses
import functools
import re
from collections.abc import Iterator

import cv2
import numpy as np

from jaxpose.errors import UserError

CHARUCO, CHESSBOARD = "charuco", "chessboard"
_FORM = (
    "charuco:COLUMNSxROWS:SQUARE:MARKER, such as charuco:8x11:24:18.75, or chessboard:COLUMNSxROWS:SQUARE, such as "
    "chessboard:10x7:20: numbers of squares, and lengths in the unit that the calibration will have"
)
# Markers of 4x4 to 7x7 cells begin with the same ones in the dictionaries of each size.
_FAMILIES = {
    "4x4": ("DICT_4X4_50", "DICT_4X4_100", "DICT_4X4_250", "DICT_4X4_1000"),
    "5x5": ("DICT_5X5_50", "DICT_5X5_100", "DICT_5X5_250", "DICT_5X5_1000"),
    "6x6": ("DICT_6X6_50", "DICT_6X6_100", "DICT_6X6_250", "DICT_6X6_1000"),
    "7x7": ("DICT_7X7_50", "DICT_7X7_100", "DICT_7X7_250", "DICT_7X7_1000"),
    "original": ("DICT_ARUCO_ORIGINAL",),
    "apriltag_36h11": ("DICT_APRILTAG_36h11",),
    "apriltag_25h9": ("DICT_APRILTAG_25h9",),
    "apriltag_16h5": ("DICT_APRILTAG_16h5",),
}
# A board is found if one image shows this share of its corners.
_FOUND = 0.3
# Half of the window that refines a chessboard's corner, in squares, and its limits.
_WINDOW, _WINDOWS_PX = 0.35, (2, 7)
_EXACT = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 50, 1e-4)


@dataclasses.dataclass(frozen=True)
class Board:
    """A flat board of squares.

    Attributes:
      kind: `CHARUCO` or `CHESSBOARD`.
      columns, rows: numbers of squares.
      square: length of a square, and marker: of a marker, 0 on a chessboard.
      family: the markers, a key of `_FAMILIES`; "" on a chessboard, and until `chosen_by` finds it.
      is_old: OpenCV printed it before version 4.6, with a marker in the first square also if it has even rows.
    """

    kind: str
    columns: int
    rows: int
    square: float
    marker: float = 0.0
    family: str = ""
    is_old: bool = False

    def __str__(self) -> str:
        lengths = [self.square, self.marker] if self.kind == CHARUCO else [self.square]
        return f"{self.kind}:{self.columns}x{self.rows}:{':'.join(f'{length:g}' for length in lengths)}"

    @property
    def corners(self) -> np.ndarray:
        """The places (n, 3) of the inner corners, row by row, x to the right, y down and z away from the viewer."""
        x, y = np.meshgrid(range(1, self.columns), range(1, self.rows))
        return self.square * np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=-1).astype(np.float64)

    def find(self, image: np.ndarray) -> np.ndarray:
        """Returns the pixels (n, 2) of the corners in a grey image, NaN where one is not seen."""
        return self._find_charuco(image) if self.kind == CHARUCO else self._find_chessboard(image)

    def chosen_by(self, images: Iterator[np.ndarray]) -> "Board":
        """Returns the board with the family of markers that the first image with the board shows.

        Raises:
          UserError: no image shows it.
        """
        if self.kind == CHESSBOARD:
            return self
        kinds = [
            dataclasses.replace(self, family=family, is_old=is_old)
            for family in _FAMILIES
            if self.columns * self.rows // 2 <= _size_of(family)
            for is_old in ([False, True] if self.rows % 2 == 0 else [False])
        ]
        least = _FOUND * len(self.corners)
        for image in images:
            found = [np.isfinite(board.find(image)[:, 0]).sum() for board in kinds]
            if max(found) >= least:
                return kinds[int(np.argmax(found))]
            turned = dataclasses.replace(kinds[0], columns=self.rows, rows=self.columns)
            kinds_turned = [dataclasses.replace(turned, family=board.family) for board in kinds]
            if max(np.isfinite(board.find(image)[:, 0]).sum() for board in kinds_turned) >= least:
                raise UserError(f"--board is {self}, but the videos show the board {turned}")
        raise UserError(
            f"no image shows a third of the board {self}: check the numbers of squares and both lengths; known markers "
            f"are {', '.join(_FAMILIES)}"
        )

    def _find_charuco(self, image: np.ndarray) -> np.ndarray:
        detector = charuco_detector(self)
        pixels, numbers, _, _ = detector.detectBoard(image)
        found = np.full((len(self.corners), 2), np.nan)
        if numbers is not None and len(numbers):
            found[np.asarray(numbers, int).ravel()] = pixels.reshape(-1, 2)
        return self._refined(image, found, (self.square - self.marker) / (2 * self.square))

    def _find_chessboard(self, image: np.ndarray) -> np.ndarray:
        size = (self.columns - 1, self.rows - 1)
        is_found, pixels = cv2.findChessboardCornersSB(image, size, flags=cv2.CALIB_CB_NORMALIZE_IMAGE)
        if not is_found:
            return np.full((len(self.corners), 2), np.nan)
        grid = pixels.reshape(size[1], size[0], 2).astype(np.float64)
        across, down = grid[0, -1] - grid[0, 0], grid[-1, 0] - grid[0, 0]
        if across[0] * down[1] - across[1] * down[0] < 0:
            grid = grid[:, ::-1]
        # The board looks the same after half a turn, but for the colours: the square behind the first corner is black.
        if _brightness(image, grid[:2, :2]) > _brightness(image, grid[-2:, -2:]):
            grid = grid[::-1, ::-1]
        return self._refined(image, grid.reshape(-1, 2), _WINDOW)

    def _refined(self, image: np.ndarray, found: np.ndarray, window: float) -> np.ndarray:
        """Returns corners (n, 2) with a smaller error: OpenCV's windows may reach a marker or the next corner.

        Args:
          image: grey.
          found: the corners, NaN where one is not seen.
          window: the free space around a corner, in squares.
        """
        grid = found.reshape(self.rows - 1, self.columns - 1, 2)
        nearest = np.full(grid.shape[:2], np.inf)
        for axis in (0, 1):
            apart = np.linalg.norm(np.diff(grid, axis=axis), axis=-1)
            for ends in ((1, 0), (0, 1)):
                padding = [ends if one == axis else (0, 0) for one in (0, 1)]
                nearest = np.fmin(nearest, np.pad(apart, padding, constant_values=np.inf))
        halves = np.clip(np.where(np.isfinite(nearest), window * nearest, 0), *_WINDOWS_PX).astype(int).ravel()
        refined = found.copy()
        for half in np.unique(halves):
            chosen = (halves == half) & np.isfinite(found[:, 0])
            if chosen.any():
                pixels = np.ascontiguousarray(found[chosen, None], np.float32)
                refined[chosen] = cv2.cornerSubPix(image, pixels, (half, half), (-1, -1), _EXACT)[:, 0]
        return refined


def read_board(text: str) -> Board:
    """Returns the board that `--board` names.

    Raises:
      UserError: the text has another form, or a number is out of range.
    """
    number = r"(\d+(?:\.\d*)?)"
    match = re.fullmatch(rf"(charuco|chessboard):(\d+)x(\d+):{number}(?::{number})?", text)
    if not match or (match[1] == CHARUCO) != bool(match[5]):
        raise UserError(f"--board is {text}; it must be {_FORM}")
    kind, columns, rows, square = match[1], int(match[2]), int(match[3]), float(match[4])
    board = Board(kind, columns, rows, square, float(match[5] or 0))
    if min(columns, rows) < 3 or square <= 0:
        raise UserError(f"--board is {text}; a board has at least 3 x 3 squares with a length above 0")
    if kind == CHARUCO and not 0 < board.marker < square:
        raise UserError(f"--board is {text}; a marker is smaller than a square")
    if kind == CHESSBOARD and (columns + rows) % 2 == 0:
        raise UserError(
            f"--board is {text}; a chessboard of {columns} x {rows} squares looks the same upside down, so its corners "
            "are ambiguous: use one with an even and an odd number of squares (count the outer ones), or a ChArUco "
            "board"
        )
    if kind == CHARUCO and columns * rows // 2 > max(map(_size_of, _FAMILIES)):
        raise UserError(f"--board is {text}; no known dictionary has {columns * rows // 2} markers")
    return board


@functools.cache
def charuco_detector(board: Board) -> cv2.aruco.CharucoDetector:
    """Returns OpenCV's detector of a ChArUco board whose family of markers is known."""
    count = board.columns * board.rows // 2
    known = [cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, name)) for name in _FAMILIES[board.family]]
    enough = next(one for one in known if len(one.bytesList) >= count)
    # Only the markers of the board: a dictionary of a thousand makes the search nine times as long.
    markers = cv2.aruco.Dictionary(enough.bytesList[:count], enough.markerSize, enough.maxCorrectionBits)
    made = cv2.aruco.CharucoBoard((board.columns, board.rows), board.square, board.marker, markers)
    made.setLegacyPattern(board.is_old)
    return cv2.aruco.CharucoDetector(made)


@functools.cache
def _size_of(family: str) -> int:
    return max(len(cv2.aruco.getPredefinedDictionary(getattr(cv2.aruco, name)).bytesList) for name in _FAMILIES[family])


def _brightness(image: np.ndarray, corners: np.ndarray) -> float:
    """Returns the brightness in the middle of the square with the corners (2, 2, 2)."""
    x, y = np.clip(corners.mean(axis=(0, 1)).round().astype(int), 0, np.array(image.shape[::-1]) - 1)
    return float(image[max(0, y - 1) : y + 2, max(0, x - 1) : x + 2].mean())
