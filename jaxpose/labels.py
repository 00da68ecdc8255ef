"""Checks the labels of a project, or adds new ones: `python -m jaxpose.labels check`, `python -m jaxpose.labels merge`.

Input: a project. Output of check: a table and pictures of labels that look wrong. Output of merge: the project's label
files with the new rows, and their images.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from jaxpose.config import DataConfig
from jaxpose.config.arguments import DONE, FAILED, Arguments
from jaxpose.labelling.check_folder import LIST_FILE, refuse_foreign, write_findings
from jaxpose.labelling.label_check import OUTLIER, OUTSIDE, ROW, SWAP, check_labels
from jaxpose.labelling.label_layout import ProjectLabels, read_project_labels
from jaxpose.labelling.merging import merge
from jaxpose.labelling.new_labels import count_untouched, read_new_labels
from jaxpose.quantities import count

_LISTED = 20
_KINDS = {
    ROW: "rows that cannot be used",
    OUTSIDE: "images with points outside of them",
    SWAP: "images where left and right look exchanged",
    OUTLIER: "images with a keypoint in an implausible place",
}


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 1 (check found something) or 2 (a mistake of the user)."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["check"]:
        return _check_arguments().run(_check, argv[1:])
    if argv[:1] == ["merge"]:
        return _merge_arguments().run(_merge, argv[1:])
    arguments = Arguments(
        "jaxpose.labels",
        "Checks the labels of a project, or adds new ones to it.",
        usage="python -m jaxpose.labels check|merge [--help] ...",
    )
    arguments.add_argument("task", choices=("check", "merge"), help="what to do; `check --help` has its flags")
    return arguments.run(lambda given: DONE, argv)


def _check_arguments() -> Arguments:
    arguments = Arguments("jaxpose.labels check", "Looks for labels that are wrong; writes a table and pictures.")
    _add_project(arguments)
    arguments.add_argument(
        "--flip_pairs", default="", metavar="L:R,...", help="left_name:right_name, ...; default: found by the names"
    )
    arguments.add_argument(
        "--out", default="label_check", metavar="FOLDER", help="folder for the result; default: label_check"
    )
    return arguments


def _merge_arguments() -> Arguments:
    arguments = Arguments("jaxpose.labels merge", "Adds new rows to the label files of a project, with their images.")
    arguments.add_argument("new", metavar="NEW", help="a folder that jaxpose.suggest wrote, or a label file")
    _add_project(arguments)
    return arguments


def _add_project(arguments: Arguments) -> None:
    arguments.add_argument("--project", required=True, metavar="FOLDER", help="project with the labels")
    arguments.add_argument(
        "--labels", default=DataConfig().labels, metavar="FILE", help=f"label file; default: {DataConfig().labels}"
    )
    arguments.add_argument("--views", default="", metavar="A,B", help="names of the cameras")


def _read_project(given: argparse.Namespace) -> ProjectLabels:
    views = tuple(filter(None, given.views.split(",")))
    return read_project_labels(DataConfig(project=given.project, labels=given.labels, views=views))


def _check(given: argparse.Namespace) -> int:
    out = Path(given.out).expanduser()
    refuse_foreign(out)
    project = _read_project(given)
    findings, notes = check_labels(project, tuple(filter(None, given.flip_pairs.split(","))))
    rows = sum(len(labels.images) for of_view in project.labels.values() for labels in of_view)
    pictures = write_findings(out, project.folder, findings)
    files = [str(file) for of_view in project.files.values() for file in of_view]
    print(f"{count(rows, 'labelled image')} in {', '.join(files)}")
    for note in notes:
        print(note)
    found = Counter(finding.kind for finding in findings)
    for kind, text in _KINDS.items():
        print(f"{found[kind]:>6} {text}")
    for finding in findings[:_LISTED]:
        print(f"{finding.place}: {finding.image and finding.image + ': '}{finding.text}")
    if len(findings) > _LISTED:
        print(f"... and {len(findings) - _LISTED} more")
    print(f"{out / LIST_FILE} has all of them; {count(pictures, 'picture')} beside it")
    return FAILED if findings else DONE


def _merge(given: argparse.Namespace) -> int:
    project, new = _read_project(given), Path(given.new).expanduser()
    found = read_new_labels(new, project)
    merged = merge(new, found, project)
    for file, rows in merged.rows.items():
        print(f"{file}: {count(rows, 'new row')}")
    print(f"{count(merged.images, 'image')} copied, neighbours included")
    if empty := sum(file.empty for file in found):
        print(f"left out: {count(empty, 'row')} without any label")
    if untouched := count_untouched(new, found):
        print(
            f"{count(untouched, 'row')} exactly as jaxpose.suggest predicted: correct them now if nobody looked at them"
        )
    if merged.backups:
        print(f"the label files before: {', '.join(map(str, merged.backups))}")
    for file in merged.stale:
        print(f"{file} lacks the new rows: make it again, in DeepLabCut by convertcsv2h5")
    return DONE


if __name__ == "__main__":
    sys.exit(main())
