"""Checks the inputs of a training for --dry_run=data. Needs no device, and imports no jax."""

from pathlib import Path

import numpy as np

from jaxpose.config import SYNTHETICS, Config, resolve
from jaxpose.config.losses import on_video, refuse_epsilons
from jaxpose.config.model import NO_WEIGHTS, PUBLISHED
from jaxpose.config.train import refuse_blind_stop
from jaxpose.data.boxes import boxes_of_videos
from jaxpose.data.dataset import check_decoding, match_keypoints, refuse_other_animals
from jaxpose.data.inputs import clip_sessions, sessions
from jaxpose.data.label_files import extra_label_files
from jaxpose.data.project import Project
from jaxpose.data.report import data_report
from jaxpose.data.rigs import rigs_of_project
from jaxpose.data.skeleton import flip_permutation, refuse_unknown_names
from jaxpose.data.split import assign_sets
from jaxpose.data.synthetic import folder_of
from jaxpose.errors import need
from jaxpose.formats.project import prepare, read_project
from jaxpose.poses import VALIDATION
from jaxpose.remote.store import load_hook
from jaxpose.run.start_run import is_run, refuse_no_weights, refuse_other_weights, refuse_trained_frames
from jaxpose.run.weights import find_weights
from jaxpose.terminal import print_lines


def show_data(config: Config) -> None:
    """Prints the lines of `data_report`, then decodes every image and checks the other inputs.

    Args:
      config: as the user gave it.

    Raises:
      UserError: the project, or another input of the training, cannot be used.
    """
    if config.data.project in SYNTHETICS and not (folder := folder_of(config.data.project)).exists():
        print(f"the run will make the synthetic project in {folder}, which does not exist yet")
        return
    config, found = prepare(resolve(config))
    print_lines("\n".join(data_report(config, found)))
    _refuse_other_inputs(config, found, assign_sets(found, config.data))
    notes = check_decoding(found, config)
    print_lines("\n".join([*(f"{'note':12} {note}" for note in notes), "every image decodes"]))


def _refuse_other_inputs(config: Config, found: Project, sets: np.ndarray) -> None:
    """Checks a training's inputs other than labelled frames, in its order.

    Only the training and --dry_run find faults in the tensors of a network or in a fit to the labels.
    """
    data, names = config.data, config.data.keypoint_names
    load_hook(config.log.remote_hook)
    if config.log.tracker != "none":
        need(config.log.tracker, f"log.tracker={config.log.tracker}")
    for labels in extra_label_files(data):
        extra = match_keypoints(read_project(data, labels), names)
        refuse_other_animals(extra, data)
    if config.eval.predict_videos != "no":
        sessions(data, config.video)
    refuse_unknown_names(names, data.flip_pairs)
    if config.augment.flip_p:
        flip_permutation(names, data.flip_pairs)
    rigs_of_project(config, found)
    _refuse_weights(config, found, sets)
    refuse_blind_stop(config.train, bool((sets == VALIDATION).any()))
    refuse_epsilons(config.losses, len(names))
    if on_video(config.losses):
        boxes_of_videos(data, [file for session in clip_sessions(data, config.video) for file in session])


def _refuse_weights(config: Config, found: Project, sets: np.ndarray) -> None:
    """Checks the weights of `train.init_from`, or else `model.weights`; published ones may still have to be fetched."""
    given, option = config.train.init_from, "train.init_from"
    if not given:
        given, option = config.model.weights, "model.weights"
        if given == NO_WEIGHTS or given in PUBLISHED:
            return
        if not is_run(Path(given)):
            find_weights(given, option)
            return
    refuse_other_weights(refuse_no_weights(Path(given)).model, config.model, Path(given), option)
    refuse_trained_frames(Path(given), found, sets, option)
