"""Affines: known values in the convention of pixel centres, laws, OpenCV's own resize, and jax equal to numpy."""

import cv2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxpose import geometry
from tests.affines import compose

SIZES = st.tuples(st.integers(1, 2000), st.integers(1, 2000))
NUMBERS = st.floats(-1e3, 1e3, width=32)
POINTS = arrays(np.float64, (4, 2), elements=NUMBERS)
# Rotation, unequal scales, shift: always invertible.
AFFINES = st.tuples(st.floats(-3, 3), st.floats(0.1, 10), st.floats(0.1, 10), NUMBERS, NUMBERS).map(
    lambda p: np.array(
        [[p[1] * np.cos(p[0]), -p[2] * np.sin(p[0]), p[3]], [p[1] * np.sin(p[0]), p[2] * np.cos(p[0]), p[4]]]
    )
)


def mapped(affine: np.ndarray, *points: tuple[float, float]) -> list[list[float]]:
    return geometry.apply(affine, np.array(points, float)).tolist()


def test_known_values() -> None:
    # Twice as large: the two pixels of a side become four, whose centres lie at -0.25, 0.25, 0.75, 1.25.
    double = geometry.input_from_frame((2, 2), (4, 4), "pad")
    assert mapped(double, (0, 0), (1, 1), (-0.5, -0.5), (1.5, 1.5)) == [
        [0.5, 0.5],
        [2.5, 2.5],
        [-0.5, -0.5],
        [3.5, 3.5],
    ]
    # Padded: 100 x 50 in 64 x 64 has 16 rows of border above and below.
    pad = geometry.input_from_frame((100, 50), (64, 64), "pad")
    np.testing.assert_allclose(mapped(pad, (-0.5, -0.5), (99.5, 49.5)), [[-0.5, 15.5], [63.5, 47.5]], atol=1e-12)
    stretch = geometry.input_from_frame((100, 50), (64, 64), "stretch")
    np.testing.assert_allclose(mapped(stretch, (-0.5, -0.5), (99.5, 49.5)), [[-0.5, -0.5], [63.5, 63.5]], atol=1e-12)
    crop = geometry.input_from_frame((100, 50), (20, 10), "pad", (30, 20, 20, 10))
    np.testing.assert_allclose(mapped(crop, (30, 20), (49, 29)), [[0, 0], [19, 9]], atol=1e-12)


@given(frame=SIZES, size=SIZES)
def test_the_borders_of_the_frame_lie_on_those_of_the_input(frame: tuple[int, int], size: tuple[int, int]) -> None:
    corners = np.array([[-0.5, -0.5], [frame[0] - 0.5, frame[1] - 0.5]])
    ends = np.array([[-0.5, -0.5], [size[0] - 0.5, size[1] - 0.5]])
    stretched = geometry.apply(geometry.input_from_frame(frame, size, "stretch"), corners)
    np.testing.assert_allclose(stretched, ends, rtol=1e-9, atol=1e-6)
    padded = geometry.apply(geometry.input_from_frame(frame, size, "pad"), corners)
    # Centred, nothing cut off, one side filled, the ratio of the sides kept.
    np.testing.assert_allclose(padded.sum(0), ends.sum(0), rtol=1e-9, atol=1e-6)
    assert (padded[0] >= ends[0] - 1e-6).all() and (padded[1] <= ends[1] + 1e-6).all()
    sides = np.diff(padded, axis=0)[0]
    assert np.isclose(sides, size, rtol=1e-9).any()
    np.testing.assert_allclose(sides[0] * frame[1], sides[1] * frame[0], rtol=1e-9)


def test_opencv_resizes_by_the_same_affine() -> None:
    """A picture of straight slopes says at every pixel from where in the frame it comes (inside: borders repeat)."""
    y, x = np.mgrid[:40, :60].astype(np.float32)
    for size in ((30, 20), (120, 80), (90, 50)):
        frame_from_input = geometry.invert(geometry.input_from_frame((60, 40), size, "stretch"))
        found = cv2.resize(np.dstack([x, y]), size, interpolation=cv2.INTER_LINEAR)
        pixels = np.stack(np.meshgrid(np.arange(size[0]), np.arange(size[1])), -1)
        expected = geometry.apply(frame_from_input, pixels.reshape(-1, 2).astype(float)).reshape(found.shape)
        inside = np.s_[3:-3, 3:-3]
        np.testing.assert_allclose(found[inside], expected[inside], atol=1e-3)


