"""Semi-supervised training: labelled frames, and two losses on clips of unlabelled video.

For:      few labels and a lot of video, if the predictions jump or show impossible poses. One loss penalises jumps, the
          other poses unlike any labelled one. Put the videos into PROJECT_FOLDER/videos.
Reached:  mirror-mouse-example, one seed, the PCA with the 14 keypoints of the body: jumps in 1.6 % of the predictions
          (without the losses 5.4 %), unlikely poses in 0.8 % (7.5 %), mean error 6.06 px (5.95 px; one seed cannot
          separate these). In that run, the factor of the losses grew with each step, not with each epoch. Synthetic
          animal with 10 labels, 5 seeds: the mean error of 17.21 px falls by 0.55 +- 0.27 px (standard error). All with
          norm=sync.
Cost:     1118 CPU ms a step on one core (without the losses 632).
Command:  jaxpose train PROJECT_FOLDER --config configs/semi_supervised.py
"""

from jaxpose import config as c


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project, input_height_px=128, input_width_px=128, resize="stretch"),
        augment=c.AugmentConfig(preset="dlc"),
        model=c.ModelConfig(backbone="resnet18"),
        video=c.VideoConfig(clips_per_step=1, sequence_length=16),
        losses=c.LossesConfig(
            # Set epsilon_px to more than the animal really moves between two frames.
            temporal=c.TemporalConfig(weight=3e-4, epsilon_px=(20.0,)),
            # List the keypoints of the pose without those that are often missing; () takes all.
            pca_singleview=c.PcaSingleviewConfig(weight=3e-4, keypoints=()),
            # The network first learns only from labels; then the factor of the losses grows over 20 epochs.
            anneal_start_epochs=27,
            anneal_increase_per_epoch=0.05,
        ),
        optim=c.OptimConfig(milestones_epochs=(67.6, 90, 112.6)),
        train=c.TrainConfig(epochs=135, val_every_epochs=10),
    )
