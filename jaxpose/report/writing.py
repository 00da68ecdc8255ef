"""Writes the report of a run: report.html, with all its pictures and figures inside."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxpose import geometry
from jaxpose.config import Config
from jaxpose.config.data import resolve_preset
from jaxpose.config.model import pixel_scale, views_at_once
from jaxpose.config.train import steps_per_epoch
from jaxpose.data.images import fit_affines, outside_parts, read_labelled
from jaxpose.data.loader import draws_of_views, equalize_samples, moments_of_rows, rows_of_draws
from jaxpose.data.project import Project
from jaxpose.data.skeleton import flip_permutation
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.pose import augment
from jaxpose.poses import TRAIN, VISIBLE, Poses
from jaxpose.progress import phase
from jaxpose.report.errors import confidence_section, confusions_section, errors_section, sets_section, worst_section
from jaxpose.report.facts import RunFacts, edges_of_run, read_facts, read_labels
from jaxpose.report.headline import comparing_section, headline_section, parent_section
from jaxpose.report.page import Section, escaped, make_page, paragraph
from jaxpose.report.pictures import draw_picture
from jaxpose.report.traces import traces_section
from jaxpose.report.training import learning_section, read_history, running_section, settings_section
from jaxpose.run.paths import REPORT_FILE, run_folder
from jaxpose.steps.labelled import AUGMENTATION, LABELLED, masked_patches, used_keypoints

# The section of training frames as the network sees them: fitted into its input and augmented, with their labels.

_TITLE = "What the network saw"
_FRAMES, _LONGEST_PX = 8, 320


def augmented_section(facts: RunFacts, project: Project | None) -> Section:
    """Returns the first samples of the training; `project` is None if it cannot be read."""
    if project is None or facts.split is None:
        return Section("augmented", _TITLE, paragraph("The project cannot be read, so there are no pictures."))
    try:
        seen, shown = first_samples(facts, project)
    except (UserError, OSError) as error:
        return Section("augmented", _TITLE, paragraph(f"There are no pictures: {error}"))
    edges, pictures = edges_of_run(facts.config.data), []
    for text, frame, points_px in zip(seen.frames, shown, seen.points_px[:, 0], strict=True):
        picture = draw_picture(frame, seen.keypoint_names, edges, text, _LONGEST_PX, labelled_px=points_px)
        pictures.append(f"<figure>{picture}<figcaption>{escaped(text)}</figcaption></figure>")
    height, width = shown.shape[1:3]
    text = (
        f"The first {len(pictures)} training samples, drawn again from the seeds of the run: labelled frames, fitted "
        f"into the network's input of {width} x {height} px and augmented (augment.preset: "
        f"{facts.config.augment.preset}), with their labels as rings. The rings must lie on the keypoints."
        + " A keypoint that a moved part covers has none (augment.move_p)."
        * (facts.config.augment.move_p != 0)
    )
    return Section("augmented", _TITLE, paragraph(text) + f'<div class="frames">{"".join(pictures)}</div>')


def first_samples(facts: RunFacts, project: Project) -> tuple[Poses, np.ndarray]:
    """Returns the first samples of a training, as its first steps get them, and their frames (m, h, w, 3), uint8 RGB.

    A point is NaN where no target is drawn.

    Raises:
      UserError: the labelled frames are no longer those of the training, or an image cannot be used.
      OSError: an image cannot be read.
    """
    config, split = facts.config, facts.split
    assert split is not None
    if list(project.poses.frames) != list(split.sets):
        raise UserError("the labelled frames of the project have changed since training")
    rows = np.flatnonzero(np.array(list(split.sets.values())) == TRAIN)
    views = views_at_once(config.model, config.data.views)
    if views > 1:
        rows = moments_of_rows(rows, project.rows_of_moments())
    draws = np.arange(min(-(-_FRAMES // views), len(rows)))
    chosen = rows_of_draws(draws, rows, config.data.seed).reshape(-1)
    draws = draws_of_views(draws, views)[chosen >= 0]
    chosen = chosen[chosen >= 0]
    data = config.data
    size_px = data.input_width_px, data.input_height_px
    affines = fit_affines(project, data, size_px)
    frames = np.stack([read_labelled(project, row, affines[row], size_px, data) for row in chosen.tolist()])[:, None]
    is_used = np.where(outside_parts(project, data.crop_px), np.int8(0), project.visibility)[chosen]
    keypoints_px = geometry.apply(affines, project.keypoints_frame_px)[chosen].astype(np.float32)
    options = dataclasses.replace(config, augment=resolve_preset(config.augment))
    equalize_samples(frames, draws, np.ones(len(draws), bool), config.train.seed, options.augment)
    frame_from_input = geometry.invert(affines[chosen]).astype(np.float32)
    seen, moved_px, visibility = _augment(
        options, draws, frames, keypoints_px, is_used, frame_from_input, steps_per_epoch(config.train, len(rows))
    )
    points = np.where((visibility == VISIBLE)[..., None], moved_px, np.nan)
    images = [project.poses.frames[row] for row in chosen.tolist()]
    poses = Poses.of_one_animal(config.data.keypoint_names, images, points, pixels="input")
    return poses, np.clip(np.rint(seen[:, 0]), 0, 255).astype(np.uint8)


def _augment(
    config: Config, draws: np.ndarray, frames: np.ndarray, keypoints_px: np.ndarray, visibility: np.ndarray,
    frame_from_input: np.ndarray, epoch_steps: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Returns frames (m, t, h, w, 3), keypoints and visibility as the train step augments them, in float32."""
    names, options = config.data.keypoint_names, config.augment
    permutation = flip_permutation(names, config.data.flip_pairs) if options.flip_p else None

    def work(draw, frames, keypoints_px, visibility, frame_from_input):
        keys = augment.sample_keys(config.train.seed, LABELLED, draw, AUGMENTATION)
        drawn = augment.draw_params(keys, options, frame_from_input, frames.shape[2:4])
        moved_px, seen = augment.move_keypoints(drawn, options, keypoints_px, visibility, permutation)
        seen = used_keypoints(moved_px, seen, frames.shape[2:4], config.model)
        pictures = augment.render(drawn, options, frames, jnp.float32)
        if options.mask_share:
            masked = masked_patches(draw, config.train.seed, config, epoch_steps, frames.shape[2:4])
            pictures = augment.mask_patches(pictures, masked, pixel_scale(config.model.weights).mean)
        return pictures, moved_px, seen

    # One device of this process: the others may be busy, or not ours.
    with jax.default_device(jax.local_devices()[0]), pinned_settings("f32"):
        given = draws.astype(np.int32), frames, keypoints_px, visibility.astype(np.int8), frame_from_input
        return jax.device_get(jax.jit(work)(*given))


