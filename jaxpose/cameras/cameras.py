"""Calibrated cameras: from points in the world to pixels and back.

A point X of the world is R X + t in the coordinates of a camera: x to the right, y down, z forward. The lens moves its
normalised place (x / z, y / z), and the camera matrix maps the result to pixels, as in OpenCV. Integer pixels are
pixel centres.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jaxpose.errors import UserError

# numpy and jax arrays share the functions used here, so this file does not import jax.
Array = Any

# Radial k1, k2, tangential p1, p2, radial k3; a fisheye lens has k1 to k4 and one unused place.
DISTORTIONS = 5
# The numbers of a camera in a `Rig`.
NUMBERS = 23
_NEWTON_STEPS = 8
# An inverse that is off by more, in normalised coordinates, was not found.
_NOT_INVERTED = 1e-8
_ROTATION_TOLERANCE = 1e-3
# Two cameras whose centres and rotations differ by less, relative to the size of the rig, are one camera.
_SAME = 1e-6


@dataclasses.dataclass(frozen=True)
class Camera:
    """One calibrated camera.

    Attributes:
      name: the view.
      matrix: (3, 3) camera matrix, in pixels.
      rotation: (3, 3), and translation: (3,), from the world to the camera.
      distortion: k1, k2, p1, p2, k3, or k1 to k4 of a fisheye lens; missing ones at the end are 0.
      size_px: (width, height) of the images; (0, 0) if unknown.
      is_fisheye: the lens has OpenCV's fisheye model.
    """

    name: str
    matrix: np.ndarray
    rotation: np.ndarray
    translation: np.ndarray
    distortion: np.ndarray
    size_px: tuple[int, int] = (0, 0)
    is_fisheye: bool = False

    def refuse_wrong_numbers(self, source: object) -> None:
        """Raises UserError, which names the source, the camera and the rule, if this is not a camera."""
        for kind, shape in (("matrix", (3, 3)), ("rotation", (3, 3)), ("translation", (3,))):
            values = getattr(self, kind)
            if values.shape != shape or not np.isfinite(values).all():
                raise UserError(
                    f"{source}: the {kind} of camera {self.name} must have {' x '.join(map(str, shape))} finite numbers"
                )
        most = 4 if self.is_fisheye else DISTORTIONS
        lens = np.trim_zeros(self.distortion, "b")
        if lens.ndim != 1 or len(lens) > most or not np.isfinite(lens).all():
            what = "k1 to k4 of a fisheye lens" if self.is_fisheye else "k1, k2, p1, p2, k3"
            raise UserError(
                f"{source}: camera {self.name} has {len(lens)} numbers of distortion; jaxpose knows {what}: calibrate "
                "with this model"
            )
        (fx, _, x), (_, fy, y) = self.matrix[:2].tolist()
        if not np.allclose(self.matrix[[1, 2, 2, 2], [0, 0, 1, 2]], [0, 0, 0, 1], atol=1e-9) or min(fx, fy) <= 0:
            rows = np.array2string(self.matrix, precision=6, separator=", ").replace("\n", "")
            raise UserError(
                f"{source}: the matrix of camera {self.name} is {rows}; its rows must be (fx, s, cx), (0, fy, cy) and "
                "(0, 0, 1) with positive fx and fy"
            )
        far = np.abs(self.rotation @ self.rotation.T - np.eye(3)).max()
        if far > _ROTATION_TOLERANCE or np.linalg.det(self.rotation) < 0:
            is_mirror = far <= _ROTATION_TOLERANCE
            why = "it is a mirror image" if is_mirror else f"its rows are off by {far:.2g} from orthonormal ones"
            raise UserError(f"{source}: the rotation of camera {self.name} is not a rotation: {why}")
        width, height = self.size_px
        if min(width, height) < 0 or (width and not (-0.5 < x < width and -0.5 < y < height)):
            raise UserError(
                f"{source}: camera {self.name} has images of {width} x {height} px, but the centre of its matrix is "
                f"({x:.1f}, {y:.1f}): the size must be that of the calibration's images"
            )


def _repeated(first: int, end: int, step: Callable, state: Any) -> Any:
    for number in range(first, end):
        state = step(number, state)
    return state


class Rig:
    """The projection of v cameras as functions of arrays, of numpy or of jax; a result is of the same kind.

    Args:
      numbers: (v, NUMBERS), those of each camera: fx, skew, cx, fy, cy; its lens, 5; whether that is fisheye; its
        rotation, 9; its translation, 3.
      has_fisheye: whether a camera may have a fisheye lens; without one, the work is less.
      repeat: repeats a step; for jax, `jax.lax.fori_loop` makes a smaller program.

    Attributes:
      numbers: as given.
      rotations: (v, 3, 3), and translations: (v, 3), from the world to the cameras.
      centres: (v, 3) of the cameras in the world.
      fx, skew, cx, fy, cy: (v, 1) each, for arrays (v, n).
    """

    def __init__(self, numbers: Array, has_fisheye: bool = True, repeat: Callable = _repeated) -> None:
        xp = numbers.__array_namespace__()
        self.numbers, self._has_fisheye, self._repeat = numbers, has_fisheye, repeat
        self.fx, self.skew, self.cx, self.fy, self.cy = (numbers[:, place, None] for place in range(5))
        self._lens = numbers[:, 5:10].T[..., None]
        self._is_fisheye = numbers[:, 10, None] > 0
        self.rotations, self.translations = numbers[:, 11:20].reshape(-1, 3, 3), numbers[:, 20:]
        self.centres = -xp.einsum("vji,vj->vi", self.rotations, self.translations)

    def project(self, points: Array) -> Array:
        """Returns the pixels (v, n, 2) of points (n, 3) of the world; NaN behind a camera."""
        xp = points.__array_namespace__()
        x, y, z = self.camera_places(points)
        with np.errstate(divide="ignore", invalid="ignore"):
            pixels = xp.stack(self._pixels(*self.distorted(x / z, y / z)), axis=-1)
        return xp.where((z > 0)[..., None], pixels, xp.nan)

    def undistort(self, points_px: Array) -> Array:
        """Returns the normalised places (v, n, 2), without distortion, of pixels (v, n, 2).

        NaN where the lens model has no such place: it bends back outside of the images it was made from.
        """
        xp = points_px.__array_namespace__()
        not_inverted = max(_NOT_INVERTED, 16 * float(xp.finfo(points_px.dtype).eps))
        aim_y = (points_px[..., 1] - self.cy) / self.fy
        aim_x = (points_px[..., 0] - self.cx - self.skew * aim_y) / self.fx
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            angle = xp.hypot(aim_x, aim_y)
            stretched = xp.where(angle > 0, xp.tan(xp.minimum(angle, 1.4)) / angle, 1.0)
            start = xp.where(self._is_fisheye, stretched, 1.0)

            def newton(_: Array, at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
                x, y, _ = at
                off_x, off_y = self.distorted(x, y)
                off_x, off_y = off_x - aim_x, off_y - aim_y
                xx, xy, yx, yy = self.distortion_slopes(x, y)
                determinant = xx * yy - xy * yx
                x = x - (yy * off_x - xy * off_y) / determinant
                return x, y - (xx * off_y - yx * off_x) / determinant, determinant

            first = aim_x * start, aim_y * start, xp.ones_like(aim_x)
            x, y, determinant = self._repeat(0, _NEWTON_STEPS, newton, first)
            off_x, off_y = self.distorted(x, y)
            is_found = (xp.abs(off_x - aim_x) + xp.abs(off_y - aim_y) < not_inverted) & (determinant > 0)
        return xp.where(is_found[..., None], xp.stack([x, y], axis=-1), xp.nan)

    def camera_places(self, points: Array) -> Array:
        """Returns x, y and depth, (3, v, n), of points (n, 3) in the coordinates of each camera."""
        return (self.rotations @ points.T + self.translations[..., None]).transpose(1, 0, 2)

    def pixels_and_slopes(self, x: Array, y: Array) -> tuple[Array, ...]:
        """Returns the pixels u, v of normalised places (v, n), and their derivatives du/dx, du/dy, dv/dx, dv/dy."""
        xx, xy, yx, yy = self.distortion_slopes(x, y)
        u, v = self._pixels(*self.distorted(x, y))
        return u, v, self.fx * xx + self.skew * yx, self.fx * xy + self.skew * yy, self.fy * yx, self.fy * yy

    def distorted(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Returns where the lens moves normalised places (v, n)."""
        _, _, p1, p2, _ = self._tangential()
        r2 = x * x + y * y
        factor, _ = self._radial(r2)
        return (
            x * factor + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
            y * factor + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
        )

    def distortion_slopes(self, x: Array, y: Array) -> tuple[Array, ...]:
        """Returns the derivatives of distorted places: of x by x and by y, of y by x and by y."""
        _, _, p1, p2, _ = self._tangential()
        factor, slope = self._radial(x * x + y * y)
        mixed = 2 * x * y * slope + 2 * p1 * x + 2 * p2 * y
        xx = factor + 2 * x * x * slope + 2 * p1 * y + 6 * p2 * x
        yy = factor + 2 * y * y * slope + 6 * p1 * y + 2 * p2 * x
        return xx, mixed, mixed, yy

    def _tangential(self) -> Array:
        xp = self._lens.__array_namespace__()
        return xp.where(self._is_fisheye, 0.0, self._lens)

    def _radial(self, r2: Array) -> tuple[Array, Array]:
        """Returns the radial factor at a squared radius, and its derivative by that."""
        k1, k2, _, _, k3 = self._lens
        factor, slope = 1 + r2 * (k1 + r2 * (k2 + r2 * k3)), k1 + r2 * (2 * k2 + 3 * k3 * r2)
        if not self._has_fisheye:
            return factor, slope
        xp = r2.__array_namespace__()
        k1, k2, k3, k4, _ = self._lens
        r = xp.sqrt(xp.maximum(r2, 1e-8))
        t = xp.arctan(r)
        t2 = t * t
        bent = t * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4))))
        by_t = 1 + t2 * (3 * k1 + t2 * (5 * k2 + t2 * (7 * k3 + 9 * k4 * t2)))
        fish_slope = (by_t / (1 + r * r) * r - bent) / (2 * r**3)
        # Below that radius, the factor is its own tangent.
        near = r2 < 1e-8
        fish = xp.where(near, 1 + r2 * (k1 - 1 / 3), bent / r)
        fish_slope = xp.where(near, k1 - 1 / 3, fish_slope)
        return xp.where(self._is_fisheye, fish, factor), xp.where(self._is_fisheye, fish_slope, slope)

    def _pixels(self, x: Array, y: Array) -> tuple[Array, Array]:
        return self.fx * x + self.skew * y + self.cx, self.fy * y + self.cy


