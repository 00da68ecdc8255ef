"""Pictures of the worst frames of suspicious stretches, read from the videos."""

import time

import numpy as np

from jaxpose.errors import UserError
from jaxpose.report.facts import RunFacts
from jaxpose.report.pictures import cut_around, draw_picture
from jaxpose.report.recordings import Recording, Stretch
from jaxpose.report.section import escaped, paragraph
from jaxpose.video.index import VideoIndex, read_index
from jaxpose.video.key_frames import Stopped
from jaxpose.video.range import RangeReader
from jaxpose.video.rotation import as_labelled, labelled_sizes_px

_PICTURES, _LONGEST_PX = 9, 400
# A long video whose key frames cannot be trusted is decoded from its start.
_PATIENCE_S = 30.0


def stretch_pictures(facts: RunFacts, stretches: list[tuple[Recording, Stretch]]) -> str:
    """Returns HTML with the worst frames of the first stretches, and why some of them have no picture."""
    begun, parts, problems = time.monotonic(), [], dict[str, None]()
    indexes: dict[str, VideoIndex] = {}
    for recording, stretch in stretches[:_PICTURES]:
        try:
            if recording.name not in indexes:
                indexes[recording.name] = as_labelled(read_index(recording.video), labelled_sizes_px(facts.config.data))
            image = _read_frame(indexes[recording.name], stretch.worst, begun + _PATIENCE_S)
        except Stopped:
            problems[f"Reading more frames of the videos would take longer than {_PATIENCE_S:g} s."] = None
            break
        except (UserError, OSError) as error:
            problems[f"No picture of {recording.name}: {error}"] = None
            continue
        names = recording.poses.keypoint_names
        text = f"{recording.name}, frame {stretch.worst:,}: {stretch.signal}, {names[stretch.keypoint]}"
        keypoints_px = recording.poses.points_px[stretch.worst, 0]
        image, corner_px = cut_around(image, keypoints_px)
        picture = draw_picture(image, names, (), text, _LONGEST_PX, predicted_px=keypoints_px - corner_px)
        parts.append(f"<figure>{picture}<figcaption>{escaped(text)}</figcaption></figure>")
    return f'<div class="frames">{"".join(parts)}</div>' + "".join(paragraph(text) for text in problems)


def _read_frame(index: VideoIndex, number: int, until: float) -> np.ndarray:
    """Returns a frame (h, w, 3) of a video.

    Raises:
      UserError: it does not decode.
      Stopped: the time `until` came first.
    """
    size_px = index.width_px, index.height_px
    reader = RangeReader(index, number, number + 1, np.eye(2, 3), size_px, lambda: time.monotonic() > until)
    images = [image for _, image in reader]
    if not images:
        raise UserError(f"frame {number} of {index.path} does not decode")
    return images[-1]
