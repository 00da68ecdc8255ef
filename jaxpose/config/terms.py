"""The terms of a run's objective as the config defines them: the frames and the losses of each."""

import dataclasses

from jaxpose.config.data import frames_per_clip
from jaxpose.config.losses import weights
from jaxpose.config.model import CONTEXT_RADIUS, views_at_once
from jaxpose.config.root import Config
from jaxpose.terminal import count

# Single frames are drawn from this many places of the videos at a time, because neighbours are nearly equal.
_MIXED_BLOCKS = 4
# The losses of a finder. The loss of the offsets is a mean over all cells near a centre and all keypoints, so that with
# weight 1 its gradient in the backbone was a tenth of that of the centres: after 400 steps on synthetic-group, the
# network knew the centre, but not where the head is (a mean error of 11.5 px). With this weight and narrower peaks of
# the centres, it was 4.0 px.
_OF_FINDER = {"centre_loss": 1.0, "offset_loss": 20.0}


@dataclasses.dataclass(frozen=True)
class Stream:
    """The frames that a term learns from: an endless stream; each step takes the next ones.

    Attributes:
      name: in a batch: `labelled`, or for video `clips` or `unlabelled`.
      per_step: labelled frames, or clips, of an update.
      option: the option that sets `per_step`.
      frames: per clip; a frame with its neighbours is a clip of a single window.
      mixed_blocks: places of the videos that the clips come from at a time.
    """

    name: str
    per_step: int
    option: str
    frames: int
    mixed_blocks: int = 1

    @property
    def line(self) -> str:
        """The frames that one update takes, in words."""
        if self.name == "clips":
            return f"{self.per_step} of {self.frames} frames a step"
        neighbours = f" with {self.frames - 1} neighbours each" * (self.frames > 1)
        return f"{count(self.per_step, 'frame')} a step{neighbours}"

    @property
    def is_video(self) -> bool:
        """Whether its frames come from unlabelled video."""
        return self.name != "labelled"


@dataclasses.dataclass(frozen=True)
class TermFacts:
    """A term of the objective, as far as the config defines it; `jaxpose.steps.terms.Term` computes it.

    Attributes:
      name: the term's.
      stream: its frames; no two terms of an objective share a stream.
      losses: its losses by the name of their metric, each with its multiple of the term's factor.
      factor: metric that is the factor of the term at a step; "" if it is always 1.
      follows_average: it learns predictions of the moving average of the weights, for each keypoint above a threshold
        in the state.
    """

    name: str
    stream: Stream
    losses: dict[str, float]
    factor: str = ""
    follows_average: bool = False


def terms(config: Config) -> tuple[TermFacts, ...]:
    """Returns the terms of a run's objective, in the order in which their sums are added."""
    losses, video, train = config.losses, config.video, config.train
    if (method := config.pretrain.method) != "none":
        frames = Stream("unlabelled", train.batch_size, "train.batch_size", 1, _MIXED_BLOCKS)
        return (TermFacts(method, frames, {method: 1.0}),)
    window = 2 * CONTEXT_RADIUS[config.model.kind] + 1
    labelled = Stream("labelled", train.batch_size, "train.batch_size", window)
    if (views := views_at_once(config.model, config.data.views)) > 1:
        labelled = Stream("labelled", views * train.batch_size, f"train.batch_size (of {views} frames)", window)
    if config.model.kind == "finder":
        return (TermFacts("finder", labelled, _OF_FINDER),)
    on_labelled = {"supervised_loss": 1.0}
    if losses.reprojection.weight:
        on_labelled["reprojection"] = losses.reprojection.weight
    found = [TermFacts("labelled", labelled, on_labelled)]
    if on_clips := weights(losses):
        clips = Stream("clips", video.clips_per_step, "video.clips_per_step", frames_per_clip(video, config.model))
        found.append(TermFacts("clips", clips, on_clips, "clip_factor"))
    if losses.consistency.weight:
        per_step, option = losses.consistency.frames_per_step, "losses.consistency.frames_per_step"
        frames = Stream("unlabelled", per_step, option, window, _MIXED_BLOCKS)
        found.append(TermFacts("consistency", frames, {"consistency": 1.0}, "consistency_factor", True))
    return tuple(found)
