"""Videos that show the same frames from several cameras."""

import numpy as np

from jaxpose.config import DataConfig, crop_of_video
from jaxpose.errors import UserError
from jaxpose.video.index import VideoIndex


def check_session(session: tuple[VideoIndex, ...], sequence_length: int, data: DataConfig) -> None:
    """Checks that clips can be taken from the videos of a session.

    Raises:
      UserError: the videos are of unequal length or shorter than a clip, or a frame is smaller than data.crop_px.
    """
    first = session[0]
    for index in session:
        if index.frame_count != first.frame_count:
            raise UserError(
                f"{index.path} has {index.frame_count} frames, but {first.path} of the same session has "
                f"{first.frame_count}; the cameras of a session must have the same frames"
            )
        if index.frame_count < sequence_length:
            raise UserError(
                f"{index.path} has {index.frame_count} frames, but a clip holds {sequence_length}; remove the video "
                "or, if a loss on clips is on, lower video.sequence_length (video.context_sequence_length for context "
                "models)"
            )
        size_px = (index.width_px, index.height_px)
        crop_px = crop_of_video(data, index.path.stem)
        if crop_px and np.any(np.add(crop_px[:2], crop_px[2:]) > size_px):
            option = "data.crop_px" if crop_px == data.crop_px else "its crop in data.video_crops_px"
            raise UserError(
                f"{index.path} has frames of {size_px[0]} x {size_px[1]} pixels; {option} = {crop_px} reaches beyond "
                "them"
            )
