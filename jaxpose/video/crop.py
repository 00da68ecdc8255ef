"""The crop of a video, where the labelled images of a project are crops of their frames."""

from jaxpose.config import DataConfig, crop_of_video
from jaxpose.video.file import Video
from jaxpose.video.rotation import as_labelled, labelled_sizes_px


def describe_crop(name: str, data: DataConfig) -> str:
    """Returns a sentence if the run crops a video of this name (the file without suffix), "" otherwise."""
    if not data.video_crops_px or not (crop_px := crop_of_video(data, name)):
        return ""
    x, y, width, height = crop_px
    return (
        f"{name}: the network sees the crop of {width} x {height} px at ({x}, {y}) of the frames "
        "(data.video_crops_px); results are in pixels of whole frames"
    )


def describe_whole_frames(video: Video, data: DataConfig) -> str:
    """Returns a warning of a video without a crop and of a new size, where labelled images were crops; "" otherwise.

    Args:
      video: as `scan` returned it.
      data: of the run, with the sizes of the labelled images that were whole frames.
    """
    sizes_px = labelled_sizes_px(data)
    shown = as_labelled(video, sizes_px)
    is_known = crop_of_video(data, video.path.stem) or (shown.width_px, shown.height_px) in sizes_px
    if is_known or not data.video_crops_px:
        return ""
    return (
        f"{video.path} is predicted as a whole, but the labelled images were crops of their videos, and "
        "data.video_crops_px has none for it: expect larger errors"
    )
