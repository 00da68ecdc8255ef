"""The work of `jaxpose crop`: makes boxes around predicted poses."""

import argparse
import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose.config import Config, DataConfig
from jaxpose.config.arguments import DONE, make_folder, program
from jaxpose.data.boxes import box_file_name, boxes_around, centres_of_poses, over_time, side_of_poses, write_boxes
from jaxpose.data.cells import one_name, spelling_note
from jaxpose.data.dataset import refuse_other_animals
from jaxpose.data.inputs import find_inputs, video_files
from jaxpose.data.label_files import extra_label_files, label_file_of_view, view_of_video
from jaxpose.data.project import Project
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import read_predictions
from jaxpose.formats.project import read_project
from jaxpose.labelling.recordings import find_table, read_run_configs
from jaxpose.outputs import output_folder
from jaxpose.poses import Poses
from jaxpose.run.run_config import refuse_several_animals
from jaxpose.run.start_run import refuse_ensemble
from jaxpose.run.status import read_of_one_evaluation
from jaxpose.terminal import count, print_lines, say
from jaxpose.video.index import as_labelled, labelled_sizes_px
from jaxpose.video.video import scan

_RATIO = 2.0
_IMAGE_BOXES = "bbox.csv"


@dataclasses.dataclass(frozen=True)
class _File:
    """A box file to write: its name, what it is of, the first column's cells, and the boxes (n, 4)."""

    name: str
    source: Path
    rows: Sequence[str]
    boxes_px: np.ndarray


def crop(given: argparse.Namespace) -> int:
    """Makes and writes the boxes that the flags of jaxpose.crop describe; returns the exit code.

    Raises:
      UserError: a flag, the run, the project or a prediction table cannot be used, or a file exists with other content.
    """
    _check_flags(given)
    run, out = Path(given.run).expanduser(), Path(given.out).expanduser()
    (config,) = read_run_configs([run])
    refuse_ensemble(run, config)
    refuse_several_animals(run, config, "jaxpose crop needs a network that sees whole frames")
    _columns(given, config.data.keypoint_names)
    project = read_project(config.data) if not given.videos or not given.size else None
    if project:
        refuse_other_animals(project, config.data)
    if project and project.crops_px:
        raise UserError(f"the labelled images of {project.label_file} are crops of their frames already")
    sides = {view: _side(given, project, view) for view in config.data.views or ("",)}
    videos = list(find_inputs(given.videos).videos.values()) if given.videos else []
    files = [_of_video(given, run, config, video, sides) for video in videos]
    if project and not given.videos:
        of_images = read_of_one_evaluation(run, lambda: [*_of_images(given, run, config.data, project, sides)])
        files = [*of_images, *_of_project_videos(given, run, config, sides)]
    _refuse_twice(files)
    make_folder(out)
    with output_folder(out, given.overwrite) as folder:
        for file in files:
            write_boxes(folder / file.name, file.rows, file.boxes_px)
    for file in files:
        width, height = file.boxes_px[:, 2:].max(axis=0).tolist()
        is_cut = bool(given.size and min(width, height) < given.size)
        cut = f", the largest that the frames allow instead of --size {given.size}" * is_cut
        print_lines(f"{out / file.name}: {count(len(file.rows), 'frame')}, boxes of {width} x {height} px{cut}")
    if not given.videos:
        option = f"data.boxes={shlex.quote(str((out / _IMAGE_BOXES).absolute()))}"
        say(f"train in them: {program('jaxpose.train')} {shlex.quote(config.data.project)} {option}")
    return DONE


def _check_flags(given: argparse.Namespace) -> None:
    if given.size is not None and given.ratio is not None:
        raise UserError(f"--size is {given.size} and --ratio is {given.ratio:g}; both set the side of a box: give one")
    if given.size is not None and given.size < 2:
        raise UserError(f"--size is {given.size}; it must be at least 2")
    if given.ratio is not None and not 0 < given.ratio < 1e6:
        raise UserError(f"--ratio is {given.ratio:g}; it must be above 0")
    if given.smooth < 1 or given.smooth % 2 == 0:
        raise UserError(f"--smooth is {given.smooth}; it must be an odd number of frames, 1 for no smoothing")
    if not 0 <= given.confidence <= 1:
        raise UserError(f"--confidence is {given.confidence:g}; it must be 0 to 1")


