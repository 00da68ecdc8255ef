"""Merges labels into a COCO file: finds which image of it each new one is, and adds entries of new images."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from jaxpose.data.checked_table import refuse_link_out_of_project
from jaxpose.data.named_files import is_absolute
from jaxpose.errors import UserError
from jaxpose.formats import coco
from jaxpose.labelling.coco_file import CocoFile
from jaxpose.labelling.merging import is_taken, read_size_px, with_neighbours
from jaxpose.labelling.merging_whole_files import Matched, image_key, labelled_images
from jaxpose.terminal import tally


def match_images(new: CocoFile, project: CocoFile) -> Matched:
    """Returns the images of new labels and those of a project that they are; the others become new entries.

    Two images are the same if their `file_name` is the same, and so are the bytes of their files, if both exist. A new
    image goes to the folder in which the paths of the project's images begin.
    """
    matched, folder, base = Matched(project), project.file.parent, _base_folder(project)
    by_name = {_path_text(entry): image for image, entry in project.entries.items()}
    by_key = {image_key(_of_file(project, image)): image for image in project.entries}
    by_key |= {image_key(name): image for name, image in by_name.items()}
    entries = list[dict[str, Any]]()
    for image in labelled_images(new):
        name = _path_text(new.entries[image])
        try:
            _refuse_other_category(new, image, project)
            known = by_name.get(name) or by_key.get(image_key(name)) or by_key.get(image_key(_of_file(new, image)))
            if known:
                file = _file_of_known(new, project, image, known, is_alike=known == by_name.get(name))
            else:
                file, copies = _file_of_new(new, image, base / name, folder)
                known, width_px, height_px = name, *read_size_px(copies.get(file, file))
                entries.append({"file_name": name, "width": width_px, "height": height_px})
                by_name[name] = by_key[image_key(name)] = name
                matched.copies |= copies
            matched.names[image], matched.files[known] = known, matched.copies.get(file, file)
        except UserError as error:
            matched.problems.append(f"{image}: {error}")
    matched.project = _with_images(project, entries, base)
    return matched


def unmerged(new: CocoFile) -> list[str]:
    """Returns what the labelled annotations of a file have besides keypoints: numbers with nouns."""
    found: Counter[str] = Counter()
    for image in labelled_images(new):
        for place in new.annotations[image].values():
            annotation = new.tree["annotations"][place]
            found["annotation* with a drawn box or area"] += coco.is_labelled(annotation) and coco.has_own_box(
                annotation
            )
            found["annotation* with a segmentation"] += bool(annotation.get("segmentation"))
    return tally(found)


def _refuse_other_category(new: CocoFile, image: str, project: CocoFile) -> None:
    """Refuses an animal of another category than the labelled ones of the project, if a file has several kinds."""
    kinds = [
        {str(one["id"]): str(one.get("name")) for one in file.tree["categories"] if one.get("keypoints")}
        for file in (new, project)
    ]
    if max(map(len, kinds)) == 1:
        return
    known = [kinds[1][str(key)] for key in project.category_ids]
    for place in new.annotations[image].values():
        name = kinds[0][str(new.tree["annotations"][place]["category_id"])]
        if name not in known:
            raise UserError(f"an animal has the category {name}, and the labelled ones of the project are "
                            f"{' and '.join(known)}: add an annotation of this category first")  # fmt: skip


def _path_text(entry: Mapping[str, Any]) -> str:
    """Returns the `file_name` of an image's entry with forward slashes."""
    return str(entry["file_name"]).replace("\\", "/")


def _of_file(labels: CocoFile, image: str) -> str:
    """Returns the end of the path of an image's file: its folder and its name."""
    path = labels.paths[image]
    return "/".join(path.parts[-2:]) if isinstance(path, Path) else image


