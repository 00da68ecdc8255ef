"""Writes frames to label as a SLEAP project (.slp) that SLEAP merges into the labelled one."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jaxpose.formats.sleap import read_videos
from jaxpose.formats.sleap_writer import write_project


@dataclasses.dataclass(frozen=True)
class SuggestedFrame:
    """A frame to label.

    Attributes:
      video: its name, as `jaxpose.formats.sleap.read_labels` gives it.
      path: of the video.
      shape: (frames, height, width) of the video.
      frame: number of the frame, from 0.
      points: (k, 3) x, y and confidence of the predictions, NaN without one, in the order of the project's nodes.
    """

    video: str
    path: Path
    shape: tuple[int, int, int]
    frame: int
    points: np.ndarray


def write_suggestions(file: Path, project: Path, frames: Sequence[SuggestedFrame]) -> None:
    """Writes a suggestion for each frame, and a predicted instance if a point is predicted.

    Skeleton and videos are those of the project, so that SLEAP knows that they are the same.

    Args:
      file: the .slp to write.
      project: the labelled .slp or .pkg.slp.
      frames: what to write.

    Raises:
      UserError: sleap-io is not installed, or the project cannot be read.
    """
    labels, videos = read_videos(project)
    from sleap_io.model.instance import PredictedInstance
    from sleap_io.model.labeled_frame import LabeledFrame
    from sleap_io.model.labels import Labels
    from sleap_io.model.suggestions import SuggestionFrame
    from sleap_io.model.video import Video

    # The images in a .pkg.slp are only the labelled ones.
    videos = {name: video.source_video or video for name, video in videos.items()}
    (skeleton,) = labels.skeletons
    suggested, predicted = [], []
    for frame in frames:
        if frame.video not in videos:
            metadata = {"type": "MediaVideo", "shape": [*frame.shape, 3], "grayscale": False}
            videos[frame.video] = Video(str(frame.path.absolute()), backend_metadata=metadata, open_backend=False)
        video = videos[frame.video]
        suggested.append(SuggestionFrame(video, frame.frame))
        if np.isfinite(frame.points).any():
            scores = np.nan_to_num(frame.points[:, 2])
            known = np.isfinite(frame.points[:, 0])
            instance = PredictedInstance.from_numpy(frame.points[:, :2], skeleton, scores, float(scores[known].mean()))
            predicted.append(LabeledFrame(video=video, frame_idx=frame.frame, instances=[instance]))
    used = list({id(suggestion.video): suggestion.video for suggestion in suggested}.values())
    result = Labels(predicted, videos=used, skeletons=[skeleton], suggestions=suggested)
    result.provenance |= {"made_by": "jaxpose"}
    write_project(file, result)
