"""The choices of the network for a project: backbone, weights, norm, and views that agree."""

from collections.abc import Iterator

from jaxpose.config import Config
from jaxpose.config.model import BACKBONES
from jaxpose.config.optim import OptimConfig
from jaxpose.config.weights import NO_WEIGHTS, PUBLISHED
from jaxpose.init.choice import BATCH, FEW_FRAMES, Choice
from jaxpose.init.facts import Facts
from jaxpose.init.names import mirrored_views

_FRAMES_FOR_RESNET50 = 200
# Of benchmarks/few_labels.py, with views that agree and without.
_FRAMES_FOR_VIEWS = 10


def network_choices(facts: Facts, config: Config) -> Iterator[Choice]:
    """Yields the choices that concern the network, whose backbone is settled."""
    backbone, weights = config.model.backbone, config.model.weights
    if weights in PUBLISHED:
        reason = f"The one that {weights} fits."
    elif backbone == "resnet50":
        reason = "The usual size for hundreds of labelled frames and a GPU."
    else:
        fit = "few labels" if facts.gpu_gib else "a machine without a GPU"
        reason = (
            f"resnet18 trains fast and suits {fit}; configs/small.py has what it reached with 72 frames. Try resnet50 "
            f"with {_FRAMES_FOR_RESNET50} frames and a GPU."
        )
    yield Choice("Network", reason, {"model.backbone": backbone})
    if weights == NO_WEIGHTS:
        names = " or ".join(name for name, published in PUBLISHED.items() if published.backbone == backbone)
        reason = "Random: the same command then works without a network." + (
            f" Published weights usually need fewer labels: {names}, fetched once from the Hugging Face hub "
            "(docs/weights.md). How much they help here is not measured."
            if names
            else ""
        )
        yield Choice("Initial weights", reason, {"model.weights": NO_WEIGHTS})
    elif BACKBONES[backbone].has_width:
        yield _norm(weights)
    if views := () if config.data.views else mirrored_views(facts.keypoint_names):
        yield _views(facts, config, views)
    if (rate := BACKBONES[backbone].learning_rate) != OptimConfig.lr:
        reason = "Lightning Pose's advice for vision transformers; the default, 1e-3, is for ResNets."
        yield Choice("Learning rate", reason, {"optim.lr": rate})


def _views(facts: Facts, config: Config, views: tuple[tuple[str, ...], ...]) -> Choice:
    named = {"losses.pca_multiview.views": tuple(map(",".join, views))}
    title = "Views that agree"
    reason = ""
    if facts.frames < _FRAMES_FOR_VIEWS:
        reason = f"below {_FRAMES_FOR_VIEWS} labelled frames nothing was measured"
    elif config.model.kind == "regression" or config.model.decoding != "fit":
        reason = "the network that was given has no heatmaps to compare, or decodes them as Lightning Pose does"
    elif config.losses.pca_multiview.components != 3:
        reason = "it needs losses.pca_multiview.components=3"
    elif config.data.boxes:
        reason = "data.boxes cuts another part out of each frame"
    elif facts.sizes > 1:
        reason = f"the labelled images have {facts.sizes} sizes, perhaps of cameras that see the views from elsewhere"
    if reason:
        return Choice(title, f"Off: {reason}.", {"model.views_agree": False, **named})
    reason = (
        "A prediction in one view also takes account of what the other view shows of the body part, so that one of two "
        "similar paws is not mistaken for the other. It lowered the error of the mouse example with 10 to 40 labels "
        "(docs/few_labels.md); other data were not measured. Set it to False if these are not views of one body."
    )
    return Choice(title, reason, {"model.views_agree": True, **named})


def _norm(weights: str) -> Choice:
    if weights in PUBLISHED and PUBLISHED[weights].norm_groups:
        groups = PUBLISHED[weights].norm_groups
        reason = f"The network was trained with {groups} groups."
        return Choice("Norm", reason, {"model.norm": "group", "model.norm_groups": groups})
    reason = f"The loaded statistics stay: a batch of {BATCH} frames of one experiment gives poorer ones."
    return Choice("Norm", reason, {"model.norm": "frozen"})


def backbone_for(facts: Facts, config: Config) -> str:
    """Returns the backbone that the weights, or else the labels and the machine, suggest."""
    if config.model.weights in PUBLISHED:
        return PUBLISHED[config.model.weights].backbone
    has_many = facts.frames >= _FRAMES_FOR_RESNET50 and facts.training_frames > FEW_FRAMES
    return "resnet50" if facts.gpu_gib and has_many else "resnet18"
