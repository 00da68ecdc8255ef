"""A pretrained backbone: a ResNet-50 with the weights of ImageNet, fine-tuned on the labelled frames.

For:      projects of some tens to some hundreds of labelled frames. The weights are fetched from the Hugging Face hub
          once; docs/weights.md has other names, and says what to do without a network.
Reached:  not measured: this config was written without a network. The command below measures it, and the same command
          with model.weights=none the difference; both end with the errors of every set.
Cost:     not measured; --dry_run shows what a step costs.
Command:  jaxpose train PROJECT_FOLDER --config configs/pretrained.py
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project),
        augment=c.AugmentConfig(preset="dlc"),
        # frozen: the published statistics stay, because a batch of 16 frames of one experiment gives poorer ones.
        model=c.ModelConfig(backbone="resnet50", weights="resnet50_imagenet", norm="frozen"),
    )
