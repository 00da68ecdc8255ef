"""The lines that config.yaml of a DeepLabCut project lacks: DeepLabCut reads only labels of videos that it names."""

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from jaxpose.formats.deeplabcut.config import CONFIG_FILE, read_config
from jaxpose.labelling.image_size import read_size_px
from jaxpose.labelling.project_labels import ProjectLabels


def absent_video_sets(project: ProjectLabels, images: Sequence[str]) -> Mapping[str, str]:
    """Returns {folder of images: lines for `video_sets` of config.yaml} of those that the file does not name.

    Args:
      project: a DeepLabCut project; {} without a config.yaml.
      images: names of images in it.

    Raises:
      UserError: config.yaml or an image cannot be read.
    """
    file = project.folder / CONFIG_FILE
    if not file.is_file():
        return {}
    known = read_config(file).videos
    first = {PurePosixPath(image).parent.name: image for image in reversed(images)}
    return {name: _lines(project.folder, name, image) for name, image in first.items() if name not in known}


def _lines(folder: Path, name: str, image: str) -> str:
    width, height = read_size_px(folder / image)
    videos = sorted(file for file in (folder / "videos").glob("*") if file.stem == name)
    path = videos[0].absolute() if videos else f"FOLDER OF THE VIDEO/{name}.mp4"
    return f"  {path}:\n    crop: 0, {width}, 0, {height}"
