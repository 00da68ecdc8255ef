"""Writes a video's predictions as NWB with the extension ndx-pose: https://github.com/rly/ndx-pose.

Every keypoint has a series of all frames, NaN where it has no position, so that frame i is always sample i.
"""

import datetime
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxpose.errors import UserError, need
from jaxpose.files import sha256_of
from jaxpose.formats.prediction_table import Footage, PredictionTable
from jaxpose.hdf5_file import write_hdf5

NEEDS_START = "NWB files record when the recording began; give --session_start, such as 2026-05-04T14:30:00+02:00"
_FRAME = "(0, 0) is the centre of the top left pixel of the video; x goes to the right, y down"
# Containers round timestamps to a millisecond or finer.
_ROUNDING_S = 0.001


def write_predictions(
    file: Path, predictions: PredictionTable, footage: Footage, session_start: datetime.datetime
) -> None:
    """Writes the table of a video in the processing module `behavior`, with a `PoseEstimation` for each animal.

    Constant-rate frames get the rate, others their own times.

    Args:
      file: the table.
      predictions: the predictions to write; those of several animals are `placed`.
      footage: the video.
      session_start: time of the first frame, with time zone.

    Raises:
      UserError: pynwb or ndx-pose is not installed, frame times are unknown, or NWB does not allow a name.
    """
    need("nwb", str(file))
    import ndx_pose
    import pynwb.image

    refuse_names(predictions.file, (*predictions.poses.keypoint_names, *predictions.poses.individuals))
    video = footage.path.name
    content = new_file(f"Keypoints in {video}", sha256_of(predictions.file), session_start)
    names, edges = predictions.poses.keypoint_names, predictions.poses.skeleton.edges
    numbers = np.array([[*map(names.index, edge)] for edge in edges], np.uint8 if len(names) < 256 else np.uint16)
    skeleton = ndx_pose.Skeleton(name="animal", nodes=list(names), edges=numbers.reshape(-1, 2))
    count = len(predictions.poses.frames)
    times = _times(footage, count)
    source = _source(pynwb.image.ImageSeries, footage, count, times)
    content.add_acquisition(source)
    estimations = [
        ndx_pose.PoseEstimation(
            name=f"PoseEstimation_{individual}" if individual else "PoseEstimation",
            description=f"Predicted keypoints{f' of {individual}' * bool(individual)} in {video}",
            pose_estimation_series=keypoint_series(skeleton.nodes, video, *arrays, times),
            source_video=source,
            scorer=predictions.scorer,
            source_software="jaxpose",
            skeleton=skeleton,
        )
        for individual, arrays in _of_animals(predictions)
    ]
    module = content.create_processing_module("behavior", "Keypoints predicted in video")
    module.add([ndx_pose.Skeletons(skeletons=[skeleton]), *estimations])
    write_file(file, content)


def _of_animals(predictions: PredictionTable) -> list[tuple[str, tuple[np.ndarray, np.ndarray]]]:
    """Returns the name of each animal, "" for the only one, with its keypoints (n, k, 2) and confidence (n, k)."""
    poses = predictions.poses
    if predictions.is_plain:
        return [("", poses.one_animal())]
    confidence = np.full(poses.points_px.shape[:3], np.nan) if poses.confidence is None else poses.confidence
    return [(name, (poses.points_px[:, at], confidence[:, at])) for at, name in enumerate(poses.individuals)]


def new_file(description: str, identifier: str, session_start: datetime.datetime) -> Any:
    """Returns an empty `pynwb.NWBFile`."""
    import pynwb

    return pynwb.NWBFile(
        session_description=description,
        identifier=identifier,
        session_start_time=session_start,
        # With the time of writing, each call would write different bytes.
        file_create_date=session_start,
    )


def write_file(file: Path, content: Any) -> None:
    """Writes a `pynwb.NWBFile`; its object identifiers depend only on its source.

    Raises:
      OSError: the file cannot be written.
    """
    import pynwb

    source = f"jaxpose {content.identifier} {content.session_start_time.isoformat()}"
    for number, entry in enumerate([content, *content.all_children()]):
        # hdmf draws a random identifier and has no other way to set it.
        entry._AbstractContainer__object_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{source} {number}"))
    connection: Any = pynwb.NWBHDF5IO
    with write_hdf5(file) as opened, connection(file=opened, mode="w") as writer:
        writer.write(content)


def _source(image_series: Any, footage: Footage, count: int, times: dict[str, Any]) -> Any:
    return image_series(
        name="source_video",
        description="the video in which keypoints were predicted",
        unit="n.a.",
        format="external",
        external_file=[str(footage.path)],
        starting_frame=[0],
        dimension=[footage.width_px, footage.height_px],
        **times,
        **({"num_samples": count} if "rate" in times else {}),
    )


def refuse_names(source: object, names: Sequence[str]) -> None:
    """Raises UserError if NWB does not allow a name of a keypoint, an individual or a camera."""
    for name in names:
        if "/" in name or ":" in name:
            raise UserError(f"{source}: {name!r} has a / or :, which NWB does not allow in names; rename it")


def keypoint_series(
    names: Sequence[str],
    where: str,
    places: np.ndarray,
    confidence: np.ndarray,
    times: dict[str, Any],
    unit: str = "pixels",
    frame: str = _FRAME,
) -> list[Any]:
    """Returns a `PoseEstimationSeries` of each keypoint.

    Args:
      names: k names.
      where: what the keypoints are in, for the description.
      places: (n, k, 2), or (n, k, 3) in the world.
      confidence: (n, k).
      times: of the frames, as pynwb takes them.
      unit: of the places.
      frame: their coordinates.
    """
    import ndx_pose

    return [
        ndx_pose.PoseEstimationSeries(
            name=name,
            description=f"{name} in each frame of {where}; NaN: no position",
            data=places[:, place],
            unit=unit,
            reference_frame=frame,
            confidence=confidence[:, place],
            confidence_definition="as the network gives it, 0 to 1",
            **times,
        )
        for place, name in enumerate(names)
    ]


def _times(footage: Footage, count: int) -> dict[str, Any]:
    """Returns the frame rate or, if it is not constant, the frame times."""
    steady_s = np.arange(count) / footage.fps if footage.fps else None
    if steady_s is not None and (not len(footage.times_s) or np.abs(footage.times_s - steady_s).max() <= _ROUNDING_S):
        return {"rate": footage.fps, "starting_time": 0.0}
    if len(footage.times_s) != count:
        raise UserError(f"{footage.path} does not state when its frames are shown, which NWB needs")
    return {"timestamps": footage.times_s}
