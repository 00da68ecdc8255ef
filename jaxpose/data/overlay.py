"""Draws frames with predicted keypoints as dots and labels as rings."""

import cv2
import numpy as np

# Small frames are enlarged, so that the marks do not cover the keypoints.
_FEWEST_PX = 256
# OpenCV takes subpixel positions in units of 1/16.
_SHIFT = 4


def keypoint_colours(keypoints: int) -> np.ndarray:
    """Returns a colour (k, 3) uint8 RGB for each of k keypoints, the same in every picture of them."""
    hues = np.arange(keypoints) * 180 // max(keypoints, 1)
    hsv = np.stack([hues, np.full(keypoints, 255), np.full(keypoints, 255)], axis=-1).astype(np.uint8)
    return cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0] if keypoints else hsv


def overlay_keypoints(frames: np.ndarray, predicted_px: np.ndarray, labelled_px: np.ndarray) -> np.ndarray:
    """Returns images (n, s h, s w, 3) uint8 of frames, enlarged by a whole number s, with their keypoints.

    Every keypoint has its own colour: a filled dot marks the prediction, a ring marks the label.

    Args:
      frames: (n, h, w, 3) uint8, RGB.
      predicted_px: (n, k, 2) (x, y) in pixels of the given frames; NaN is not drawn.
      labelled_px: (n, k, 2), likewise for the labels.
    """
    height, width, keypoints = *frames.shape[1:3], predicted_px.shape[1]
    scale = max(1, -(-_FEWEST_PX // min(height, width)))
    dot_px = max(2, scale * min(height, width) // 80)
    colours = keypoint_colours(keypoints).tolist()
    images = frames.repeat(scale, axis=1).repeat(scale, axis=2)
    for image, predicted, labelled in zip(images, predicted_px, labelled_px, strict=True):
        for colour, dot, ring in zip(colours, predicted, labelled, strict=True):
            _draw_circle(image, ring, 3 * dot_px, colour, scale, thickness=max(1, dot_px // 2))
            _draw_circle(image, dot, dot_px, colour, scale, thickness=cv2.FILLED)
    return images


def _draw_circle(
    image: np.ndarray, centre_px: np.ndarray, radius_px: int, colour: list[int], scale: int, thickness: int
) -> None:
    if np.isfinite(centre_px).all():
        x, y = np.rint(((centre_px + 0.5) * scale - 0.5) * 2**_SHIFT).astype(int).tolist()
        cv2.circle(image, (x, y), radius_px << _SHIFT, colour, thickness, cv2.LINE_AA, _SHIFT)
