"""Reads the labels of a SLEAP file (.slp, .pkg.slp) with sleap-io, and images from its videos or the file itself.

Labelled frames are decoded once and kept as BMP files in the cache folder. Unlike PNG, the bytes of a BMP file depend
only on the pixels, and so do the checksums in split.csv.
"""

import dataclasses
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.data.cells import refuse_odd_names
from jaxpose.data.image_file import image_facts
from jaxpose.data.label_table import EmptyImage, LabelTable, hidden_columns, normalised
from jaxpose.errors import UserError, need
from jaxpose.files import read_bytes
from jaxpose.formats import sleap_extras
from jaxpose.formats.sleap_images import (
    SleapVideo,
    extract_images,
    files_of_videos,
    firsts_of_files,
    frames_of_video,
    video_names,
)
from jaxpose.formats.sleap_images import read_videos as read_sleap_videos
from jaxpose.hdf5_file import read_hdf5
from jaxpose.poses import NOT_USED, NOT_VISIBLE, VISIBLE, Poses
from jaxpose.terminal import count
from jaxpose.video.recording import refuse_other


@dataclasses.dataclass(frozen=True)
class _Row:
    """An instance in a labelled frame of `video`; `entry` is the frame's number in the file."""

    source: str
    video: int
    frame: int
    instance: Any
    entry: int


def read_labels(file: Path, data: DataConfig, with_hidden: bool = False) -> LabelTable:
    """Reads the instances that a person labelled and, with `data.predicted_labels`, predicted ones.

    As in SLEAP's own training, a point marked as not visible counts as not labelled. Tracks name the individuals.

    Args:
      file: the .slp.
      data: the meaning of an unlabelled point, whether predicted instances count, and the cache folder's limit.
        with_hidden: includes frames in which all points with a position are marked as not visible.

    Raises:
      UserError: sleap-io is not installed; the file cannot be read, has several skeletons or no labels; or its frames
        exceed the cache folder's limit.
    """
    labels = load(file)
    names = keypoint_names(file, labels)
    videos = read_sleap_videos(file, labels)
    names_of_videos = video_names(videos)
    rows, negatives, notes = _rows(file, labels, videos, names_of_videos, with_hidden, data.predicted_labels)
    is_several = len({row.entry for row in rows}) < len(rows)
    used_rows = [*rows, *negatives]
    wanted = [sorted({row.frame for row in used_rows if row.video == number}) for number in range(len(videos))]
    reach_px = [reach_of([row.instance for row in rows if row.video == number]) for number in range(len(videos))]
    images = [frame_files(*of_video, data) for of_video in zip(videos, wanted, reach_px, strict=True)]
    kept, paths, problems = [], [], list[str]()
    for row in rows:
        image = images[row.video][row.frame]
        if isinstance(image, str):
            problems.append(f"{row.source}: {image}")
        else:
            kept.append(row)
            paths.append(image)
    if not all(path.is_file() for path in paths):
        raise UserError(f"the labelled frames of {file} take more than data.cache_limit_gib = {data.cache_limit_gib:g}")
    used = dict.fromkeys(row.video for row in rows)
    files, sentences = files_of_videos(videos, names_of_videos, used)
    names_of_images = tuple(
        image_name(videos[row.video], path, names_of_videos[row.video], row.frame)
        for row, path in zip(kept, paths, strict=True)
    )
    table = LabelTable(
        file=file,
        poses=_poses(labels, names, names_of_images, [row.instance for row in kept], data.missing),
        paths=tuple(paths),
        videos=tuple(names_of_videos[row.video] for row in kept),
        sources=tuple(row.source for row in kept),
        problems=tuple(problems),
        shown_sizes_px=_shown_sizes_px(names_of_images, [videos[row.video] for row in kept]),
        video_files=files,
        kind=f"SLEAP file {file.name} with {count(len(used), 'video')}",
        notes=(*notes, *sentences),
        scorer=sleap_extras.read_scorer(labels),
        unread=tuple(sleap_extras.unread(labels, videos, rows)),
        entries=tuple(row.entry for row in kept) if is_several else (),
        without_animals=_empty_images(negatives, images, videos, names_of_videos),
    )
    return normalised(table, data)


