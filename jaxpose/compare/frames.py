"""Which frames are compared: those that none of the runs trained on, measured from the same labels."""

import dataclasses

from jaxpose.compare.run_errors import Frame, RunErrors
from jaxpose.errors import UserError


@dataclasses.dataclass(frozen=True)
class Frames:
    """How many frames were compared, and how many were not.

    Attributes:
      is_paired: whether all runs are measured on the same frames.
      compared: frames of each run.
      validated: those of `compared` that validated one of the runs, and so may have chosen its checkpoint.
      trained: frames left out because they trained one of the runs.
      not_shared: frames left out because a run lacks them.
      other_labels: images that all runs have, but measured from different labels; left out if the runs share others.
      unknown: frames left out because they were labelled after a run was trained.
    """

    is_paired: bool
    compared: list[int]
    validated: int
    trained: int
    not_shared: int
    other_labels: int
    unknown: int


def choose_frames(read: list[RunErrors], test_only: bool) -> tuple[list[list[Frame]], Frames]:
    """Returns the frames on which each run is measured, and how many these are.

    Args:
      read: the runs.
      test_only: leave out frames that validated one of them.

    Raises:
      UserError: no frame is left.
    """
    trained = frozenset[str]().union(*(run.trained for run in read))
    validated = frozenset[str]().union(*(run.validated for run in read))
    every = list(dict.fromkeys(frame for run in read for frame in run.frames))
    held = {frame.image_sha256 for frame in every}
    usable = [frame for frame in every if frame.image_sha256 not in (trained | validated if test_only else trained)]
    shared = [frame for frame in usable if all(frame in run.frames for run in read)]
    is_paired = bool(shared) or any(all(frame in run.frames for run in read) for frame in every)
    chosen = [shared if is_paired else [frame for frame in usable if frame in run.frames] for run in read]
    if not all(chosen):
        empty = next(run.run for run, frames in zip(read, chosen, strict=True) if not frames)
        what = "test frame" if test_only else "validation or test frame"
        raise UserError(
            f"{'the runs share' if is_paired else f'{empty} has'} no {what}: "
            f"{len(trained & held)} of {len(held)} frames trained one of the runs. "
            "Train with data.split=RUN, so that the runs have the same split"
        )
    kept = set(shared)
    missing = {frame.image_sha256 for frame in usable if is_paired and frame not in kept}
    images = [{frame.image_sha256 for frame in run.frames} for run in read]
    not_same = {frame.image_sha256 for frame in usable if frame not in kept}
    frames = Frames(
        is_paired=is_paired,
        compared=[len(of_run) for of_run in chosen],
        validated=len({frame for of_run in chosen for frame in of_run if frame.image_sha256 in validated}),
        trained=len(trained & held),
        not_shared=len(missing),
        other_labels=sum(all(image in of_run for of_run in images) for image in not_same),
        unknown=sum(run.unknown for run in read),
    )
    return chosen, frames
