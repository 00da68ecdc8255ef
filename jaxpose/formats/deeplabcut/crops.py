"""The crops of a DeepLabCut project's videos, compared with the frames of the videos."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

from jaxpose.data.inputs import VIDEO_SUFFIXES
from jaxpose.data.named_files import of_name
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.config import ProjectConfig
from jaxpose.video.file import scan


def read_frame_sizes_px(folder: Path, names: Iterable[str], videos: dict[str, Path]) -> dict[str, tuple[int, int]]:
    """Returns {video: (width, height)} of the frames of videos that can be read.

    Args:
      folder: the project.
      names: of the videos.
      videos: {video: file} of those that lie elsewhere than in the project's folder of videos.
    """
    inside = [file for file in sorted((folder / "videos").glob("*")) if file.suffix.lower() in VIDEO_SUFFIXES]
    files = {file.stem: file for file in inside} | videos
    sizes_px = {}
    for name in names:
        if file := of_name(name, files):
            with contextlib.suppress(UserError):
                video = scan(file)
                sizes_px[name] = (video.width_px, video.height_px)
    return sizes_px


def find_crops_px(
    file: Path, config: ProjectConfig, frame_sizes_px: dict[str, tuple[int, int]]
) -> dict[str, tuple[int, ...]]:
    """Returns {video: (x, y, width, height)} of videos whose crop is not the whole frame; "*" stands for any other.

    Args:
      file: the config.yaml, for messages.
      config: its content.
      frame_sizes_px: {video: (width, height)} of the videos that were found.

    Raises:
      UserError: a crop reaches beyond the frames of its video.
    """
    crops_px = dict(config.crops_px)
    for name, crop_px in config.crops_px.items():
        x, y, width, height = crop_px
        frame_px = frame_sizes_px.get(name, (x + width, y + height))
        if x + width > frame_px[0] or y + height > frame_px[1]:
            raise UserError(
                f"{file}: the crop of {name} is {x}, {x + width}, {y}, {y + height} (x1, x2, y1, y2), but the frames "
                f"of its video have {frame_px[0]} x {frame_px[1]} pixels; correct it"
            )
        if crop_px == (0, 0, *frame_px):
            del crops_px[name]
    if config.analysis_crop_px:
        crops_px["*"] = config.analysis_crop_px
    return crops_px
