"""The work of `jaxpose.labels`: checks the labels of a project, or adds new ones."""

import argparse
import contextlib
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from jaxpose.config import DataConfig, project_folder
from jaxpose.config.arguments import DONE, FAILED, program
from jaxpose.data.label_changes import changing_labels
from jaxpose.formats.deeplabcut.config import CONFIG_FILE
from jaxpose.formats.project import DEEPLABCUT, without_config_file
from jaxpose.labelling.check_folder import LIST_FILE, refuse_foreign, write_findings
from jaxpose.labelling.label_check import OUTLIER, OUTSIDE, ROW, SWAP, check_labels
from jaxpose.labelling.label_h5 import can_write
from jaxpose.labelling.merging import Merged
from jaxpose.labelling.merging import merge as write_merged
from jaxpose.labelling.new_labels import (
    NewFile,
    count_untouched,
    count_untouched_in,
    is_merged,
    read_new_labels,
    refuse_misfits,
)
from jaxpose.labelling.project_labels import ProjectLabels, read_project_labels
from jaxpose.labelling.video_sets import absent_video_sets
from jaxpose.quantities import count
from jaxpose.terminal import print_lines, say

_LISTED = 20
_KINDS = {
    ROW: ("row that cannot be used", "rows that cannot be used"),
    OUTSIDE: ("image with points outside of it", "images with points outside of them"),
    SWAP: ("image where left and right look exchanged", "images where left and right look exchanged"),
    OUTLIER: ("image with a keypoint in an implausible place", "images with a keypoint in an implausible place"),
}


def _read_project(given: argparse.Namespace, path: str = "") -> ProjectLabels:
    views = tuple(filter(None, given.views.split(",")))
    return read_project_labels(DataConfig(project=path or given.project, labels=given.labels, views=views))


def check(given: argparse.Namespace) -> int:
    """Looks for labels that are wrong, writes a table and pictures, and returns the exit code (1: found some).

    Args:
      given: the flags of `jaxpose.labels check`.

    Raises:
      UserError: the project or the folder for the result cannot be used.
    """
    out = Path(given.out).expanduser()
    refuse_foreign(out)
    project = _read_project(given)
    like = _read_project(given, given.like) if given.like else None
    findings, unchecked = check_labels(project, tuple(filter(None, given.flip_pairs.split(","))), like)
    tables = [table for of_view in project.tables.values() for table in of_view]
    rows = sum(len(table.images) for table in tables)
    pictures = write_findings(out, findings)
    files = [str(file) for of_view in project.files.values() for file in of_view]
    say(f"{count(rows, 'labelled image')} in {', '.join(files)}")
    for table in tables:
        for note in table.notes:
            say(f"{f'{table.file.name}: ' * (len(tables) > 1)}{note}")
    if untouched := count_untouched_in(project):
        print_lines(f"{_untouched_text(untouched)}: correct them now if nobody looked at them")
    for note in dict.fromkeys(check.text for check in unchecked):
        say(note)
    found = Counter(finding.kind for finding in findings)
    for kind, (one, several) in _KINDS.items():
        # A check of one view alone counts.
        if found[kind] or sum(kind in check.kinds for check in unchecked) < len(project.tables):
            say(f"{found[kind]:>6} {one if found[kind] == 1 else several}")
    for finding in findings[:_LISTED]:
        say(f"{finding.place}: {finding.image and finding.image + ': '}{finding.text}")
    if len(findings) > _LISTED:
        say(f"... and {len(findings) - _LISTED} more")
    rest = f"has all of them; {count(pictures, 'picture')} beside it" if findings else "is empty: nothing was found"
    print_lines(f"{out / LIST_FILE} {rest}")
    return FAILED if findings else DONE


def merge(given: argparse.Namespace) -> int:
    """Adds new rows to the label files of a project, with their images, and returns the exit code.

    Args:
      given: the flags of `jaxpose.labels merge`.

    Raises:
      UserError: the project or the new rows cannot be used; nothing is written then.
    """
    folder, new = project_folder(without_config_file(DataConfig(project=given.project)).project), Path(given.new)
    with changing_labels(folder) if folder.is_dir() else contextlib.nullcontext():
        project = _read_project(given)
        found = read_new_labels(new.expanduser(), project)
        if is_merged(found, project):
            print_lines(f"{given.project} has all labels of {given.new} already: nothing to merge")
        else:
            refuse_misfits(new.expanduser(), found, project)
            _report(new.expanduser(), found, project, write_merged(new.expanduser(), found, project))
    say(f"train on them: {program('jaxpose.train')} {shlex.quote(given.project)}{_options(given)}")
    return DONE


def _report(new: Path, found: Sequence[NewFile], project: ProjectLabels, merged: Merged) -> None:
    for file, rows in merged.rows.items():
        print_lines(f"{file}: {count(rows, 'new row')}")
    print_lines(f"{count(merged.images, 'image')} copied")
    if empty := sum(file.empty for file in found):
        print_lines(f"left out: {count(empty, 'row')} without any label")
    if untouched := count_untouched(new, found):
        print_lines(f"{_untouched_text(untouched)}: if nobody looked at them, correct them in {project.folder}")
    if merged.backups:
        print_lines(f"the label files before: {', '.join(map(str, merged.backups))}")
    for file in merged.h5:
        print_lines(f"{file}: written anew from the CSV")
    for file in merged.stale:
        print_lines(f"{file} lacks the new rows: make it in DeepLabCut by convertcsv2h5")
    if merged.stale and not can_write():
        print_lines("pip install 'jaxpose[deeplabcut]', and the next merge writes these files itself")
    if project.kind == DEEPLABCUT:
        images = [image for file in found for image in file.labels.images]
        for name, lines in absent_video_sets(project, images).items():
            print_lines(
                f"DeepLabCut reads labeled-data/{name} only if {project.folder / CONFIG_FILE} has, under video_sets:\n"
                f"{lines}"
            )


def _options(given: argparse.Namespace) -> str:
    """Returns the options by which a training finds the same label files."""
    views = f" data.views={shlex.quote(given.views)}" * bool(given.views)
    return f" data.labels={shlex.quote(given.labels)}" * (given.labels != DataConfig().labels) + views


def _untouched_text(rows: int) -> str:
    return f"{count(rows, 'row')} exactly as jaxpose suggest predicted"
