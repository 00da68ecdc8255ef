"""The default experiment: supervised heatmap training.

python -m jaxpose.train --config configs/pose.py                    a small synthetic project, about 2 minutes
python -m jaxpose.train --config configs/pose.py:PROJECT_FOLDER     a real one
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder, or for the synthetic project where none is given."""
    return c.Config(data=c.DataConfig(project=project)) if project else _synthetic()


def _synthetic() -> c.Config:
    """Returns a small net for a synthetic animal that turns all the way round: accurate after a minute on 2 cores."""
    return c.Config(
        data=c.DataConfig(project=c.SYNTHETIC, split="video", train_share=0.7, val_share=0.1),
        augment=c.AugmentConfig(preset="dlc", rotate_p=1.0, rotate_deg=180.0),
        model=c.ModelConfig(backbone="resnet18", width=16),
        optim=c.OptimConfig(lr=5e-3, schedule="cosine"),
        train=c.TrainConfig(epochs=50, val_every_epochs=10),
    )
