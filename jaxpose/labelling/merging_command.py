"""The work of `jaxpose labels merge` in a SLEAP or COCO file: reads both files, writes the project's, and reports."""

import os
from pathlib import Path

from jaxpose.data.label_changes import refuse_unfinished, write_all
from jaxpose.errors import UserError
from jaxpose.formats.project import COCO, SLEAP
from jaxpose.labelling import merging_coco, merging_sleap
from jaxpose.labelling.coco_file import CocoFile, read_coco_file
from jaxpose.labelling.label_file import WholeFile
from jaxpose.labelling.merging import count_as_suggested
from jaxpose.labelling.merging_whole_files import Matched, Plan, labelled_images, plan_merge, refuse_unusable
from jaxpose.labelling.sleap_file import SleapFile, read_sleap_file
from jaxpose.labelling.suggestion_folder import COCO_FILE, SLEAP_FILE
from jaxpose.terminal import count, listed, print_lines

_LISTED = 5
_ENDINGS, _SUGGESTED = {SLEAP: ".slp", COCO: ".json"}, {SLEAP: SLEAP_FILE, COCO: COCO_FILE}


def merge_whole_file(given: Path, file: Path, kind: str) -> None:
    """Adds new labels to a SLEAP or COCO file, and prints what it did.

    Args:
      given: a file of the same kind with the new labels, or a folder with the one of `jaxpose suggest`.
      file: of the project, whose folder is locked.
      kind: SLEAP or COCO.

    Raises:
      UserError: a file cannot be used, or labels cannot be merged; or another program has changed the project's file
        meanwhile. Then nothing is written.
      OSError: a file cannot be written.
    """
    if file.is_symlink():
        raise UserError(
            f"{file} is a link to {os.path.realpath(file)}, and a merge would replace the link by a file: give that "
            "file as the project"
        )
    read = read_sleap_file if kind == SLEAP else read_coco_file
    project, new = read(file), read(_find(given, kind))
    if isinstance(new, SleapFile):
        merging_sleap.refuse_absent(new)
    refuse_unusable(new, project)
    if isinstance(new, SleapFile) and isinstance(project, SleapFile):
        matched = merging_sleap.match_images(new, project)
    else:
        assert isinstance(new, CocoFile) and isinstance(project, CocoFile)
        matched = merging_coco.match_images(new, project)
    plan = plan_merge(new, matched)
    if plan.changes:
        content = plan.content(matched.project)
        backups = write_all(file.parent, {file: content}, matched.copies, made_from={file: project.original})
        _report(new, plan, matched, backups)
    else:
        print_lines(f"{file} already has all labels of {new.file}: nothing to merge")
    for line in [*plan.lines(project.keypoint_names), *_left_out(new)]:
        print_lines(line)


def _find(given: Path, kind: str) -> Path:
    """Returns the file with the new labels."""
    file = given / _SUGGESTED[kind] if given.is_dir() else given
    if file.suffix.lower() != _ENDINGS[kind]:
        raise UserError(
            f"{file} is not a {kind} file ({_ENDINGS[kind]}) as the project is: write it as one with jaxpose convert "
            "labels, then merge that"
        )
    if not file.is_file():
        other = f" has no {file.name}; name the label file itself" if given.is_dir() else " does not exist"
        raise UserError(f"{given}{other}, or a folder that jaxpose suggest wrote")
    refuse_unfinished(file.parent)
    return file


def _report(new: WholeFile, plan: Plan, matched: Matched, backups: list[Path]) -> None:
    changed = len(plan.changes) - plan.new_images
    parts = [f"{count(plan.new_images, 'image')} newly labelled"] if plan.new_images else []
    parts += [f"{count(changed, 'labelled image')} of the project changed"] if changed else []
    print_lines(f"{matched.project.file}: {', '.join(parts)}")
    if isinstance(new, CocoFile):
        print_lines(f"{count(len(matched.copies), 'image')} copied")
    if isinstance(project := matched.project, SleapFile):
        marked = [image for image in plan.changes if project.place_of(image) in project.negative.values()]
        if marked:
            print_lines(f"no longer marked as without animals: {listed(marked, _LISTED)}")
    print_lines(f"backups of the label files: {', '.join(map(str, backups))}")


def _left_out(new: WholeFile) -> list[str]:
    """Returns sentences about the content of the new labels that a merge does not add."""
    if isinstance(new, SleapFile):
        frames = merging_sleap.predicted_frames(new)
        return [f"left out: {count(frames, 'frame')} whose predicted instances nobody has corrected"] if frames else []
    assert isinstance(new, CocoFile)
    untouched = count_as_suggested(new.file.parent, [new.file], labelled_images(new))
    empty, others = len(new.images) - len(labelled_images(new)), merging_coco.unmerged(new)
    lines = [f"left out: {count(empty, 'image')} without any label"] if empty else []
    lines += [f"{count(untouched, 'image')} exactly as jaxpose suggest predicted"] if untouched else []
    return [*lines, *([f"only keypoints are merged; not merged: {listed(others, _LISTED)}"] if others else [])]
