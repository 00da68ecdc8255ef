"""A small data set, trained from scratch: about 100 labelled frames, no pretrained weights, no GPU.

For:      a first network from few labels, without pretrained weights. With 72 training frames, 135 epochs of 5 steps
          of 16 frames show each frame 150 times.
Reached:  mirror-mouse-example (72 training frames of 396 x 406 px): 5.91 +- 0.08 px mean error on 18 held-out frames, 5
          seeds, with model.head=lightning_pose; Lightning Pose 2.4.0 has 7.44 px, 2 seeds. benchmarks/accuracy.md has
          the protocol and the split. The default head: see docs/ten_minutes.md (60 epochs) and docs/choosing.md.
Cost:     720 CPU ms a step on one core of an AMD EPYC, so about 8 minutes of CPU time.
Command:  jaxpose train PROJECT_FOLDER --config configs/small.py
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project, input_height_px=128, input_width_px=128, resize="stretch"),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(backbone="resnet18"),
        # The learning rate halves three times in the second half.
        optim=c.OptimConfig(milestones_epochs=(67.6, 90, 112.6)),
        train=c.TrainConfig(epochs=135, val_every_epochs=10),
    )
