"""Renders the synthetic animal: its gait, appearance and surroundings.

Lengths are fractions of the frame's side; `walk` and `draw_frame` convert them to pixels. The x axis points right, the
y axis down, so the animal's left is its heading turned by -90 degrees.
"""

import dataclasses
from collections.abc import Sequence

import cv2
import numpy as np

LIMBS = ("left_front", "right_front", "left_hind", "right_hind")
KEYPOINT_NAMES = ("nose", "neck", "tail_base", *(f"{limb}_paw" for limb in LIMBS))

_SPINE = 0.085  # from the middle of the body to the neck, and to the tail base
_HEAD = 0.08
_HIP = 0.032  # from the spine to the start of a limb
_UPPER_LIMB = 0.075
_LOWER_LIMB = 0.075
_TAIL = 0.05  # each of three segments
_MARGIN = 0.02  # between every keypoint and the frame's border
_SPEED = 0.025  # per frame


@dataclasses.dataclass(frozen=True)
class Look:
    """An animal and its light.

    Attributes:
      size: relative to the mean animal.
      fur, head, limbs, nose: colours (3,), RGB, 0 to 255.
      light: (side, side, 1), a factor.
      noise: standard deviation in grey levels.
    """

    size: float
    fur: np.ndarray
    head: np.ndarray
    limbs: np.ndarray
    nose: np.ndarray
    light: np.ndarray
    noise: float


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A leaf in front of the animal in one frame.

    Attributes:
      stem_px, tip_px: (2,) its ends; it tapers from the stem.
      radius_px: half its width at the stem.
      colour: (3,), RGB from 0 to 255.
    """

    stem_px: np.ndarray
    tip_px: np.ndarray
    radius_px: float
    colour: np.ndarray


def draw_look(rng: np.random.Generator, side_px: int) -> Look:
    """Returns a random animal under a random light."""
    fur = rng.uniform([175, 110, 40], [215, 140, 75])
    slope = rng.uniform(-0.25, 0.25, size=2)
    ramp = np.linspace(-0.5, 0.5, side_px)
    light = rng.uniform(0.75, 1.1) + slope[0] * ramp[None, :, None] + slope[1] * ramp[:, None, None]
    return Look(
        size=rng.uniform(0.88, 1.12),
        fur=fur,
        head=fur * 0.6,
        limbs=fur + 35,
        nose=np.array([250.0, 170.0, 170.0]),
        light=light,
        noise=3.0,
    )


def draw_background(rng: np.random.Generator, side_px: int) -> np.ndarray:
    """Returns random clutter (side_px, side_px, 3), float64 from 0 to 255: noise at many scales, sticks and stones."""
    base = rng.uniform([70, 85, 80], [130, 150, 150])
    canvas = np.tile(base, (side_px, side_px, 1))
    for cells in (4, 8, 16, 32, 64):
        texture = rng.normal(size=(cells, cells, 1)) + 0.3 * rng.normal(size=(cells, cells, 3))
        canvas += 14 * cv2.resize(texture, (side_px, side_px), interpolation=cv2.INTER_CUBIC)
    for _ in range(40):
        start = rng.uniform(0, side_px, size=2)
        end = start + rng.normal(size=2) * 0.12 * side_px
        radius = rng.uniform(0.006, 0.05) * side_px
        colour = base * rng.uniform(0.4, 1.6) + rng.normal(size=3) * 12
        paint_limb(canvas, start, end, radius, radius * rng.uniform(0.3, 1), colour)
    return canvas.clip(0, 255)


def paint_limb(
    canvas: np.ndarray,
    start_px: np.ndarray,
    end_px: np.ndarray,
    start_radius_px: float,
    end_radius_px: float,
    colour: np.ndarray,
) -> None:
    """Paints a rounded, tapering segment, or a dot if start = end, onto the canvas (h, w, 3) in place."""
    reach = max(start_radius_px, end_radius_px) + 1
    size = np.array(canvas.shape[1::-1])
    low = np.floor(np.minimum(start_px, end_px) - reach).astype(int).clip(0, size)
    high = np.ceil(np.maximum(start_px, end_px) + reach + 1).astype(int).clip(0, size)
    x, y = np.arange(low[0], high[0])[None, :] - start_px[0], np.arange(low[1], high[1])[:, None] - start_px[1]
    along = end_px - start_px
    share = ((x * along[0] + y * along[1]) / max(along @ along, 1e-9)).clip(0, 1)
    distance = np.hypot(x - share * along[0], y - share * along[1])
    # Coverage falls off over two pixels around the edge. At this softness, the centre of a dot is accurate to 0.03 px.
    radius = start_radius_px + share * (end_radius_px - start_radius_px)
    cover = ((radius - distance) / 2 + 0.5).clip(0, 1)[..., None]
    part = canvas[low[1] : high[1], low[0] : high[0]]
    part += cover * (colour - part)


def draw_frame(
    background: np.ndarray,
    animals: Sequence[tuple[dict[str, np.ndarray], Look]],
    rng: np.random.Generator,
    leaves: Sequence[Leaf] = (),
) -> np.ndarray:
    """Returns the frame (side, side, 3), uint8 RGB, of animals, each with its joints from `walk`, (2,) in pixels.

    A later animal is in front of those before it, and leaves are in front of all, in the light of the first one.
    """
    canvas = background.copy()
    for joints_px, look in animals:
        _paint_animal(canvas, joints_px, look)
    for leaf in leaves:
        paint_limb(canvas, leaf.stem_px, leaf.tip_px, leaf.radius_px, 0.4 * leaf.radius_px, leaf.colour)
    _, look = animals[0]
    canvas *= look.light
    canvas += look.noise * rng.standard_normal(canvas.shape, dtype=np.float32)
    return np.rint(canvas).clip(0, 255).astype(np.uint8)


def _paint_animal(canvas: np.ndarray, joints_px: dict[str, np.ndarray], look: Look) -> None:
    unit = look.size * len(canvas)
    at = joints_px

    def paint(start: str, end: str, start_radius: float, end_radius: float, colour: np.ndarray) -> None:
        paint_limb(canvas, at[start], at[end], start_radius * unit, end_radius * unit, colour)

    paint("tail_base", "tail_1", 0.014, 0.011, look.fur)
    paint("tail_1", "tail_2", 0.011, 0.008, look.fur)
    paint("tail_2", "tail_3", 0.008, 0.005, look.fur)
    for limb in LIMBS:
        paint(f"{limb}_hip", f"{limb}_knee", 0.022, 0.017, look.limbs)
        paint(f"{limb}_knee", f"{limb}_paw", 0.016, 0.012, look.limbs)
        paint(f"{limb}_paw", f"{limb}_paw", 0.021, 0.021, look.limbs)
    paint("tail_base", "middle", 0.036, 0.05, look.fur)
    paint("middle", "neck", 0.05, 0.036, look.fur)
    paint("neck", "nose", 0.034, 0.016, look.head)
    paint("nose", "nose", 0.014, 0.014, look.nose)


def walk(rng: np.random.Generator, frames: int, side_px: int, size: float) -> dict[str, np.ndarray]:
    """Returns the path of every joint, each (frames, 2) in pixels, with every keypoint inside the frame."""
    heading, middle = _wander(rng, frames)
    bend, head = 0.3 * _wave(rng, frames, 40), 0.35 * _wave(rng, frames, 30)
    front, rear = _direction(heading + bend), _direction(heading - bend)
    joints = {
        "middle": np.zeros((frames, 2)),
        "neck": _SPINE * front,
        "tail_base": -_SPINE * rear,
        "nose": _SPINE * front + _HEAD * _direction(heading + bend + head),
    }
    tail, tip = heading - bend + np.pi, joints["tail_base"]
    for piece in (1, 2, 3):
        tail = tail + 0.35 * _wave(rng, frames, 35)
        tip = tip + _TAIL * _direction(tail)
        joints[f"tail_{piece}"] = tip
    step = np.cumsum(0.3 + 0.05 * _wave(rng, frames, 50))
    for limb in LIMBS:
        side = -1 if limb.startswith("left") else 1
        # Diagonal limbs swing together, as in a trot.
        swing = np.sin(step + (np.pi if limb in ("left_front", "right_hind") else 0)) + 0.5 * _wave(rng, frames, 25)
        fold = 0.5 + 0.25 * _wave(rng, frames, 25)
        if limb.endswith("front"):
            direction, root, angle = heading + bend, 0.75 * _SPINE * front, 1.05 - 0.45 * swing
            lower = angle - fold
        else:
            direction, root, angle = heading - bend, -0.85 * _SPINE * rear, 1.75 - 0.45 * swing
            lower = angle + fold
        hip = root + _HIP * _direction(direction + side * np.pi / 2)
        knee = hip + _UPPER_LIMB * _direction(direction + side * angle)
        joints[f"{limb}_hip"], joints[f"{limb}_knee"] = hip, knee
        joints[f"{limb}_paw"] = knee + _LOWER_LIMB * _direction(direction + side * lower)
    joints = {name: size * points for name, points in joints.items()}
    # The border pushes the whole animal back so that no keypoint leaves the frame.
    inside = np.stack([joints[name] for name in KEYPOINT_NAMES])
    middle = middle.clip(_MARGIN - inside.min(axis=0), 1 - _MARGIN - inside.max(axis=0))
    return {name: (middle + points) * side_px - 0.5 for name, points in joints.items()}


def drift(rng: np.random.Generator, count: int, middle_px: np.ndarray, side_px: int) -> list[list[Leaf]]:
    """Returns the leaves in each frame: `count` leaves; each crosses the animal once.

    Args:
      rng: determines their paths, sizes and looks.
      count: number of leaves.
      middle_px: the middle of the animal in each frame (frames, 2).
      side_px: width and height of the frames.
    """
    frames: list[list[Leaf]] = [[] for _ in middle_px]
    for _ in range(count):
        meeting = rng.integers(len(middle_px))
        place_px = middle_px[meeting] + 0.06 * side_px * rng.normal(size=2)
        step_px = rng.uniform(0.006, 0.02) * side_px * _direction(rng.uniform(-np.pi, np.pi))
        half_px = rng.uniform(0.05, 0.12) * side_px * _direction(rng.uniform(-np.pi, np.pi))
        radius_px, colour = rng.uniform(0.05, 0.09) * side_px, rng.uniform([60, 90, 40], [140, 170, 110])
        for i in range(len(middle_px)):
            centre_px = place_px + (i - meeting) * step_px
            frames[i].append(Leaf(centre_px - half_px, centre_px + half_px, radius_px, colour))
    return frames


def _wander(rng: np.random.Generator, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns heading (frames,) in radians and position (frames, 2) on a path between random goals, mostly at walls."""
    heading, turn, position, goal = rng.uniform(-np.pi, np.pi), 0.0, _goal(rng), _goal(rng)
    headings, positions = np.empty(frames), np.empty((frames, 2))
    for i in range(frames):
        if np.hypot(*(goal - position)) < 0.15 or rng.random() < 0.01:
            goal = _goal(rng)
        wanted = np.arctan2(*(goal - position)[::-1])
        error = (wanted - heading + np.pi) % (2 * np.pi) - np.pi
        turn = 0.7 * turn + 0.3 * np.clip(0.3 * error, -0.25, 0.25)
        heading += turn
        position = (position + _SPEED * _direction(np.array(heading))).clip(0, 1)
        headings[i], positions[i] = heading, position
    return headings, positions


def _goal(rng: np.random.Generator) -> np.ndarray:
    # The sine of a uniform angle is mostly near its extremes: the animal stays near walls and corners.
    return 0.5 + 0.6 * np.sin(rng.uniform(-np.pi / 2, np.pi / 2, size=2))


def _wave(rng: np.random.Generator, frames: int, period_frames: int) -> np.ndarray:
    """Returns a smooth random signal (frames,) with about unit variance and this period."""
    rates = 2 * np.pi / (period_frames * rng.uniform(0.6, 1.6, size=3))
    phases = rng.uniform(0, 2 * np.pi, size=3)
    return np.sin(np.arange(frames)[:, None] * rates + phases).sum(axis=1) * np.sqrt(2 / 3)


def _direction(angle: np.ndarray | float) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)