def write_report(run: Path, out: Path | None = None, other: Path | None = None, project: Project | None = None) -> Path:
    """Writes the report of a run, and returns the file.

    Args:
      run: a run folder, or a folder of runs, whose newest is used; it may be unfinished.
      out: the file; None means report.html in the run folder.
      other: a run to compare with; None is the parent of the run, if it has one.
      project: the labelled frames of the run, if the caller has read them.

    Raises:
      UserError: the folder is not a run, a file in it is damaged, or the runs cannot be compared.
      OSError: the file cannot be written.
    """
    run, other = Path(run_folder(run)), Path(run_folder(other)) if other else None
    file = out or run / REPORT_FILE
    with phase("writing the report"):
        facts = read_facts(run)
        labels, problem = _labels(facts, project)
        history = read_history(facts.run)
        traces, videos = traces_section(facts)
        sections = [
            headline_section(facts, labels),
            *([comparing_section(facts, other)] if other else parent_section(facts)),
            learning_section(facts, history),
            errors_section(facts),
            worst_section(facts, labels),
            confidence_section(facts),
            confusions_section(facts, labels),
            traces,
            augmented_section(facts, labels),
            sets_section(facts),
            settings_section(facts),
            running_section(facts, history),
        ]
        if problem:
            sections.insert(1, Section("problem", "Missing from this page", paragraph(problem)))
        page = make_page(f"Run {run.resolve().name}", sections, videos, facts.config.data.keypoint_names)
        write_atomic(file, page.encode())
    return file


def _labels(facts: RunFacts, project: Project | None) -> tuple[Project | None, str]:
    """Returns the labels of the run's project, or why they cannot be read."""
    try:
        return read_labels(facts.config.data, project), ""
    except (UserError, OSError) as error:
        return None, f"The project cannot be read: {error}"
