"""Writes projects of SLEAP (.slp, .pkg.slp) with sleap-io."""

import contextlib
from pathlib import Path
from typing import Any

from jaxpose.files import replace_whole

# What a project takes, at most: without an instance, for an instance, for a point.
_EMPTY_BYTES, _INSTANCE_BYTES, _POINT_BYTES = 2**19, 200, 100


def write_project(file: Path, labels: Any, image_bytes: int = 0) -> None:
    """Writes `sleap_io.Labels`.

    Args:
      file: the .slp, or the .pkg.slp, which holds the labelled images.
      labels: what to write.
      image_bytes: of the images in a package, at most.

    Raises:
      OSError: the file cannot be written; the error names it.
    """
    from sleap_io.io.main import save_slp

    instances = [instance for frame in labels.labeled_frames for instance in frame.instances]
    points = len(instances) * max((len(skeleton.nodes) for skeleton in labels.skeletons), default=0)
    needed_bytes = _EMPTY_BYTES + _INSTANCE_BYTES * len(instances) + _POINT_BYTES * points + image_bytes
    # sleap-io opens the file by its name, and HDF5 may end the process where the disk is full (`hdf5_writer`).
    # A package notes the path at which it is written: its name alone is right wherever the file lies.
    with replace_whole(file, needed_bytes) as unfinished, contextlib.chdir(unfinished.parent):
        save_slp(labels, unfinished.name, embed=image_bytes > 0, verbose=False)
