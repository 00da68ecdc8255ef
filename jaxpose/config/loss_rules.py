"""Rules about the losses on unlabelled video: each function yields a line for every broken rule."""

from collections.abc import Callable, Iterable, Iterator

from jaxpose.config import losses
from jaxpose.config.root import Config


def _factors(config: Config) -> Iterator[str]:
    """Rules about the weights of the losses: a step multiplies them in float32."""
    end, least = config.losses.anneal_end, losses.SMALLEST_FACTOR
    on_clips = losses.weights(config.losses)
    for name, weight in losses.on_video(config.losses).items():
        if 0 < weight < least:
            why = "float32 may round a smaller one to 0"
            yield f"losses.{name}.weight is {weight:g}; it must be 0 or at least {least:g}: {why}"
        if name in on_clips and weight * end > losses.LARGEST_FACTOR:
            most = f"at most {losses.LARGEST_FACTOR:g}"
            yield f"losses.anneal_end is {end:g}; times the factor {weight:g} of losses.{name} it must be {most}"


def _clips(config: Config) -> Iterator[str]:
    """Rules about the network and the clips that a loss on clips needs."""
    kind, video, on = config.model.kind, config.video, losses.weights(config.losses)
    for name in on:
        loss = getattr(config.losses, name)
        if kind == "regression" and loss.on_maps:
            yield f"losses.{name} compares heatmaps, and model.kind=regression has none: use losses.temporal"
        if kind == "heatmap_context" and video.context_sequence_length == 5 and loss.on_pairs:
            few = "video.context_sequence_length = 5 gives one prediction a clip: raise it"
            yield f"losses.{name} compares neighbours, and {few}"
    if video.scale_min > video.scale_max:
        yield f"video.scale_min is {video.scale_min:g}, above video.scale_max = {video.scale_max:g}"


def _teacher(config: Config) -> Iterator[str]:
    options = config.losses.consistency
    if options.scale_min > options.scale_max:
        low, high = f"{options.scale_min:g}", f"{options.scale_max:g}"
        yield f"losses.consistency.scale_min is {low}, above losses.consistency.scale_max = {high}"
    if not options.weight:
        return
    if config.model.kind == "regression":
        yield "losses.consistency compares heatmaps, and model.kind=regression has none: use losses.temporal"
    if config.optim.ema_decay == 0:
        yield "losses.consistency is on, and optim.ema_decay is 0; leave it out: the moving average is the teacher"


def _pca(config: Config) -> Iterator[str]:
    cameras, views, on = config.data.views, config.losses.pca_multiview.views, losses.weights(config.losses)
    if "pca_singleview" in on and cameras:
        yield "losses.pca_singleview is on, but data.views names several cameras: use losses.pca_multiview"
    for entry in views:
        if not all(name.strip() for name in entry.split(",")):
            yield f"losses.pca_multiview.views has an empty name in {entry!r}"
    if cameras and views:
        why = "data.views names several cameras, whose keypoints are all compared: give only one of the two"
        yield f"losses.pca_multiview.views is {views!r}, but {why}"
    if "pca_multiview" in on and not cameras and len(views) < 2:
        fix = "name the matching keypoints of each in losses.pca_multiview.views"
        yield f"losses.pca_multiview is on, but there is one view: {fix}"
    if config.model.views_agree:
        if config.model.kind == "regression":
            yield "model.views_agree compares heatmaps, and model.kind=regression has none: leave it out"
        if config.model.decoding != "fit":
            yield f"model.views_agree needs model.decoding=fit, and it is {config.model.decoding}"
        if cameras:
            yield "model.views_agree compares views in one frame, and data.views names several cameras: leave it out"
        elif config.data.boxes:
            why = "data.boxes cuts another part out of each: leave one of them out"
            yield f"model.views_agree compares places of whole frames, and {why}"
        elif len(views) < 2:
            fix = "name the matching keypoints of each in losses.pca_multiview.views"
            yield f"model.views_agree is on, but there is one view: {fix}"
        elif (kept := config.losses.pca_multiview.components) != 3:
            yield f"model.views_agree is on, and losses.pca_multiview.components is {kept}; views of a point need 3"
    for name in ("pca_singleview", "pca_multiview"):
        epsilon_px = getattr(config.losses, name).epsilon_px
        if epsilon_px is not None and epsilon_px < 0:
            yield f"losses.{name}.epsilon_px is {epsilon_px:g}; it must be at least 0, or none"


# In the order in which their lines are shown.
LOSS_RULES: tuple[Callable[[Config], Iterable[str]], ...] = (_factors, _clips, _teacher, _pca)