def _empty_images(
    negatives: list[_Row], images: list[dict[int, Path | str]], videos: list[SleapVideo], names: list[str]
) -> tuple[EmptyImage, ...]:
    """Returns the images of frames without animals, except those that could not be extracted."""
    found = []
    for row in negatives:
        if isinstance(path := images[row.video][row.frame], Path):
            name = image_name(videos[row.video], path, names[row.video], row.frame)
            found.append(EmptyImage(name, row.source, path, names[row.video], is_marked=True))
    return tuple(found)


def _poses(labels: Any, names: tuple[str, ...], images: tuple[str, ...], instances: list[Any], missing: str) -> Poses:
    """Returns the poses of instances, one a row, in images that may have several."""
    tracks = ["" if instance.track is None else instance.track.name for instance in instances]
    individuals = tuple(sorted({*tracks} - {""})) if len({*images}) < len(images) else ()
    points = np.array([instance.numpy() for instance in instances], np.float64).reshape(-1, len(names), 2)
    labelled = np.isfinite(points).all(axis=-1)
    absent = NOT_VISIBLE if missing == "not_visible" else NOT_USED
    return Poses.of_one_animal(
        names,
        images,
        np.where(np.expand_dims(labelled, -1), points, np.nan),
        visibility=np.where(labelled, VISIBLE, absent).astype(np.int8),
        columns=hidden_columns(sleap_extras.hidden_points(instances, len(names))),
        skeleton=sleap_extras.read_skeleton(labels),
        pixels="image",
        identity=np.array([individuals.index(name) if name in individuals else -1 for name in tracks], int)[:, None],
        individuals=individuals,
    )


def _shown_sizes_px(images: tuple[str, ...], videos: list[SleapVideo]) -> dict[str, tuple[int, int]]:
    pairs = zip(images, (video.recording.size_px for video in videos), strict=True)
    return {image: size_px for image, size_px in pairs if size_px}


def read_videos(file: Path) -> tuple[Any, dict[str, Any]]:
    """Returns a .slp as read by sleap-io, and {name in `read_labels`: sleap-io video}."""
    labels = load(file)
    return labels, dict(zip(video_names(read_sleap_videos(file, labels)), labels.videos, strict=True))


def named_videos(file: Path) -> tuple[dict[str, Path], list[str]]:
    """Returns {name: file} of a .slp's existing videos, and sentences about the others; reads no labels.

    Raises:
      UserError: sleap-io is not installed, or the file cannot be read.
    """
    videos = read_sleap_videos(file, load(file))
    return files_of_videos(videos, video_names(videos), ())


def load(file: Path) -> Any:
    """Returns a .slp from sleap-io, without opening its videos.

    Raises:
      UserError: sleap-io is not installed, or the file cannot be read.
    """
    need("sleap", str(file))
    from sleap_io.io.main import load_slp

    try:
        # sleap-io would read the other files that it names.
        with read_hdf5(file):
            pass
        return load_slp(str(file), open_videos=False)
    except UserError:
        raise
    except Exception as error:
        # On damaged files, its parser may raise any error.
        raise UserError(f"{file} is not a readable SLEAP file: {type(error).__name__}: {error}") from None


def keypoint_names(file: Path, labels: Any) -> tuple[str, ...]:
    """Returns the nodes of a file's only skeleton.

    Raises:
      UserError: it has no skeleton or several, or a node name cannot be written to a table.
    """
    if not labels.skeletons:
        raise UserError(f"{file} has no skeleton: define its nodes in SLEAP, label frames, and save it again")
    if len(labels.skeletons) != 1:
        shown = "; ".join(", ".join(skeleton.node_names) for skeleton in labels.skeletons)
        raise UserError(
            f"{file} has {len(labels.skeletons)} skeletons, of the nodes {shown}; it must have one: merge or "
            "remove the others in SLEAP"
        )
    names = tuple(labels.skeletons[0].node_names)
    refuse_odd_names(file, names, "node")
    return names


