"""Context frames: the network sees five frames, the predicted one and two on either side.

For:      keypoints that are hidden for one to three frames, in projects that have the frames around each labelled one
          (as image files next to it, or in the source video; see docs/data.md), and where smoothing
          (`jaxpose predict --smooth`, no training) is not enough. Start from a single-frame network with
          train.init_from=RUN optim.unfreeze_epoch=0 optim.unfreeze_factor=1; docs/choosing.md says why.
Reached:  synthetic animal with 10 labels, from random weights, 5 seeds, a smaller network: 20.44 px, worse than one
          frame alone (17.31 px). With 512 labels, started from a single-frame network, hidden keypoints, one seed:
          3.64 px in frames of 64 px (one frame: 4.96 px; smoothed 3.43 and 3.79 px). Real frames: not measured.
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
