"""The work of `jaxpose suggest`: writes frames worth labelling as images and label files."""

import argparse
import dataclasses
import os
import shlex
from pathlib import Path

import numpy as np

from jaxpose.config import Config, DataConfig, VideoConfig
from jaxpose.config.arguments import DONE, program
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.data.inputs import video_files
from jaxpose.errors import UserError, need
from jaxpose.formats.project import COCO, CSV, SLEAP
from jaxpose.labelling import animal_evidence
from jaxpose.labelling.animal_evidence import choose_in_turns, expected_animals, read_crowd
from jaxpose.labelling.pose_outliers import fit_poses
from jaxpose.labelling.project_labels import ProjectLabels, image_of, read_project_labels
from jaxpose.labelling.recordings import (
    Choice,
    Recording,
    choose_different,
    choose_frames,
    find_evidence,
    find_recordings,
    read_recording,
    read_run_configs,
)
from jaxpose.labelling.suggestion_folder import COCO_FILE, SLEAP_FILE, refuse_used, write_suggestions
from jaxpose.poses import Poses
from jaxpose.run.run_config import refuse_no_finder
from jaxpose.run.start_run import with_members
from jaxpose.terminal import count, print_lines, say
from jaxpose.video.file import scan
from jaxpose.video.index import as_labelled, labelled_sizes_px


def suggest(given: argparse.Namespace, runs: list[Path], videos: list[str]) -> int:
    """Chooses frames and writes them with their label files; returns the exit code.

    Args:
      given: the flags of jaxpose.suggest.
      runs: run folders with video predictions, if any.
      videos: as given.

    Raises:
      UserError: a flag, a run, a video or the project cannot be used, or no frame is left.
    """
    out, named, runs = Path(given.out).expanduser(), runs, with_members(runs)
    for flag, least in (("frames", 1), ("apart", 0)):
        if getattr(given, flag) < least:
            raise UserError(f"--{flag} is {getattr(given, flag)}; it must be at least {least}")
    refuse_used(out, given.overwrite)
    if given.h5:
        need("deeplabcut", "--h5")
    data, video, radius = _options(given, runs)
    project = read_project_labels(data, several=True) if data.project else None
    if project:
        project.refuse_unique()
    if given.h5 and not project:
        raise UserError("--h5 writes label files, which need the keypoints of a project: give --project FOLDER")
    if given.h5 and project and not project.layout:
        raise UserError(f"--h5 writes HDF5 next to label files (.csv), but {project.path} is a file of {project.kind}")
    if not videos:
        videos = _videos(data, video, project)
    recordings = find_recordings(videos, data.views, project.video_files() if project else {})
    if project and not data.views:
        recordings = [dataclasses.replace(found, crop_px=_crop_px(project, found, data)) for found in recordings]
    skipped = _labelled(project, recordings)
    shown = None
    if runs:
        if not project:
            raise UserError(
                f"the run {runs[0]} names no project, whose labels show which poses are unusual: give --project FOLDER"
            )
        choose = _choose_crowded if data.animals > 1 else _choose_unusual
        predicted, choices = choose(_Search(runs, data, project, recordings, skipped, given.frames, given.apart))
        shown = None if given.empty else _in_images(recordings, predicted, data, choices)
    else:
        choices = choose_different(recordings, skipped, given.frames, given.apart)
    if not choices:
        raise UserError("no frame is left to suggest: all are labelled, or too close to each other (see --apart)")
    run = named[0] if len(named) == 1 else None
    images = write_suggestions(
        out, recordings, choices, data, project, shown, radius=radius, h5=given.h5, run=run, overwrite=given.overwrite
    )
    _report(given, out, recordings, choices, images, project, shown is not None)
    return DONE


@dataclasses.dataclass(frozen=True)
class _Search:
    """Where frames are chosen by the predictions of runs, and how many.

    Attributes:
      runs: run folders, each of one network.
      data: the options of the first one.
      project: the labels.
      recordings: the videos.
      skipped: labelled frames of each recording.
      count: how many frames.
      apart: two frames of a recording must be more than this far apart.
    """

    runs: list[Path]
    data: DataConfig
    project: ProjectLabels
    recordings: list[Recording]
    skipped: list[set[int]]
    count: int
    apart: int


