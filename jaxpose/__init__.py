"""jaxpose trains networks that find body keypoints in video, with the same numbers on any number of devices.

The flow: `data` and `video` read a project and make numpy batches, one for each step of this host; `cluster` shards
them over the device mesh; `steps` augments, runs the `model`, computes the losses of `pose` and updates, in one
compiled program; `run` keeps the run folder, and `remote` copies it; `prediction` writes tables for frames and videos;
`training` ties these together; `train`, `predict` and `evaluate` are the verbs.

Letters of array shapes: b batch, t context frames, h w image, H W heatmap, k keypoints, c channels.
"""

__version__ = "0.1.0"
