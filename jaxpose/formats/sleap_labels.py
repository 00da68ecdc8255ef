"""Writes labels with sleap-io: as a SLEAP project (.slp, .pkg.slp), which `jaxpose.formats.sleap` reads, and as NWB."""

import datetime
import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.codes import VISIBLE
from jaxpose.data.inputs import natural_key
from jaxpose.data.label_table import LabelTable, is_hidden
from jaxpose.data.skeleton import DEFAULT_ANIMAL
from jaxpose.extras import need
from jaxpose.formats.nwb import new_file, write_file
from jaxpose.formats.sleap_extras import SCORER
from jaxpose.formats.sleap_writer import write_project

# The images lie in the file itself.
PACKAGE = ".pkg.slp"


def write_slp(file: Path, labels: LabelTable) -> None:
    """Writes a sequence of images for each video, in the order of their names, and an instance for each labelled image.

    A keypoint that has a position and is not visible is marked so.

    Args:
      file: a .slp, which names its images, or a .pkg.slp, which holds them.
      labels: what to write.

    Raises:
      UserError: sleap-io is not installed.
    """
    project = _project(file, labels)
    # Images as PNG are hardly ever larger than their pixels.
    pixels = sum(width * height for width, height in labels.sizes_px.values())
    write_project(file, project, 3 * pixels if file.name.endswith(PACKAGE) else 0)


def write_nwb(file: Path, labels: LabelTable, session_start: datetime.datetime) -> None:
    """Writes `PoseTraining` of ndx-pose: a training frame for each labelled image, with the visible keypoints.

    Args:
      file: the .nwb.
      labels: what to write; the file names its images.
      session_start: the time that NWB asks for, with its time zone.

    Raises:
      UserError: sleap-io is not installed.
    """
    project = _project(file, labels)
    from sleap_io.io.nwb_annotations import sleap_labels_to_nwb_pose_training

    source = repr((labels.poses.frames, labels.poses.keypoint_names, labels.keypoints_image_px.tolist()))
    content = new_file("Labelled keypoints", hashlib.sha256(source.encode()).hexdigest(), session_start)
    # As `save_labels` of sleap-io has them.
    behavior = content.create_processing_module(name="behavior", description="processed behavioral data")
    training, skeletons = sleap_labels_to_nwb_pose_training(project, annotator=labels.scorer)
    behavior.add(skeletons)
    behavior.add(training)
    write_file(file, content)


def _project(file: Path, labels: LabelTable) -> Any:
    """Returns the labels as sleap-io has them."""
    need("sleap", str(file))
    from sleap_io.model.instance import Instance
    from sleap_io.model.labeled_frame import LabeledFrame
    from sleap_io.model.labels import Labels
    from sleap_io.model.skeleton import Edge, Node, Skeleton, Symmetry
    from sleap_io.model.video import Video

    poses = labels.poses
    nodes = {name: Node(name) for name in poses.keypoint_names}
    skeleton = Skeleton(
        list(nodes.values()),
        edges=[Edge(nodes[first], nodes[second]) for first, second in poses.skeleton.edges],
        symmetries=[Symmetry([nodes[first], nodes[second]]) for first, second in poses.skeleton.symmetries],
        name=poses.skeleton.animal or DEFAULT_ANIMAL,
    )
    visible = labels.visibility == VISIBLE
    points = np.where((visible | is_hidden(poses))[..., None], labels.keypoints_image_px, np.nan)
    frames, videos = [], []
    for name in dict.fromkeys(labels.videos):
        rows = [row for row, video in enumerate(labels.videos) if video == name]
        rows.sort(key=lambda row: natural_key(poses.frames[row]))
        videos.append(Video.from_filename([str(labels.paths[row].absolute()) for row in rows]))
        for frame, row in enumerate(rows):
            if np.isfinite(points[row]).any():
                instance = Instance.from_numpy(points[row], skeleton)
                instance.points["visible"] = visible[row]
                frames.append(LabeledFrame(video=videos[-1], frame_idx=frame, instances=[instance]))
    project = Labels(frames, videos=videos, skeletons=[skeleton])
    project.provenance |= {"made_by": "jaxpose", SCORER: labels.scorer}
    return project
