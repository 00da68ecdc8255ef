"""The default experiment: supervised heatmap training.

    python -m jaxpose.train --config configs/pose.py                    a small synthetic project, about 2 minutes
    python -m jaxpose.train --config configs/pose.py:PROJECT_FOLDER     a real one
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder, or for the synthetic project where none is given."""
    return c.Config(data=c.DataConfig(project=project)) if project else _synthetic()


def _synthetic() -> c.Config:
    return c.Config(
        data=c.DataConfig(project="synthetic", split="video", train_share=0.7, val_share=0.1),
        augment=c.AugmentConfig(preset="dlc-top-down"),
        model=c.ModelConfig(backbone="resnet18", width=16),
    )
