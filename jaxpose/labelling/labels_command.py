"""The work of `jaxpose.labels`: checks the labels of a project, or adds new ones."""

import argparse
from collections import Counter
from pathlib import Path

from jaxpose.config import DataConfig
from jaxpose.config.arguments import DONE, FAILED
from jaxpose.labelling.check_folder import LIST_FILE, refuse_foreign, write_findings
from jaxpose.labelling.label_check import OUTLIER, OUTSIDE, ROW, SWAP, check_labels
from jaxpose.labelling.merging import merge as merge_labels
from jaxpose.labelling.new_labels import count_untouched, count_untouched_in, read_new_labels
from jaxpose.labelling.project_labels import ProjectLabels, read_project_labels
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
        print_lines(_untouched_text(untouched))
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
    print_lines(f"{out / LIST_FILE} has all of them; {count(pictures, 'picture')} beside it")
    return FAILED if findings else DONE


def merge(given: argparse.Namespace) -> int:
    """Adds new rows to the label files of a project, with their images, and returns the exit code.

    Args:
      given: the flags of `jaxpose.labels merge`.

    Raises:
      UserError: the project or the new rows cannot be used; nothing is written then.
    """
    project, new = _read_project(given), Path(given.new).expanduser()
    found = read_new_labels(new, project)
    merged = merge_labels(new, found, project)
    for file, rows in merged.rows.items():
        print_lines(f"{file}: {count(rows, 'new row')}")
    print_lines(f"{count(merged.images, 'image')} copied, neighbours included")
    if empty := sum(file.empty for file in found):
        print_lines(f"left out: {count(empty, 'row')} without any label")
    if untouched := count_untouched(new, found):
        print_lines(_untouched_text(untouched))
    if merged.backups:
        print_lines(f"the label files before: {', '.join(map(str, merged.backups))}")
    for file in merged.stale:
        print_lines(f"{file} lacks the new rows: make it again, in DeepLabCut by convertcsv2h5")
    return DONE


def _untouched_text(rows: int) -> str:
    return f"{count(rows, 'row')} exactly as jaxpose suggest predicted: correct them now if nobody looked at them"