def _columns(given: argparse.Namespace, names: tuple[str, ...]) -> list[int]:
    """Returns the indices of the keypoints that boxes follow.

    Raises:
      UserError: the run lacks one.
    """
    wanted = [name.strip() for name in given.keypoints.split(",")] if given.keypoints else list(names)
    if unknown := [name for name in wanted if name not in names]:
        raise UserError(f"--keypoints has {unknown[0]!r}; the run has {', '.join(names)}")
    return [names.index(name) for name in wanted]


def _side(given: argparse.Namespace, project: Project | None, view: str) -> int:
    """Returns the side of a view's boxes in px."""
    if given.size or project is None:
        return given.size
    rows = [row for row, of_row in enumerate(project.views) if of_row == view]
    columns = _columns(given, project.poses.keypoint_names)
    side = side_of_poses(project.labelled_frame_px()[rows][:, columns], given.ratio or _RATIO)
    if not side:
        raise UserError(f"{project.label_file} has no label of these keypoints, which decide the side: give --size PX")
    return side


def _of_images(
    given: argparse.Namespace, run: Path, data: DataConfig, project: Project, sides: dict[str, int]
) -> Iterator[_File]:
    """Yields the boxes of the labelled images, for each label file and view."""
    for labels in ("", *extra_label_files(data)):
        found = read_project(data, labels) if labels else project
        stem = PurePosixPath(labels).stem
        ending = f"_{stem.removeprefix(f'{PurePosixPath(data.labels).stem}_')}" if labels else ""
        sizes_px = dict(zip(found.poses.frames, found.sizes_px, strict=True))
        for view in data.views or ("",):
            table = run / label_file_of_view(f"predictions{ending}.csv", view)
            if not table.is_file():
                raise UserError(f"there is no {table}; make it with {program('jaxpose.evaluate')} --run {run}")
            predicted = read_predictions(table).poses
            if absent := [name for name in predicted.frames if name not in sizes_px]:
                raise UserError(f"{table} has {absent[0]}, which is not a usable image of {found.label_file}")
            columns = _columns(given, predicted.keypoint_names)
            centres = _centres(given, predicted, columns)
            # A labelled image shows an animal, so an uncertain pose is better than none.
            every = centres_of_poses(predicted.points_px[:, 0, columns], np.ones((len(centres), len(columns))), 0.0)
            centres = np.where(np.isfinite(centres), centres, every)
            if not np.isfinite(centres).all():
                raise UserError(f"{table} has rows without a keypoint; predict the images again")
            of_rows = np.array([sizes_px[name] for name in predicted.frames])
            name = label_file_of_view(f"{Path(_IMAGE_BOXES).stem}{ending}.csv", view)
            yield _File(name, table, predicted.frames, boxes_around(centres, sides[view], of_rows))


def _of_project_videos(given: argparse.Namespace, run: Path, config: Config, sides: dict[str, int]) -> Iterator[_File]:
    """Yields the boxes of the project's videos; reports those that the run did not predict."""
    for video in video_files(config.data, config.video).values():
        try:
            find_table(run, video)
        except UserError as error:
            print_lines(f"no boxes of {video.name}: {error}")
            continue
        yield _of_video(given, run, config, video, sides)


def _of_video(given: argparse.Namespace, run: Path, config: Config, video: Path, sides: dict[str, int]) -> _File:
    data, table = config.data, find_table(run, video)
    view = view_of_video(video.stem, data.views)
    if view not in sides:
        raise UserError(
            f"{video} belongs to none of the views {', '.join(data.views)}; it must be called <session>_<view>"
        )
    predicted = read_predictions(table).poses
    centres = _centres(given, predicted, _columns(given, predicted.keypoint_names))
    if not np.isfinite(centres).any():
        raise UserError(f"no frame of {video} has a keypoint with a confidence of {given.confidence:g}; lower it with "
                        "--confidence")  # fmt: skip
    shown = as_labelled(scan(video), labelled_sizes_px(data))
    size_px = np.array([shown.width_px, shown.height_px])
    boxes_px = boxes_around(over_time(centres, given.smooth), sides[view], size_px)
    return _File(box_file_name(video), video, predicted.frames, boxes_px)


def _centres(given: argparse.Namespace, predicted: Poses, columns: list[int]) -> np.ndarray:
    points_px, confidence = predicted.one_animal()
    return centres_of_poses(points_px[:, columns], confidence[:, columns], given.confidence)


def _refuse_twice(files: list[_File]) -> None:
    seen: dict[str, _File] = {}
    for file in files:
        if (other := seen.setdefault(one_name(file.name), file)) is not file:
            note = spelling_note(other.name, file.name)
            raise UserError(
                f"{other.source} and {file.source} have the same name{note}, and so would their boxes: call the "
                "command for each, with another --out"
            )