class Cameras(Rig):
    """The v cameras of a rig.

    Attributes:
      names: their names.
      sizes_px: (v, 2), widths and heights; 0 if unknown.
    """

    def __init__(self, cameras: Sequence[Camera]) -> None:
        self.each = tuple(cameras)
        self.names = tuple(camera.name for camera in cameras)
        self.sizes_px = np.array([camera.size_px for camera in cameras])
        numbers = np.array([_numbers(camera) for camera in cameras])
        super().__init__(numbers, has_fisheye=any(camera.is_fisheye for camera in cameras))

    def with_size_px(self, size_px: tuple[int, int]) -> "Cameras":
        """Returns the cameras; those of unknown image size have the given one."""
        return Cameras(
            [camera if all(camera.size_px) else dataclasses.replace(camera, size_px=size_px) for camera in self.each]
        )

    def refuse_same(self, source: object) -> None:
        """Raises UserError, which names the source, if there are fewer than two cameras, or two are the same."""
        for name in self.names:
            if self.names.count(name) > 1:
                raise UserError(f"{source} has two cameras {name}; rename one")
        if len(self.names) < 2:
            raise UserError(f"{source} has one camera, {', '.join(self.names)}; 3D needs at least two")
        size = np.abs(self.centres - self.centres.mean(axis=0)).max()
        for first in range(len(self.names)):
            for second in range(first + 1, len(self.names)):
                apart = np.abs(self.centres[first] - self.centres[second]).max()
                turned = np.abs(self.rotations[first] - self.rotations[second]).max()
                if apart <= _SAME * size and turned <= _SAME:
                    raise UserError(
                        f"{source}: the cameras {self.names[first]} and {self.names[second]} have the same position "
                        "and direction: one is a copy of the other; calibrate again"
                    )

    def numbers_near_0(self) -> np.ndarray:
        """Returns the numbers of the same rig in another world, so that float32 projects to the pixels of float64.

        The world's origin is the point nearest to the axes of all cameras, and its unit their mean distance from there.
        """
        axes, middle = self.rotations[:, 2], self.centres.mean(axis=0)
        across = np.eye(3) - axes[:, :, None] * axes[:, None, :]
        aim = np.einsum("vij,vj->i", across, self.centres - middle)
        origin = middle + np.linalg.lstsq(across.sum(axis=0), aim, rcond=1e-6)[0]
        unit = np.linalg.norm(self.centres - origin, axis=1).mean() or 1.0
        moved = self.numbers.copy()
        moved[:, 20:] = (self.translations + self.rotations @ origin) / unit
        return moved

    def linearised(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the pixels (v, n, 2) of points (n, 3), their slopes (v, n, 2, 3) by the points, and the depth."""
        x, y, depth = self.camera_places(points)
        x, y = x / depth, y / depth
        u, v, ux, uy, vx, vy = self.pixels_and_slopes(x, y)
        by_camera = [[ux, uy, -(ux * x + uy * y)], [vx, vy, -(vx * x + vy * y)]]
        slopes = np.moveaxis(np.array(by_camera), (0, 1), (2, 3)) / depth[..., None, None]
        return np.stack([u, v], axis=-1), slopes @ self.rotations[:, None], depth


def _numbers(camera: Camera) -> list[float]:
    """Returns the NUMBERS of a camera, as in `Rig`."""
    (fx, skew, cx), (_, fy, cy) = camera.matrix[:2].tolist()
    lens = np.pad(camera.distortion[:DISTORTIONS], (0, DISTORTIONS))[:DISTORTIONS]
    parts = [float(camera.is_fisheye)], camera.rotation.ravel(), camera.translation
    return [fx, skew, cx, fy, cy, *lens.tolist(), *(float(number) for part in parts for number in part)]