def _choose_unusual(search: _Search) -> tuple[list[Poses], list[Choice]]:
    """Returns the predictions of each recording, and the frames in which those of one animal look wrong."""
    project, names = search.project, search.data.keypoint_names
    if project.most_animals > 1:
        raise UserError(
            f"{project.path} has up to {project.most_animals} animals in an image, and {search.runs[0]} was trained on "
            "images with one: give a run of several animals"
        )
    poses = fit_poses(project, names)
    predicted = [read_recording(search.runs, names, recording, poses) for recording in search.recordings]
    signals, evidence = find_evidence(predicted)
    return predicted, choose_frames(evidence, signals, names, search.skipped, search.count, search.apart)


def _choose_crowded(search: _Search) -> tuple[list[Poses], list[Choice]]:
    """Returns the animals of each recording, and the frames in which some may be wrong or missing."""
    runs, recordings, names = search.runs, search.recordings, search.data.keypoint_names
    if len(runs) > 1:
        raise UserError(f"{runs[0]} was trained on several animals, whose predictions are not combined: give one run")
    crowds = [read_crowd(runs[0], recording, names) for recording in recordings]
    if absent := [found.name for found, crowd in zip(recordings, crowds, strict=True) if crowd.doubts is None]:
        say(f"no review of tracks, so doubtful tracks do not count: {', '.join(absent)}")
    size_px = read_run_configs(runs)[0].data.body_size_px
    signals, evidence = animal_evidence.find_evidence(crowds, size_px, expected_animals(search.project))
    choices = choose_in_turns(evidence, signals, names, search.skipped, search.count, search.apart)
    return [crowd.poses for crowd in crowds], choices


def _options(given: argparse.Namespace, runs: list[Path]) -> tuple[DataConfig, VideoConfig, int]:
    """Returns where the labels are and, with runs, their keypoints; where the videos are; and how many frames on either
    side the runs' networks see."""
    configs = read_run_configs(runs) if runs else [Config()]
    for run, config in zip(runs, configs, strict=False):
        refuse_no_finder(run, config)
    data, radius = configs[0].data, max(CONTEXT_RADIUS[config.model.kind] for config in configs)
    changes = {name: getattr(given, name) for name in ("project", "labels") if getattr(given, name)}
    if given.views:
        changes["views"] = tuple(given.views.split(","))
        if runs and changes["views"] != data.views:
            raise UserError(f"--views is {given.views}, but the run has {','.join(data.views) or 'one camera'}")
    return dataclasses.replace(data, **changes), configs[0].video, radius


def _videos(data: DataConfig, video: VideoConfig, project: ProjectLabels | None) -> list[str]:
    """Returns the project's videos: those that its label files name and those in its video folder."""
    files = [*project.video_files().values(), *video_files(data, video).values()] if project else []
    if not files:
        raise UserError("VIDEO is required" + ": the project has no videos" * bool(project))
    return list({os.path.realpath(file): str(file) for file in files}.values())


def _crop_px(project: ProjectLabels, recording: Recording, data: DataConfig) -> tuple[int, ...]:
    """Returns the part of a video's frames for new images, () for whole frames.

    Raises:
      UserError: the video's labelled images show neither whole frames nor a known crop.
    """
    crop_px, sizes_px = project.crop_px(recording.name), project.sizes_px(recording.name)
    if not crop_px and not sizes_px:
        return ()
    video = as_labelled(scan(recording.videos[""]), labelled_sizes_px(data))
    frame_px = video.width_px, video.height_px
    has = f"frames of {frame_px[0]} x {frame_px[1]} px"
    if crop_px and (crop_px[0] + crop_px[2] > frame_px[0] or crop_px[1] + crop_px[3] > frame_px[1]):
        raise UserError(
            f"{video.path} has {has}, but the project's crop of it is (x, y, width, height) = {crop_px}: is it another "
            "video?"
        )
    if not crop_px and frame_px not in sizes_px:
        shown = " or ".join(f"{width} x {height}" for width, height in sorted(sizes_px))
        raise UserError(
            f"{video.path} has {has}, but its labelled images have {shown} px, and the project has no crop of this "
            "size: give the video its crop in config.yaml"
        )
    return crop_px


def _labelled(project: ProjectLabels | None, recordings: list[Recording]) -> list[set[int]]:
    """Returns the frames of each recording that are labelled in any view."""
    frames = project.labelled_frames() if project else set()
    return [{number for name, number in frames if name in found.folders.values()} for found in recordings]


