"""Context frames: the network sees five frames, two on either side of the one that it predicts.

For:      keypoints that are hidden for one to three frames, in projects that have the frames around each labelled one
          (as image files beside it, or in the video that it was taken from; see docs/data.md), and where smoothing
          (`jaxpose predict --smooth`, no training) is not enough. Go on from a network of single frames with
          train.init_from=RUN optim.unfreeze_epoch=0 optim.unfreeze_factor=1; docs/choosing.md says why.
Reached:  synthetic animal with 10 labels, from random weights, 5 seeds, a smaller network: 20.44 px, worse than one
          frame alone (17.31 px). With 512 labels, going on from one frame, hidden keypoints, one seed: 3.64 px of
          frames of 64 px (one frame: 4.96 px; smoothed 3.43 and 3.79 px). Real frames: not measured.
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