def _rows(
    file: Path, labels: Any, videos: list[SleapVideo], names: list[str], with_hidden: bool, with_predicted: bool
) -> tuple[list[_Row], list[_Row], list[str]]:
    """Returns rows, the frames that a person marked as without animals if frames have several, and notes."""
    rows, negatives, used, left = [], list[_Row](), 0, 0
    numbers = {id(video): number for video, number in zip(labels.videos, firsts_of_files(videos), strict=True)}
    for entry, frame in enumerate(labels.labeled_frames):
        number = numbers[id(frame.video)]
        source = f"{file}:{names[number]} frame {frame.frame_idx}"
        instances = sleap_extras.labelled_instances(frame, with_hidden)
        if with_predicted and not instances and (instances := sleap_extras.predicted_instances(frame)):
            used += 1
        for place, instance in enumerate(instances, 1):
            of_frame = f"{source} (instance {place})" if len(instances) > 1 else source
            rows.append(_Row(of_frame, number, int(frame.frame_idx), instance, entry))
        if not instances and getattr(frame, "is_negative", False):
            negatives.append(_Row(source, number, int(frame.frame_idx), None, entry))
        left += not instances
    if not rows:
        hint = "" if with_predicted else _hint_of_predicted(labels)
        raise UserError(f"{file} has no frame in which a person labelled an animal{hint}")
    if len({row.entry for row in rows}) == len(rows):
        negatives.clear()
    left -= len(negatives)
    notes = [f"left out: {count(left, 'frame')} without labels made by a person"] if left else []
    notes += [f"labels of {count(used, 'frame')} are predicted instances (data.predicted_labels)"] if used else []
    return rows, negatives, notes


def _hint_of_predicted(labels: Any) -> str:
    """Returns advice for a file whose only usable instances are predicted, "" without such instances."""
    frames = sum(bool(sleap_extras.predicted_instances(frame)) for frame in labels.labeled_frames)
    where = f"; predicted instances are in {count(frames, 'frame')}: if a person has proofread them, "
    return f"{where}data.predicted_labels=True trains on them" * bool(frames)


def reach_of(instances: list[Any]) -> np.ndarray:
    """Returns the largest x and y (2,) of the instances' points."""
    points = [np.nan_to_num(instance.numpy()).max(axis=0) for instance in instances]
    return np.max([np.zeros(2), *points], axis=0)


def frame_files(video: SleapVideo, frames: list[int], reach_px: np.ndarray, data: DataConfig) -> dict[int, Path | str]:
    """Returns {frame: its image file, or the reason why there is none}."""
    if not frames:
        return {}
    try:
        if video.video.is_cropped:
            raise UserError(video.refusal_of_crop)
        if video.is_sequence:
            _refuse_other_sequence(video)
            return {frame: _image_of_sequence(video, frame) for frame in frames}
        if video.is_embedded or is_no_media(video.names[0]):
            return extract_images(video, frames, reach_px, data)
        if video.media_file is None:
            raise UserError(f"{video.absence(0, 'its video')}, or save the labels as .pkg.slp")
        return frames_of_video(video.media_file, frames, video.recording, data)
    except UserError as error:
        return dict.fromkeys(frames, str(error))


def _image_of_sequence(video: SleapVideo, frame: int) -> Path | str:
    if not 0 <= frame < len(video.names):
        return f"{video.file} names {count(len(video.names), 'image')} for this video, not number {frame}"
    return video.matches[frame].file or video.absence(frame, "its image")


def _refuse_other_sequence(video: SleapVideo) -> None:
    """Refuses images if the first differs from the size that SLEAP recorded for it; others may differ."""
    first = video.matches[0].file
    if first:
        width, height = image_facts(read_bytes(first, most_bytes=None)).stored_px
        # SLEAP applies the file's orientation.
        if video.recording.size_px != (height, width):
            refuse_other(first, video.recording, (width, height))


def is_no_media(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in (".h5", ".hdf5", ".slp", ".tif", ".tiff", ".seq")


def image_name(video: SleapVideo, path: Path, name: str, frame: int) -> str:
    """Returns an image's path relative to the .slp's folder if inside it, otherwise a name made from the frame."""
    folder = video.file.parent
    # The cache folder may also be inside it.
    if video.is_sequence and path.is_relative_to(folder):
        return path.relative_to(folder).as_posix()
    return f"{video.file.name}/{name}/{video.image_stems.get(frame, f'img{frame:08}')}{path.suffix}"
