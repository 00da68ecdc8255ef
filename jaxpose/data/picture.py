"""Pictures for people: frames with predicted keypoints as dots and their labels as rings."""

import cv2
import numpy as np

# Small inputs are enlarged, so that the marks do not hide what they mark.
_FEWEST_PX = 256
# OpenCV takes parts of a pixel as whole numbers of 1/16.
_SHIFT = 4


def draw_keypoints(frames: np.ndarray, predicted_px: np.ndarray, labelled_px: np.ndarray) -> np.ndarray:
    """Returns pictures (n, s h, s w, 3) uint8 of frames that are enlarged by a whole number s.

    Every keypoint has a colour of its own: a filled dot where it is predicted, a ring where it is labelled.

    Args:
      frames: (n, h, w, 3) uint8, RGB.
      predicted_px: (n, k, 2) (x, y) in pixels of the frames given; NaN is not drawn.
      labelled_px: (n, k, 2), the same of the labels.
    """
    height, width, keypoints = *frames.shape[1:3], predicted_px.shape[1]
    scale = max(1, -(-_FEWEST_PX // min(height, width)))
    dot_px = max(2, scale * min(height, width) // 80)
    hues = np.arange(keypoints) * 180 // max(keypoints, 1)
    hsv = np.stack([hues, np.full(keypoints, 255), np.full(keypoints, 255)], axis=-1).astype(np.uint8)
    colours = cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0].tolist() if keypoints else []
    pictures = frames.repeat(scale, axis=1).repeat(scale, axis=2)
    for picture, predicted, labelled in zip(pictures, predicted_px, labelled_px, strict=True):
        for colour, dot, ring in zip(colours, predicted, labelled, strict=True):
            _draw_circle(picture, ring, 3 * dot_px, colour, scale, thickness=max(1, dot_px // 2))
            _draw_circle(picture, dot, dot_px, colour, scale, thickness=cv2.FILLED)
    return pictures


def _draw_circle(
    picture: np.ndarray, centre_px: np.ndarray, radius_px: int, colour: list[int], scale: int, thickness: int
) -> None:
    if np.isfinite(centre_px).all():
        x, y = np.rint(((centre_px + 0.5) * scale - 0.5) * 2**_SHIFT).astype(int).tolist()
        cv2.circle(picture, (x, y), radius_px << _SHIFT, colour, thickness, cv2.LINE_AA, _SHIFT)
