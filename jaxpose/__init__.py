"""jaxpose trains networks that find body keypoints in video, with the same numbers on any number of devices.

The flow: `data` reads a project and makes numpy batches, one element a step of this host; `cluster` spreads them over
the device mesh; `training.step` augments, runs the `model`, computes the losses of `pose` and updates, in one compiled
program; `training.checkpoint` and `training.log` keep the run folder; `train`, `predict` and `evaluate` are the verbs.

Letters of array shapes: b batch, t context frames, h w image, H W heatmap, k keypoints, c channels.
"""

__version__ = "0.1.0"
