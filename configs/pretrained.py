"""A pretrained backbone: a ResNet-50 with ImageNet weights, fine-tuned on the labelled frames.

For:      projects with tens to hundreds of labelled frames. The weights are downloaded once from the Hugging Face Hub;
          docs/weights.md lists other weights, and explains how to work offline.
Reached:  not measured: this config was written offline. To measure the gain, run the command below with and without
          model.weights=none; both end with the errors of every set.
Cost:     not measured; --dry_run shows the cost of a step.
Command:  jaxpose train PROJECT_FOLDER --config configs/pretrained.py
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project),
        augment=c.AugmentConfig(preset="dlc"),
        # frozen: keeps the published statistics, which are better than those of 16 frames of one experiment.
        model=c.ModelConfig(backbone="resnet50", weights="resnet50_imagenet", norm="frozen"),
    )
