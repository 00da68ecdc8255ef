"""What calibrated cameras say about the labels of a moment: epipolar lines, and places of the triangulated points."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose.cameras.cameras import Cameras
from jaxpose.cameras.epipolar import epipolar_lines
from jaxpose.cameras.triangulation import triangulate
from jaxpose.config import DataConfig
from jaxpose.data.label_files import without_view
from jaxpose.data.rigs import read_rigs
from jaxpose.errors import UserError
from jaxpose.label.store import Store
from jaxpose.poses import VISIBLE

# Standard deviation of x and of y of a label; in three or more views, one that is far off has little influence.
_NOISE_PX = 2.0
_DECIMALS = 2


class Geometry:
    """The calibrated cameras of a project, and what they say about its labels."""

    def __init__(self, store: Store, calibration: Path):
        """Reads the cameras of all sessions that have images.

        Args:
          store: the labels.
          calibration: as `data.calibration`.

        Raises:
          UserError: the project has one camera, or the calibration cannot be used or lacks a view.
        """
        self._store, self._calibration, self._lock = store, calibration, threading.Lock()
        project = store.project
        if not project.views:
            raise UserError(
                f"--calibration is {calibration}, but the page would show one camera of {project.path}; it is for "
                "projects of several cameras"
            )
        self._data = DataConfig(
            project=str(project.folder), views=project.views, calibration=str(calibration.resolve())
        )
        self._rigs: dict[str, Cameras] = {}
        for image in store.images:
            self._rig(image)

    def of(self, number: int, keypoint: int, size_px: Callable[[int], tuple[int, int]]) -> dict[str, Any]:
        """Returns as JSON what the labels of a moment show, without hidden points.

        Args:
          number: of an image of the moment.
          keypoint: whose lines are wanted.
          size_px: returns (width, height) of an image; raises UserError if it cannot be read.

        Returns:
          `lines`: for each view, polylines [[x, y], ...], each from a view with a label of the keypoint. `rings`: for
          each view, [x, y] of each keypoint where it sees the point of the world that two or more views show, or null.

        Raises:
          UserError: an image does not have the size of its camera, or its session has no calibration.
        """
        cameras, moment = self._rig(self._store.images[number]), self._store.moment(number)
        sizes_px = self._sizes_px(cameras, moment, size_px)
        points_px = np.stack([self._labels_px(image) for image in moment])
        is_labelled = np.isfinite(points_px[:, keypoint]).all(axis=1)
        lines: list[list[Any]] = [[] for _ in moment]
        for view in np.flatnonzero(is_labelled).tolist():
            of_views = epipolar_lines(cameras, view, points_px[view, keypoint], sizes_px)
            for to, line in zip(lines, of_views, strict=True):
                to += [line.round(_DECIMALS).tolist()] * (len(line) > 1)
        points = triangulate(cameras, points_px, np.ones(points_px.shape[:2]), _NOISE_PX)
        places_px = cameras.project(points.places)
        is_inside = ((places_px >= -0.5) & (places_px <= sizes_px[:, None] - 0.5)).all(axis=-1)
        rings = [
            [place if inside else None for place, inside in zip(of_view.round(_DECIMALS).tolist(), shown, strict=True)]
            for of_view, shown in zip(places_px, is_inside.tolist(), strict=True)
        ]
        return {"lines": lines, "rings": rings}

    def _rig(self, image: str) -> Cameras:
        project = self._store.project
        session = without_view(PurePosixPath(image).parent.name, project.view_of(image))
        with self._lock:
            if session not in self._rigs:
                self._rigs |= read_rigs(self._data, [session])
            return self._rigs[session]

    def _sizes_px(
        self, cameras: Cameras, moment: Sequence[int], size_px: Callable[[int], tuple[int, int]]
    ) -> np.ndarray:
        """Returns (v, 2) width and height of the images of a moment; 0 for those that are absent or unreadable."""
        sizes_px = np.zeros((len(moment), 2))
        for view, number in enumerate(moment):
            try:
                sizes_px[view] = size_px(number) if number >= 0 else (0, 0)
            except UserError:
                continue
            (width, height), (own_width, own_height) = cameras.sizes_px[view].tolist(), sizes_px[view].tolist()
            if width and own_width and (width, height) != (own_width, own_height):
                raise UserError(
                    f"no lines: {self._store.images[number]} has {own_width:.0f} x {own_height:.0f} pixels, but "
                    f"{self._calibration} is of {width} x {height} pixels for the camera {cameras.names[view]}"
                )
        return sizes_px

    def _labels_px(self, number: int) -> np.ndarray:
        """Returns the visible labels (k, 2) of an image, NaN without one."""
        keypoints = len(self._store.project.keypoint_names)
        points = self._store.frame(number)["points"][:keypoints] if number >= 0 else [None] * keypoints
        return np.array([point[:2] if point and point[2] == VISIBLE else (np.nan, np.nan) for point in points])