def _in_images(recordings: list[Recording], predicted: list[Poses], data: DataConfig, choices: list[Choice]) -> Poses:
    """Returns the predictions of the chosen frames in pixels of their images, without those outside of these.

    The animals of a frame are ordered from left to right; of two that coincide exactly, one is left out.
    """
    names = data.keypoint_names
    frames, points, confidences = list[str](), list[np.ndarray](), list[np.ndarray]()
    places = {choice.recording for choice in choices}
    sizes_px = {place: np.repeat(_sizes_px(recordings[place], data), len(names), axis=0) for place in places}
    for choice in choices:
        recording, poses = recordings[choice.recording], predicted[choice.recording]
        keypoints_px = poses.points_px[choice.frame].copy()
        if recording.crop_px:
            keypoints_px -= recording.crop_px[:2]
        is_outside = ((keypoints_px < -0.5) | (keypoints_px > sizes_px[choice.recording] - 0.5)).any(axis=-1)
        keypoints_px[is_outside] = np.nan
        # The sum turns -0.0 into 0.0.
        poses_of_frame = [one.tobytes() for one in keypoints_px + 0.0]
        keypoints_px[[one in poses_of_frame[:place] for place, one in enumerate(poses_of_frame)]] = np.nan
        # NaN, of absent animals, is sorted to the end.
        order = np.argsort(np.fmin.reduce(keypoints_px[..., 0], axis=1), kind="stable")
        frames += [image_of(folder, choice.frame) for folder in recording.folders.values()]
        points += np.split(keypoints_px[order], len(recording.folders), axis=1)
        confidences += np.split(np.asarray(poses.confidence)[choice.frame][order], len(recording.folders), axis=1)
    return Poses(names, frames, np.stack(points), np.stack(confidences), pixels="image")


def _sizes_px(recording: Recording, data: DataConfig) -> np.ndarray:
    """Returns the (width, height) of the images of each view: (v, 2)."""
    if recording.crop_px:
        return np.array([recording.crop_px[2:]])
    shown = [as_labelled(scan(path), labelled_sizes_px(data)) for path in recording.videos.values()]
    return np.array([(video.width_px, video.height_px) for video in shown])


def _report(
    given: argparse.Namespace,
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    images: int,
    project: ProjectLabels | None,
    is_predicted: bool,
) -> None:
    per_recording = [sum(choice.recording == place for choice in choices) for place in range(len(recordings))]
    for recording, frames in zip(recordings, per_recording, strict=True):
        say(f"{recording.name}: {count(frames, 'frame')}")
    if len(choices) < given.frames:
        say(f"only {len(choices)} of {given.frames} frames: the others are labelled or too close (see --apart)")
    per_frame = len(recordings[0].videos)
    around = ", with the frames around each for a network that looks at several" * (images > len(choices) * per_frame)
    print_lines(f"{out}: {count(images, 'image')}{around}")
    if project and (bad := sum(len(table.problems) for table in project.all_tables())):
        which = f"{count(bad, 'row')} of the labels"
        print_lines(f"{which} cannot be used (see jaxpose check); their frames may be among the suggested ones")
    say(_next_step(given, out, project, is_predicted))


def _next_step(given: argparse.Namespace, out: Path, project: ProjectLabels | None, is_predicted: bool) -> str:
    if not project:
        return "no label file is written, because no project names the keypoints (see --project)"
    # Without a run, or with --empty, there is no prediction to correct.
    merge = f"{program('jaxpose.labels')} merge {shlex.quote(str(out))}"
    if project.kind == SLEAP and project.path.name.endswith(".pkg.slp"):
        # A package has no place for frames whose images it lacks.
        work = "correct the predictions there" if is_predicted else "label its frames"
        into = f"the project of the package {project.path}"
        return f"merge {out / SLEAP_FILE} into {into} in SLEAP, {work}, then train again"
    if project.kind in (SLEAP, COCO):
        file = out / (SLEAP_FILE if project.kind == SLEAP else COCO_FILE)
        work = f"correct the labels in {file}" if is_predicted else f"label the images of {file}"
        page = f"{program('jaxpose.label')} {shlex.quote(str(file))}"
        return f"{work} ({page}, or your labelling tool), then: {merge} --project {shlex.quote(str(project.path))}"
    named = {"labels": given.labels or (project.files[""][0].name if project.kind == CSV else ""), "views": given.views}
    flags = "".join(f" --{name} {shlex.quote(value)}" for name, value in named.items() if value)
    work = "correct the labels there" if is_predicted else "label the images there"
    if is_predicted and project.most_animals > 1:
        work += " (the first individual is the animal on the left: exchange those whose names are wrong)"
    return f"{work}, then: {merge} --project {shlex.quote(str(project.path))}{flags}"
