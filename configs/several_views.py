"""Several cameras: one network for all views, and a loss that compares the views in unlabelled video.

For:      two or more synchronised cameras. Set VIEWS to the names in your files:
          CollectedData_<view>.csv, labeled-data/<session>_<view>/, videos/<session>_<view>.mp4.
Reached:  not measured.
Cost:     not measured; --dry_run shows the cost of a step.
Command:  jaxpose train PROJECT_FOLDER --config configs/several_views.py
"""

from jaxpose import config as c

VIEWS = ("top", "side")


def get_config(project: str = "") -> c.Config:
    """Returns the config for a project folder."""
    return c.Config(
        data=c.DataConfig(project=project, views=VIEWS),
        # dlc-mv moves no pixels, so it preserves the geometry between the cameras.
        augment=c.AugmentConfig(preset="dlc-mv"),
        model=c.ModelConfig(backbone="resnet18"),
        # A point in space that several cameras see needs 3 components. Without videos, set the weight to 0.
        losses=c.LossesConfig(pca_multiview=c.PcaMultiviewConfig(weight=3e-4, components=3)),
    )
