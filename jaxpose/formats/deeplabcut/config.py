"""The config.yaml of a DeepLabCut project: who labelled, which keypoints, and the crop of each video."""

import dataclasses
import difflib
from collections.abc import Iterable
from pathlib import Path, PureWindowsPath
from typing import Any

from jaxpose.config.excerpt import excerpt
from jaxpose.data.cells import same_letters
from jaxpose.errors import UserError
from jaxpose.yaml_file import plain_value, read_yaml

CONFIG_FILE = "config.yaml"


@dataclasses.dataclass(frozen=True)
class ProjectConfig:
    """What labels need of the file. Each attribute is empty if the file does not say.

    Attributes:
      scorer: the person whose labels are read.
      bodyparts: names of the keypoints in their order, as the file writes them; see `spelled_as`.
      crops_px: {video: (x, y, width, height)}; a video is named by its file without suffix.
      videos: {video: path}, as the file has it: a path of the machine where the project was made.
      analysis_crop_px: the crop of all analysed videos, () without.
      skeleton: pairs of bodyparts that videos show with a line between them.
    """

    scorer: str = ""
    bodyparts: tuple[str, ...] = ()
    crops_px: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    videos: dict[str, str] = dataclasses.field(default_factory=dict)
    analysis_crop_px: tuple[int, ...] = ()
    skeleton: tuple[tuple[str, ...], ...] = ()


def is_config(file: Path) -> bool:
    """Returns whether a file is the config.yaml of a DeepLabCut project: a table with bodyparts and video_sets."""
    try:
        return file.is_file() and {"bodyparts", "video_sets"} <= _read_yaml(file)[0].keys()
    except (UserError, OSError):
        return False


def read_config(file: Path) -> ProjectConfig:
    """Reads the file.

    Raises:
      UserError: it is not YAML, is of a project with several animals, or a value cannot be used.
    """
    tree, words = _read_yaml(file)
    scorer, bodyparts = _names(file, tree, words)
    crops_px: dict[str, tuple[int, ...]] = {}
    videos: dict[str, str] = {}
    for path, options in (tree.get("video_sets") or {}).items():
        # The paths may be those of Windows, where / also separates.
        name = PureWindowsPath(str(path)).stem
        crop = options.get("crop") if isinstance(options, dict) else None
        crop_px = _crop(file, f"crop of {path}", str(crop).split(",")) if crop is not None else ()
        if name in videos and crops_px.get(name, ()) != crop_px:
            raise UserError(f"{file}: {videos[name]} and {path} have one name, but different crops; rename one of them")
        if name in videos and _ending(videos[name]) != _ending(path):
            raise UserError(
                f"{file}: {videos[name]} and {path} have one name, so either could show the images in "
                f"labeled-data/{name}; remove the other one from video_sets"
            )
        videos[name] = str(path)
        if crop_px:
            crops_px[name] = crop_px
    analysis_crop_px: tuple[int, ...] = ()
    if tree.get("cropping"):
        analysis_crop_px = _crop(file, "x1, x2, y1, y2", [tree.get(key) for key in ("x1", "x2", "y1", "y2")])
    edges = words.get("skeleton")
    skeleton = [tuple(map(str, edge)) for edge in edges if isinstance(edge, list)] if isinstance(edges, list) else []
    return ProjectConfig(scorer, bodyparts, crops_px, videos, analysis_crop_px, tuple(skeleton))


def spelled_as(name: str, labelled: Iterable[str]) -> str:
    """Returns how label files spell a name of the config, "" if they have none such.

    The same text comes first, also in another Unicode form; then a number or word with the same value: DeepLabCut
    writes the bodypart 08 as 8, and true as True.

    Args:
      name: the text in the config.
      labelled: names in the label files.
    """
    labelled, value = list(labelled), plain_value(name)
    same_text = [other for other in labelled if same_letters(other) == same_letters(name)]
    same_value = [] if isinstance(value, str) else [other for other in labelled if plain_value(other) == value]
    return next(iter([*same_text, *same_value]), "")


def _names(file: Path, tree: dict[str, Any], words: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Returns the scorer and the bodyparts; a project of several animals may have one."""
    animals, key = tree.get("individuals"), "bodyparts"
    if tree.get("multianimalproject"):
        key = "multianimalbodyparts"
        if not isinstance(animals, list) or len(animals) != 1 or tree.get("uniquebodyparts"):
            raise UserError(
                f"{file} is of a project with several animals (multianimalproject: true), which jaxpose does not train "
                "on; use a project with one animal per frame"
            )
    scorer, parts = words.get("scorer"), words.get(key)
    if tree.get("scorer") in (None, "") or not isinstance(scorer, str):
        shown = excerpt(tree.get("scorer"))
        raise UserError(f"{file}: scorer is {shown}; it must be the name in CollectedData_<scorer>.csv")
    if tree.get(key) is None:
        near = difflib.get_close_matches(key, [str(name) for name in tree if name != key], 1)
        raise UserError(f"{file} has no {key}" + (f"; it has {near[0]}: correct the name" if near else ""))
    if not isinstance(parts, list) or not parts or not all(isinstance(part, str) and part for part in parts):
        raise UserError(f"{file}: {key} is {excerpt(parts)}; it must be a list of names")
    return scorer, tuple(parts)


def _ending(path: Any) -> tuple[str, ...]:
    """Returns the folder and the file of a path: a project that was moved has its videos/ at several places."""
    return PureWindowsPath(str(path)).parts[-2:]


def _crop(file: Path, name: str, edges: list[Any]) -> tuple[int, ...]:
    """Returns (x, y, width, height) of the edges x1, x2, y1, y2, of which x2 and y2 lie outside."""
    try:
        x1, x2, y1, y2 = (int(edge) for edge in edges)
    except (TypeError, ValueError):
        x1 = x2 = y1 = y2 = 0
    if min(x1, y1) < 0 or x2 <= x1 or y2 <= y1:
        shown = excerpt(", ".join(str(edge).strip() for edge in edges), quoted=False)
        raise UserError(f"{file}: {name} is {shown}; it must be x1, x2, y1, y2 in pixels, x1 < x2 and y1 < y2")
    return x1, y1, x2 - x1, y2 - y1


def _read_yaml(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options, and the same as the file writes them."""
    tree, words = read_yaml(file)
    if not isinstance(tree, dict):
        raise UserError(f"{file} is not the config of a DeepLabCut project: it must be a table of options")
    return tree, words
