"""The work of `jaxpose.suggest`: frames worth labelling, as images and label files."""

import argparse
import dataclasses
import shlex
from pathlib import Path

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.config.arguments import DONE, program
from jaxpose.errors import UserError
from jaxpose.extras import need
from jaxpose.labelling.clusters import choose_different
from jaxpose.labelling.evidence import find_evidence
from jaxpose.labelling.label_layout import ProjectLabels, read_project_labels
from jaxpose.labelling.poses import fit_poses
from jaxpose.labelling.recordings import Recording, find_recordings
from jaxpose.labelling.selection import Choice, choose_frames
from jaxpose.labelling.suggestion_folder import Points, refuse_used, write_suggestions
from jaxpose.labelling.tracks import Tracks, read_run_configs, read_tracks
from jaxpose.quantities import count


def suggest(given: argparse.Namespace, runs: list[Path], videos: list[str]) -> int:
    """Chooses frames, writes them with their label files, and returns the exit code.

    Args:
      given: the flags of jaxpose.suggest.
      runs: run folders that predicted the videos, if any.
      videos: as given.

    Raises:
      UserError: a flag, a run, a video or the project cannot be used, or no frame is left.
    """
    out = Path(given.out).expanduser()
    for flag, least in (("frames", 1), ("apart", 0)):
        if getattr(given, flag) < least:
            raise UserError(f"--{flag} is {getattr(given, flag)}; it must be at least {least}")
    refuse_used(out)
    if given.h5:
        need("deeplabcut", "--h5")
    data = _data(given, runs)
    project = read_project_labels(data) if data.project else None
    if given.h5 and not project:
        raise UserError("--h5 writes label files, which need the keypoints of a project: give --project FOLDER")
    recordings = find_recordings(videos, data.views)
    skipped = _labelled(project, recordings)
    points: Points = {}
    if runs:
        assert project is not None
        poses = fit_poses(project, data.keypoint_names)
        tracks = [read_tracks(runs, data.keypoint_names, recording, poses) for recording in recordings]
        signals, evidence = find_evidence(tracks)
        choices = choose_frames(evidence, signals, data.keypoint_names, skipped, given.frames, given.apart)
        points = {} if given.empty else _points(recordings, tracks, choices)
    else:
        choices = choose_different(recordings, skipped, given.frames, given.apart)
    if not choices:
        raise UserError("no frame is left to suggest: all are labelled, or too near to each other (see --apart)")
    images = write_suggestions(out, recordings, choices, data, project.layout if project else None, points, given.h5)
    _report(given, out, recordings, choices, images, project)
    return DONE


def _data(given: argparse.Namespace, runs: list[Path]) -> DataConfig:
    """Returns where the labels are, and for runs their keypoints."""
    data = read_run_configs(runs)[0].data if runs else DataConfig()
    changes = {name: getattr(given, name) for name in ("project", "labels") if getattr(given, name)}
    if given.views:
        changes["views"] = tuple(given.views.split(","))
        if runs and changes["views"] != data.views:
            raise UserError(f"--views is {given.views}, but the run has {','.join(data.views) or 'one camera'}")
    return dataclasses.replace(data, **changes)


def _labelled(project: ProjectLabels | None, recordings: list[Recording]) -> list[set[int]]:
    """Returns the frames of each recording that are labelled in one of its views."""
    frames = project.labelled_frames() if project else set()
    stems = [{video.stem for video in recording.videos.values()} for recording in recordings]
    return [{number for video, number in frames if video in of_recording} for of_recording in stems]


def _points(recordings: list[Recording], tracks: list[Tracks], choices: list[Choice]) -> Points:
    points = {}
    for choice in choices:
        of_recording = tracks[choice.recording]
        views = list(recordings[choice.recording].videos)
        of_views = np.split(of_recording.keypoints_px[choice.frame], len(views))
        points[choice.recording, choice.frame] = {
            view: dict(zip(of_recording.keypoint_names, of_view, strict=True))
            for view, of_view in zip(views, of_views, strict=True)
        }
    return points


def _report(
    given: argparse.Namespace,
    out: Path,
    recordings: list[Recording],
    choices: list[Choice],
    images: int,
    project: ProjectLabels | None,
) -> None:
    per_recording = [sum(choice.recording == place for choice in choices) for place in range(len(recordings))]
    for recording, frames in zip(recordings, per_recording, strict=True):
        print(f"{recording.name}: {count(frames, 'frame')}")
    if len(choices) < given.frames:
        print(f"only {len(choices)} of {given.frames} frames: the others are labelled or too near (see --apart)")
    print(f"{out}: {count(images, 'image')}, neighbours included")
    if project:
        flags = "".join(f" --{name} {getattr(given, name)}" for name in ("labels", "views") if getattr(given, name))
        merge = f"{program('jaxpose.labels')} merge {shlex.quote(str(out))}"
        print(f"correct the labels there, then: {merge} --project {shlex.quote(str(project.folder))}{flags}")
    else:
        print("no label file is written, because no project names the keypoints (see --project)")
