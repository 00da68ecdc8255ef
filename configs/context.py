"""Context frames: the network sees five frames, two on either side of the one that it predicts.

For:      keypoints that are hidden or blurred for a few frames, in projects that have the frames around each labelled
          one (as image files beside it, or in the video that it was taken from; see docs/data.md).
Reached:  synthetic animal with 10 labels, 5 seeds, a smaller network: 20.44 px, worse than one frame alone (17.31 px).
          Real frames: not measured.
Cost:     174 CPU ms a step in that benchmark (37 with one frame).
Command:  jaxpose train PROJECT_FOLDER --config configs/context.py
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project, input_height_px=128, input_width_px=128),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(kind="heatmap_context", backbone="resnet18"),
        optim=c.OptimConfig(milestones_epochs=(67.6, 90, 112.6)),
        train=c.TrainConfig(epochs=135, val_every_epochs=10),
    )
