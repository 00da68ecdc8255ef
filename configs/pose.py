"""The default: a network that learns from labelled frames only.

For:      a first run on any project, and the base of all other configs.
Reached:  synthetic project: a mean error of 1.23 px (median 1.01 px) on the test frames of 128 px; see docs/start.md.
          A real project with these defaults (resnet50): not measured.
Cost:     synthetic project: 5 min on 2 CPU cores shared with other work. A real project: not measured; --dry_run
          shows the cost of a step.
Command:  jaxpose train --config configs/pose.py    (the synthetic project)
          jaxpose train PROJECT_FOLDER
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder, or for the synthetic project if none is given."""
    if project == c.SYNTHETIC_GROUP:
        # An epoch has more boxes of animals than frames, so the length is in steps.
        return _synthetic(project, c.TrainConfig(steps=800, val_every_epochs=5))
    if project:
        return c.Config(data=c.DataConfig(project=project))
    return _synthetic(c.SYNTHETIC, c.TrainConfig(epochs=50, val_every_epochs=10))


def _synthetic(project: str, train: c.TrainConfig) -> c.Config:
    """Returns small networks for synthetic animals that turn to all sides."""
    return c.Config(
        data=c.DataConfig(project=project, split="video", train_share=0.7, val_share=0.1),
        augment=c.AugmentConfig(preset="dlc", rotate_p=1.0, rotate_deg=180.0),
        model=c.ModelConfig(backbone="resnet18", width=16),
        optim=c.OptimConfig(lr=5e-3, schedule="cosine"),
        train=train,
    )