def _base_folder(project: CocoFile) -> Path:
    """Returns the folder in which the paths of the project's images begin, that of the file without any."""
    for image, entry in project.entries.items():
        path, name = project.paths[image], PurePosixPath(_path_text(entry))
        if isinstance(path, Path) and path.is_file() and path.as_posix().endswith(f"/{name}"):
            return path.parents[len(name.parts) - 1]
    return project.file.parent


def _existing(labels: CocoFile, image: str) -> Path | None:
    path = labels.paths[image]
    return path if isinstance(path, Path) and path.is_file() else None


def _file_of_known(new: CocoFile, project: CocoFile, image: str, known: str, is_alike: bool) -> Path:
    """Returns the file of an image that both list; raises UserError without one, or if it is another image.

    Args:
      new, image: the new labels and their image.
      project, known: the file of the project and its image.
      is_alike: whether both give it the same `file_name`.
    """
    beside, inside = _existing(new, image), _existing(project, known)
    is_equal = beside and inside and (beside.samefile(inside) or beside.read_bytes() == inside.read_bytes())
    if not is_alike and not is_equal:
        raise UserError(f"the project has an image {known}, which may be the same: give both one name, or another")
    if not inside:
        raise UserError(project.paths[known] if isinstance(project.paths[known], str) else f"{project.paths[known]} "
                        "does not exist")  # fmt: skip
    if beside and not is_equal:
        raise UserError(f"{beside} differs from the project's image of this name, {inside}")
    # Labels of a resized copy have other coordinates.
    if (seen := coco.size_px(new.entries[image])) not in (None, size_px := read_size_px(inside)):
        raise UserError(f"its labels are of an image of {seen[0]} x {seen[1]} px, and {inside} has {size_px[0]} x "
                        f"{size_px[1]}")  # fmt: skip
    return project.path_of(project.file.parent, known)


def _file_of_new(new: CocoFile, image: str, target: Path, folder: Path) -> tuple[Path, dict[Path, Path]]:
    """Returns the place of an image that the project lacks, and {free path: image} of it and its neighbours.

    Args:
      new, image: the new labels and their image.
      target: its place in the project.
      folder: the project.
    """
    name = _path_text(new.entries[image])
    if is_absolute(name) or ".." in PurePosixPath(name).parts:
        raise UserError(f"{name} lies outside of the project folder")
    source = new.path_of(new.file.parent, image) if _existing(new, image) else None
    if target.is_file():
        if source and not source.samefile(target) and source.read_bytes() != target.read_bytes():
            raise UserError(f"{source} differs from {target}, which {folder} has under this name")
        return target, {}
    if source is None:
        raise UserError(new.paths[image] if isinstance(new.paths[image], str) else f"{new.paths[image]} does not exist")
    if not target.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"the images of the project lie in {target.parent}, outside of {folder}, where a merge writes: "
                        f"copy {source} there, then repeat")  # fmt: skip
    copies = {target: source}
    for file in with_neighbours(source):
        place = target.with_name(file.name)
        if file != source and not is_taken(place):
            refuse_link_out_of_project(file, file.name)
            read_size_px(file)
            copies[place] = file
    return target, copies


def _with_images(project: CocoFile, entries: list[dict[str, Any]], base: Path) -> CocoFile:
    """Returns the file with entries of new images, whose ids continue those of the file."""
    if not entries:
        return project
    given = [entry["id"] for entry in project.tree["images"]]
    last = max((int(key) for key in given if str(key).isdecimal()), default=0)
    # Other programs compare ids as they are written.
    kind = str if given and all(isinstance(key, str) for key in given) else int
    images = [{"id": kind(last + number), **entry} for number, entry in enumerate(entries, 1)]
    names = {entry["file_name"]: entry for entry in images}
    return dataclasses.replace(
        project,
        images=(*project.images, *names),
        tree={**project.tree, "images": [*project.tree["images"], *images]},
        entries={**project.entries, **names},
        paths={**project.paths, **{name: base / name for name in names}},
    )
