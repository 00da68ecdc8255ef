"""The work of `jaxpose labels merge`: adds new labels to a project."""

import argparse
import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from jaxpose.config import DataConfig, project_folder
from jaxpose.config.arguments import DONE, program
from jaxpose.data.inputs import VIDEO_SUFFIXES
from jaxpose.data.label_changes import changing_labels
from jaxpose.formats.deeplabcut.project import CONFIG_FILE, read_config
from jaxpose.formats.project import COCO, DEEPLABCUT, SLEAP, recognise, without_config_file
from jaxpose.labelling.merging import (
    Merged,
    NewFile,
    count_untouched,
    extended,
    folder_of,
    is_merged,
    known_contents,
    read_new_labels,
    read_size_px,
    read_with_contents,
    refuse_misfits,
    refuse_other_keypoints,
    untouched_text,
    write_contents,
)
from jaxpose.labelling.merging import merge as write_merged
from jaxpose.labelling.merging_animals import contents_of, keypoint_names, plan_merge, rows_of
from jaxpose.labelling.merging_command import merge_whole_file
from jaxpose.labelling.project_labels import ProjectLabels, can_write
from jaxpose.labelling.suggestion_folder import read_suggesting_run
from jaxpose.run.paths import MEMBERS_FOLDER
from jaxpose.terminal import count, print_lines, say

# Lines missing from a DeepLabCut config.yaml: DeepLabCut reads only the labels of videos that it names.


def absent_video_sets(project: ProjectLabels, images: Sequence[str]) -> Mapping[str, str]:
    """Returns {image folder: lines for `video_sets` of config.yaml} for folders that the file lacks.

    Args:
      project: a DeepLabCut project; {} without a config.yaml.
      images: names of its images.

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
    files = (file for file in (folder / "videos").glob("*") if file.suffix.lower() in VIDEO_SUFFIXES)
    videos = [file for file in files if file.stem == name]
    # Nobody knows which of several the images are of.
    path = videos[0].absolute() if len(videos) == 1 else f"FOLDER OF THE VIDEO/{name}.mp4"
    return f"  {path}:\n    crop: 0, {width}, 0, {height}"


def merge(given: argparse.Namespace) -> int:
    """Adds new rows and their images to a project's label files; returns the exit code.

    Args:
      given: the flags of `jaxpose.labels merge`.

    Raises:
      UserError: the project or the new rows cannot be used; then writes nothing.
    """
    plain, new = without_config_file(DataConfig(project=given.project)).project, Path(given.new).expanduser()
    folder = project_folder(plain)
    with changing_labels(folder) if folder.is_dir() else contextlib.nullcontext():
        views = tuple(filter(None, given.views.split(",")))
        data = DataConfig(project=given.project, labels=given.labels, views=views)
        kind = recognise(without_config_file(data))
        if kind in (SLEAP, COCO):
            merge_whole_file(new, Path(plain).expanduser(), kind)
        else:
            _merge_rows(given, new, data)
    say(_next_step(given, new))
    return DONE


def _merge_rows(given: argparse.Namespace, new: Path, data: DataConfig) -> None:
    """Adds new labels to label files with rows, and reports what it did."""
    project, contents = read_with_contents(data)
    found = read_new_labels(new, project)
    if project.layout and project.layout.individuals:
        _merge_animals(given, new, found, project, contents)
    elif is_merged(found, project):
        print_lines(f"{given.project} already has all labels of {given.new}: nothing to merge")
    else:
        refuse_misfits(new, found, project)
        _report(new, found, project, write_merged(new, found, project, contents))


def _merge_animals(
    given: argparse.Namespace,
    new: Path,
    found: Sequence[NewFile],
    project: ProjectLabels,
    before: Mapping[Path, bytes],
) -> None:
    """Adds new labels to a project of several animals, and reports what it did.

    Args:
      given, new, found, project: the merge.
      before: the bytes of the project's label files, from `read_with_contents`.
    """
    refuse_other_keypoints(found, project)
    plan = plan_merge(found, project, folder_of(new))
    about = plan.lines(keypoint_names(project))
    if not plan.rows and not plan.changes:
        about.append(f"{given.project} already has all labels of {given.new}: nothing to merge")
    else:
        rows = rows_of(plan, project)
        known = known_contents({**rows, **plan.changes}, before)
        contents = contents_of(
            plan, project, {file: extended(file, of_file, project) for file, of_file in rows.items()}
        )
        numbers = {file: len(rows.get(file, ())) for file in contents}
        changed = {file: len(of_file) for file, of_file in plan.changes.items()}
        _report(new, found, project, write_contents(new, found, project, contents, numbers, known), changed)
    for line in about:
        print_lines(line)


def _report(
    new: Path,
    found: Sequence[NewFile],
    project: ProjectLabels,
    merged: Merged,
    changed: Mapping[Path, int] = MappingProxyType({}),
) -> None:
    """Prints what a merge wrote; `changed` has the number of rows of the project that got cells, by label file."""
    for file, rows in merged.rows.items():
        added = [count(rows, "new row")] if rows or file not in changed else []
        of_project = [f"{count(changed[file], 'row')} of the project changed"] if file in changed else []
        print_lines(f"{file}: {', '.join([*added, *of_project])}")
    print_lines(f"{count(merged.images, 'image')} copied")
    if empty := sum(file.empty for file in found):
        print_lines(f"left out: {count(empty, 'row')} without any label")
    if untouched := count_untouched(new, found):
        print_lines(f"{untouched_text(untouched)}: if nobody looked at them, correct them in {project.folder}")
    if merged.backups:
        print_lines(f"backups of the label files: {', '.join(map(str, merged.backups))}")
    for file in merged.h5:
        print_lines(f"{file}: rewritten from the CSV")
    for file in merged.stale:
        print_lines(f"{file} lacks the new rows: make it again in DeepLabCut with convertcsv2h5")
    if merged.stale and not can_write():
        print_lines("pip install 'jaxpose[deeplabcut]', and the next merge writes these files itself")
    if project.kind == DEEPLABCUT:
        images = [image for file in found for image in file.labels.poses.frames]
        for name, lines in absent_video_sets(project, images).items():
            print_lines(
                f"DeepLabCut reads labeled-data/{name} only if {project.folder / CONFIG_FILE} has, under video_sets:\n"
                f"{lines}"
            )


def _next_step(given: argparse.Namespace, new: Path) -> str:
    """Returns the command that trains on the labels, from the run that suggested them if known."""
    command = f"train on them: {program('jaxpose.train')} {shlex.quote(given.project)}{_options(given)}"
    run = read_suggesting_run(folder_of(new))
    if run is None:
        return f"{command} (after an earlier run of it: data.split=RUN train.init_from=RUN)"
    named = shlex.quote(os.path.relpath(run) if run.is_relative_to(Path.cwd()) else str(run))
    # A run can start from only one network.
    start = "" if (run / MEMBERS_FOLDER).is_dir() else f" train.init_from={named}"
    return f"{command} data.split={named}{start}"


def _options(given: argparse.Namespace) -> str:
    """Returns the options with which training finds the same label files."""
    views = f" data.views={shlex.quote(given.views)}" * bool(given.views)
    return f" data.labels={shlex.quote(given.labels)}" * (given.labels != DataConfig().labels) + views
