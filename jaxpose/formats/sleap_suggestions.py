"""Writes frames to label as a SLEAP project (.slp) that SLEAP merges into the labelled one."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from jaxpose.formats.sleap import read_videos
from jaxpose.formats.sleap_writer import write_project
from jaxpose.poses import Poses
from jaxpose.video.video import Video


def write_suggestions(file: Path, project: Path, poses: Poses, shown: Mapping[str, Video]) -> None:
    """Writes a suggestion for each frame, and a predicted instance if a point is predicted.

    Skeleton and videos are those of the project, so that SLEAP knows that they are the same.

    Args:
      file: the .slp to write.
      project: the labelled .slp or .pkg.slp.
      poses: predictions, NaN without one, in the order of the project's nodes. Frames are the name of a video, as
        `jaxpose.formats.sleap.read_labels` gives it, and the number of the frame, from 0.
      shown: {name: video} of all frames.

    Raises:
      UserError: sleap-io is not installed, or the project cannot be read.
    """
    labels, videos = read_videos(project)
    from sleap_io.model.instance import PredictedInstance
    from sleap_io.model.labeled_frame import LabeledFrame
    from sleap_io.model.labels import Labels
    from sleap_io.model.suggestions import SuggestionFrame
    from sleap_io.model.video import Video as SleapVideo

    # The images in a .pkg.slp are only the labelled ones.
    videos = {name: video.source_video or video for name, video in videos.items()}
    (skeleton,) = labels.skeletons
    suggested, predicted = [], []
    for (name, number), points, confidence in zip(poses.frames, *poses.one_animal(), strict=True):
        if name not in videos:
            of_video = shown[name]
            shape = [of_video.expected_frames, of_video.height_px, of_video.width_px, 3]
            metadata = {"type": "MediaVideo", "shape": shape, "grayscale": False}
            videos[name] = SleapVideo(str(of_video.path.absolute()), backend_metadata=metadata, open_backend=False)
        suggested.append(SuggestionFrame(videos[name], number))
        if (known := np.isfinite(points[:, 0])).any():
            scores = np.nan_to_num(confidence)
            instance = PredictedInstance.from_numpy(points, skeleton, scores, float(scores[known].mean()))
            predicted.append(LabeledFrame(video=videos[name], frame_idx=number, instances=[instance]))
    used = list({id(suggestion.video): suggestion.video for suggestion in suggested}.values())
    result = Labels(predicted, videos=used, skeletons=[skeleton], suggestions=suggested)
    result.provenance |= {"made_by": "jaxpose"}
    write_project(file, result)
