"""The names that metrics have in TensorBoard and in trackers: GROUP/NAME, so that a viewer shows them in groups."""

from jaxpose.config.losses import NAMES

# Of the errors that a finished run has.
RESULTS = "result/"
_RATES = {"learning_rate": "learning_rate/head", "backbone_learning_rate": "learning_rate/backbone"}


def tag_of(name: str) -> str:
    """Returns the tag of a metric of metrics.jsonl: val_loss is validation/loss, loss is train/loss."""
    if name in _RATES:
        return _RATES[name]
    if name.startswith("val_"):
        return f"validation/{name.removeprefix('val_')}"
    if name.startswith("process"):
        return f"speed/{name}"
    of_clips = name == "clip_factor" or name.removesuffix("_count") in NAMES
    return f"{'clips' if of_clips or name.startswith('consistency') else 'train'}/{name}"