@given(outer=AFFINES, inner=AFFINES, points=POINTS)
def test_compose_and_invert(outer: np.ndarray, inner: np.ndarray, points: np.ndarray) -> None:
    np.testing.assert_allclose(
        geometry.apply(compose(outer, inner), points),
        geometry.apply(outer, geometry.apply(inner, points)),
        rtol=1e-9,
        atol=1e-6,
    )
    back = geometry.invert(inner)
    np.testing.assert_allclose(geometry.apply(back, geometry.apply(inner, points)), points, rtol=1e-7, atol=1e-6)
    full = np.linalg.inv(np.vstack([inner, [0, 0, 1]]))[:2]
    np.testing.assert_allclose(back, full, rtol=1e-7, atol=1e-9)


def test_leading_axes_and_gaps() -> None:
    rng = np.random.default_rng(0)
    affines, points = rng.normal(size=(2, 5, 2, 3)), rng.normal(size=(2, 5, 7, 2))
    points[1, 2, 3] = np.nan
    found = geometry.apply(affines, points)
    for b, s in np.ndindex(2, 5):
        np.testing.assert_allclose(found[b, s], points[b, s] @ affines[b, s, :, :2].T + affines[b, s, :, 2])
    assert np.isnan(found[1, 2, 3]).all() and np.isnan(found).sum() == 2
    inverse, double = geometry.invert(affines), compose(affines, affines[:, ::-1])
    for b, s in np.ndindex(2, 5):
        np.testing.assert_allclose(inverse[b, s], geometry.invert(affines[b, s]))
        np.testing.assert_allclose(double[b, s], compose(affines[b, s], affines[b, 4 - s]))


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_jax_in_and_outside_of_jit_is_numpy(precision: type) -> None:
    rng = np.random.default_rng(0)
    affine, other = rng.normal(size=(2, 3, 2, 3)).astype(precision)
    points = rng.normal(size=(3, 4, 2)).astype(precision)

    def everything(affine: geometry.Array, other: geometry.Array, points: geometry.Array) -> list[geometry.Array]:
        moved = geometry.apply(compose(geometry.invert(affine), other), points)
        return [moved, geometry.cells_from_input(moved, 4), geometry.input_from_cells(moved, 4)]

    expected = everything(affine, other, points)
    tolerance = 200 * float(np.finfo(precision).eps)
    with jax.enable_x64(precision == np.float64), jax.default_matmul_precision("highest"):
        inputs = [jnp.asarray(value) for value in (affine, other, points)]
        for found in (everything(*inputs), jax.jit(everything)(*inputs)):
            for got, wanted in zip(found, expected, strict=True):
                assert isinstance(got, jax.Array) and isinstance(wanted, np.ndarray)
                assert got.dtype == wanted.dtype == precision
                np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max())


def test_no_matrix_product_that_a_gpu_would_round() -> None:
    affines, points = jnp.zeros((3, 2, 3)), jnp.zeros((3, 4, 2))
    program = jax.make_jaxpr(lambda a, p: geometry.apply(compose(geometry.invert(a), a), p))(affines, points)
    assert "dot_general" not in str(program)


@pytest.mark.parametrize("stride", [1, 2, 4, 8])
def test_cells_are_at_their_centres(stride: int) -> None:
    # The cell 0 covers the first `stride` pixels, so its centre is their mean.
    assert geometry.input_from_cells(np.array([0.0]), stride).tolist() == [np.arange(stride).mean()]
    cells = np.random.default_rng(0).normal(size=(5, 2))
    np.testing.assert_allclose(geometry.cells_from_input(geometry.input_from_cells(cells, stride), stride), cells)
    # The borders of the input are those of the map.
    edges = np.array([-0.5, 16 * stride - 0.5])
    np.testing.assert_allclose(geometry.cells_from_input(edges, stride), [-0.5, 15.5])
