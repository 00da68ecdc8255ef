"""The unlabelled video of a training: its clips and single frames, opened and checked before its first step."""

import dataclasses

import jax.numpy as jnp

from jaxpose.cluster.agreement import broadcast_from_0
from jaxpose.config import Config
from jaxpose.config.losses import LossesConfig, refuse_epsilons, weights
from jaxpose.config.terms import terms
from jaxpose.data.sessions import clip_sessions
from jaxpose.data.video_boxes import boxes_of_videos
from jaxpose.steps.data_facts import DataFacts
from jaxpose.steps.optim import clip_loss_factor
from jaxpose.video.clips import ClipSource, UnusableClips, open_clips
from jaxpose.video.key_frames import Stopped


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


# By their name in a batch: see `jaxpose.config.terms.Stream`.
ClipStreams = dict[str, ClipStream]


def open_clip_streams(config: Config, why: str) -> tuple[ClipStreams, list[str]]:
    """Returns the streams of video of the objective's terms, if any, and messages for the user.

    Args:
      config: the run's config.
      why: why they are needed, for a message.

    Raises:
      UserError: there is no video to draw clips from.
    """
    video, wanted = config.video, [term.stream for term in terms(config) if term.stream.is_video]
    if not wanted:
        return {}, []
    sessions = clip_sessions(config.data, video, why)
    boxes_px = boxes_of_videos(config.data, [file for session in sessions for file in session])
    streams = {}
    for stream in wanted:
        source = open_clips(sessions, stream.frames, config.data, video.cache, boxes_px, stream.mixed_blocks)
        streams[stream.name] = ClipStream(source, stream.per_step, stream.frames)
    notes = dict.fromkeys(note for stream in streams.values() for note in stream.source.notes)
    return streams, list(notes)


def check_losses_on_video(config: Config, facts: DataFacts) -> list[str]:
    """Returns messages about losses on unlabelled video that never count.

    Raises:
      UserError: a loss on clips does not fit the keypoints.
    """
    losses, messages = config.losses, []
    refuse_epsilons(losses, len(config.data.keypoint_names))
    if weights(losses) and (reason := _why_they_never_count(losses, facts.total_steps, facts.steps_per_epoch)):
        messages.append(f"the losses on clips never count: {reason}")
    if losses.consistency.weight and losses.consistency.start_steps >= facts.total_steps:
        start = f"losses.consistency.start_steps is {losses.consistency.start_steps}"
        steps = f"the training has {facts.total_steps} steps"
        messages.append(f"the teacher never counts: {start}, and {steps}; lower it, or train longer")
    return messages


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
