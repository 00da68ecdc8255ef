"""The unlabelled video of a training: its clips and single frames, opened and checked before its first step."""

import dataclasses

import jax.numpy as jnp

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.config import Config
from jaxpose.config.losses import LossesConfig, has_teacher, refuse_epsilons, weights
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.config.video import frames_per_clip
from jaxpose.data.sessions import clip_sessions
from jaxpose.data.video_boxes import boxes_of_videos
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.optim import clip_loss_factor
from jaxpose.video.clips import ClipSource, UnusableClips, open_clips
from jaxpose.video.key_frames import Stopped

# Single frames come from so many places of the videos at a time, as neighbours are nearly the same.
_MIXED_BLOCKS = 4


@dataclasses.dataclass(frozen=True)
class ClipStream:
    """An endless stream of clips of one length.

    Attributes:
      source: reads them.
      per_step: clips of an update.
      frames: of a whole clip.
    """

    source: ClipSource
    per_step: int
    frames: int


# By their name in a batch: `clips` for the losses on clips, `unlabelled` for the frames of a teacher.
ClipStreams = dict[str, ClipStream]


def open_clip_streams(config: Config, facts: DataFacts) -> tuple[ClipStreams, list[str]]:
    """Returns the streams of a training's clips, none without a loss on video, and messages for the user.

    Raises:
      UserError: a loss on clips does not fit the keypoints, or there is no video to draw clips from.
    """
    losses, video = config.losses, config.video
    lengths: dict[str, tuple[int, int, int]] = {}
    messages = []
    if weights(losses):
        refuse_epsilons(losses, len(config.data.keypoint_names))
        if reason := _why_they_never_count(losses, facts.total_steps, facts.steps_per_epoch):
            messages.append(f"the losses on clips never count: {reason}")
        lengths["clips"] = video.clips_per_step, frames_per_clip(video, config.model), 1
    if has_teacher(losses):
        if losses.consistency.start_steps >= facts.total_steps:
            start = f"losses.consistency.start_steps is {losses.consistency.start_steps}"
            steps = f"the training has {facts.total_steps} steps"
            messages.append(f"the teacher never counts: {start}, and {steps}; lower it, or train longer")
        window = 2 * CONTEXT_RADIUS[config.model.kind] + 1
        lengths["unlabelled"] = losses.consistency.frames_per_step, window, _MIXED_BLOCKS
    if not lengths:
        return {}, messages
    streams, notes = _open(config, lengths, "a loss on unlabelled video is on")
    return streams, [*messages, *notes]


def open_frames(config: Config, per_step: int) -> tuple[ClipStreams, list[str]]:
    """Returns the stream of single frames of a pretraining, so many in a step, and messages for the user.

    Raises:
      UserError: there is no video to draw frames from.
    """
    return _open(config, {"unlabelled": (per_step, 1, _MIXED_BLOCKS)}, "a pretraining learns from videos")


def _open(config: Config, lengths: dict[str, tuple[int, int, int]], why: str) -> tuple[ClipStreams, list[str]]:
    """Returns the streams by name, of {name: (per step, frames, mixed blocks)}, and the notes of their sources."""
    video = config.video
    sessions = clip_sessions(config.data, video, why)
    boxes_px = boxes_of_videos(config.data, [file for session in sessions for file in session])
    streams = {
        name: ClipStream(open_clips(sessions, frames, config.data, video.cache, boxes_px, mixed), per_step, frames)
        for name, (per_step, frames, mixed) in lengths.items()
    }
    notes = dict.fromkeys(note for stream in streams.values() for note in stream.source.notes)
    return streams, list(notes)


def close_clips(streams: ClipStreams) -> None:
    """Ends all decoding, in every thread, at the next frame; may be called by a signal handler."""
    for stream in streams.values():
        stream.source.close()


def require_usable_clips(streams: ClipStreams, step: int) -> None:
    """Raises UnusableClips on all processes if process 0 finds no usable clip of a stream from a step on."""

    def find() -> str:
        try:
            for stream in streams.values():
                stream.source.require_usable(step * stream.per_step)
        except UnusableClips as error:
            return str(error)
        except Stopped:
            pass  # a signal: the loop ends before its first step
        return ""

    if text := broadcast_from_0(find):
        raise UnusableClips(text)


def _why_they_never_count(losses: LossesConfig, total_steps: int, steps_per_epoch: int) -> str:
    """Returns why the factor of the losses on clips is 0 up to the last step, and the fix; "" if it is not."""

    def ends_at_zero(losses: LossesConfig) -> bool:
        return not clip_loss_factor(losses, jnp.int32(total_steps - 1), steps_per_epoch)

    if not ends_at_zero(losses):
        return ""
    if not losses.anneal_end:
        return "losses.anneal_end, the largest value of their factor, is 0; raise it"
    if not losses.anneal_increase_per_epoch:
        return (
            "their factor begins at losses.anneal_init = 0, and losses.anneal_increase_per_epoch is 0; raise one of "
            "the two"
        )
    until = f"their factor is 0 up to the last step, {total_steps}, in epoch {-(-total_steps // steps_per_epoch)}"
    if ends_at_zero(dataclasses.replace(losses, anneal_start_epochs=0.0)):
        return f"{until}, as it grows from 0 with every whole epoch; train longer, or raise losses.anneal_init"
    return f"{until}; lower losses.anneal_start_epochs = {losses.anneal_start_epochs:g}, or train longer"
