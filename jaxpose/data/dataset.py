"""A project with its split and decoded frames: everything that training and evaluation read."""

import collections
import contextlib
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import numpy as np

from jaxpose import geometry
from jaxpose.config import SYNTHETICS, Config, DataConfig
from jaxpose.config.model import BODY_PX, CONTEXT_RADIUS, feature_stride, views_at_once
from jaxpose.config.rules import refuse_for_several_animals
from jaxpose.config.train import chooses_by_validation
from jaxpose.data import animals, boxes, context, images, inputs, project, split, synthetic
from jaxpose.data.cells import same_letters
from jaxpose.data.checked_table import describe_resized
from jaxpose.data.image_file import WHOLE_RANGE, decode_image
from jaxpose.data.loader import FrameSamples, Samples
from jaxpose.data.named_files import of_name
from jaxpose.data.project import Project
from jaxpose.data.skeleton import edge_text, edges_given, known_pairs
from jaxpose.data.split import KnownSplit
from jaxpose.errors import UserError
from jaxpose.files import read_bytes
from jaxpose.poses import TEST, TRAIN, UNUSED, VALIDATION, VISIBLE
from jaxpose.terminal import count
from jaxpose.threads import map_in_threads
from jaxpose.video.decoding import RangeReader
from jaxpose.video.file import Video, scan
from jaxpose.video.index import read_index
from jaxpose.video.recording import has_proportions

# Compares labelled images with the video of the same name: if the frames differ, the video is another recording.

# DeepLabCut and Lightning Pose name extracted images like this. In other names, numbers may mean something else.
_FRAME_NAME = re.compile(r"img([0-9]+)")
# Frames of one scene differ little, even if an image number is slightly off.
_COMPARED_IMAGES, _LEAST_CORRELATION = 3, 0.5


def check_recordings(found: Project, files: Mapping[str, Path], threads: int) -> list[str]:
    """Compares the images of each folder with the video of that name, if any.

    Args:
      found: the labelled images.
      files: the project's videos by their name without suffix.
      threads: number of threads that read the videos.

    Returns:
      Sentences that the notes of the project lack: about images that differ in size from the frames, and about videos
      that end before a labelled frame.

    Raises:
      UserError: no image of a folder has the proportions of its video's frames, upright or stored; or the images are
        crops from the corner of larger frames but do not show that corner.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(found.videos):
        rows.setdefault(name, []).append(row)
    named = {name: file for name in rows if (file := of_name(name, files))}
    videos = zip(named, map_in_threads(_look, list(named.values()), threads, "comparing the videos"), strict=True)
    return [note for name, video in videos if video for note in _compare(found, name, rows[name], video)]


def _look(file: Path) -> Video | None:
    try:
        return scan(file)
    except UserError:
        return None  # reported when the video is needed


def _compare(found: Project, name: str, rows: list[int], video: Video) -> list[str]:
    frame_px = (video.width_px, video.height_px)
    shown = [tuple(found.sizes_px[row].tolist()) for row in rows if not found.crop_px(row)]
    shapes = [frame_px, frame_px[::-1]] if video.quarter_turns % 2 else [frame_px]
    fitting = [size_px for size_px in shown if any(has_proportions(size_px, shape) for shape in shapes)]
    if shown and not fitting:
        width, height = min(shown)
        raise UserError(
            f"the labelled images of {name} have {width} x {height} pixels, but the frames of {video.path} have "
            f"{frame_px[0]} x {frame_px[1]}: it is another recording; put the right one there, or rename this one"
        )
    resized = sum(size_px not in shapes for size_px in fitting)
    notes = [describe_resized(name, resized, frame_px)] * bool(resized)
    numbers = [(int(match[1]), row) for row in rows if (match := _FRAME_NAME.fullmatch(_stem(found, row)))]
    _refuse_other_corner(found, name, numbers, video)
    last, row = max(numbers, default=(-1, 0))
    if last >= video.expected_frames:
        notes.append(
            f"{video.path} has {video.expected_frames} frames, but {found.images[row]} is a later one: it was "
            "cut, or is another recording"
        )
    return [note for note in notes if note not in found.notes]


def _refuse_other_corner(found: Project, name: str, numbers: list[tuple[int, int]], video: Video) -> None:
    """Refuses a video if images are crops from the corner of its frames but look different there.

    DeepLabCut writes the crop 0, width, 0, height for whole frames; a larger video is then another recording.

    Args:
      found: the labelled images.
      name: of the video.
      numbers: (frame, row) of its images.
      video: its file.
    """
    corners = [(number, row) for number, row in numbers if found.crop_px(row)[:2] == (0, 0)][:_COMPARED_IMAGES]
    alike = [_is_corner(found, row, number, video) for number, row in corners]
    if False in alike and True not in alike:
        _, _, width, height = found.crop_px(corners[0][1])
        raise UserError(
            f"the labelled images of {name} have {width} x {height} pixels and do not show the corner of the frames of "
            f"{video.path}, which have {video.width_px} x {video.height_px}: it is another recording; put the right "
            "one there, or rename this one"
        )


def _is_corner(found: Project, row: int, number: int, video: Video) -> bool | None:
    """Returns whether an image looks like the corner of a frame, None if unknown."""
    _, _, width, height = found.crop_px(row)
    try:
        image = decode_image(
            read_bytes(found.paths[row], most_bytes=None), found.pixel_rule(found.white), is_known=True
        )
        index = read_index(video.path)
    except (UserError, OSError):
        return None
    last = min(number + 1, index.frame_count)
    frames = dict(RangeReader(index, number, last, np.eye(2, 3), (width, height))) if number < last else {}
    if number not in frames or not image.std() or not frames[number].std():
        return None
    return bool(np.corrcoef(image.ravel(), frames[number].ravel())[0, 1] >= _LEAST_CORRELATION)


def _stem(found: Project, row: int) -> str:
    return PurePosixPath(found.images[row]).stem


# Maximum number of image sizes that a run records; in a project of unrelated images, all may differ.
_NOTED_SIZES = 16


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Labelled frames, ready for the network.

    Attributes:
      project: the labelled frames and their labels.
      sets: str (n,): train, validation, test or unused.
      samples: the frames as the network sees them.
      size_px: (width, height) of the network's input.
      messages: sentences for the user about the origin of the frames.
      empty_rows: the rows in `project.without_animals` from which a finder learns; () for another network.
    """

    project: project.Project
    sets: np.ndarray
    samples: Samples
    size_px: tuple[int, int]
    messages: tuple[str, ...] = ()
    empty_rows: tuple[int, ...] = ()

    @property
    def has_labels(self) -> bool:
        """Whether there are labelled frames; pretraining reads none."""
        return len(self.sets) > 0

    def rows(self, name: str) -> np.ndarray:
        """Returns the row numbers (m,) of a set."""
        return np.flatnonzero(self.sets == name)

    def sample_rows(self, name: str) -> np.ndarray:
        """Returns the rows (m,) in `samples` of a set: those of `rows` or, if a sample is an image, its images."""
        rows = self.rows(name)
        if not isinstance(self.samples, FrameSamples):
            return rows
        # The images without animals are the last samples.
        first = self.project.moments.max() + 1
        empty = first + np.array(self.empty_rows if name == TRAIN else (), int)
        return np.concatenate([np.unique(self.project.moments[rows]), empty])

    def is_selection_tested(self, monitor: str) -> bool:
        """Returns whether some errors are of frames that did not select the checkpoint by `monitor`."""
        return len(self.rows(TEST)) > 0 or not len(self.rows(VALIDATION)) or not chooses_by_validation(monitor)

    def labelled_frame_px(self, rows: np.ndarray) -> np.ndarray:
        """Returns the labels (m, k, 2) of rows in frame pixels, NaN where missing (visibility 0)."""
        return self.project.labelled_frame_px()[rows]

    def measured_frame_px(self, rows: np.ndarray) -> np.ndarray:
        """Returns the labels (m, k, 2) of rows to measure errors from: see `Project.measured_frame_px`."""
        return self.project.measured_frame_px()[rows]

    def measured_of_images(self, most: int) -> np.ndarray:
        """Returns the same (m, most, k, 2) of all images with several animals, NaN where an animal is absent."""
        return animals.by_image(self.project.measured_frame_px(), self.project.moments, most)


def prepare(config: Config, found: project.Project | None = None) -> tuple[Config, project.Project]:
    """Fills in all options that depend on the project; returns the config and the project.

    Args:
      config: the options.
      found: the project; None reads it here, in the layout of Lightning Pose, and makes the synthetic project if
        `data.project` asks for it. `jaxpose.formats.project.prepare` also reads projects of other tools.

    Raises:
      UserError: the project or its labels cannot be used.
    """
    data = config.data
    if data.project in SYNTHETICS:
        data = dataclasses.replace(data, project=str(synthetic.make_named(data.project)))
    given, found = data, select_keypoints(found or project.read_project(data), data)
    if not (found.visibility == VISIBLE).any():
        raise UserError(
            f"{found.label_file} has {count(len(set(found.images)), 'image')}, and no keypoint is labelled in any of "
            "them: label some first"
        )
    if data.video_crops_px and data.video_crops_px != found.video_crops_px:
        raise UserError(
            f"data.video_crops_px is {data.video_crops_px}, but the labelled images of {found.folder} are the crops "
            f"{found.video_crops_px or '()'}; leave the option out: it is read from the project"
        )
    video, files = config.video, dict(found.video_files)
    # Problems of a video folder are reported when its videos are needed.
    with contextlib.suppress(UserError):
        video = inputs.named_videos(data, config.video, found.video_files)
        files = _videos(found, dataclasses.replace(config, data=data, video=video))
    notes = check_recordings(found, files, data.threads)
    found = dataclasses.replace(found, notes=(*found.notes, *notes))
    width, height = _input_size_px(found, config)
    data = dataclasses.replace(
        data,
        input_width_px=width,
        input_height_px=height,
        keypoint_names=tuple(found.poses.keypoint_names),
        video_crops_px=found.video_crops_px,
        orientation=found.orientation,
        white=data.white or found.white,
        frame_sizes_px=data.frame_sizes_px or _frame_sizes_px(found),
        skeleton=_skeleton(found, data),
        animals=data.animals or found.most_animals,
        body_size_px=found.body_size_px,
    )
    _check_animals(found, dataclasses.replace(config, data=data), given)
    if data.boxes:
        videos = list(inputs.video_files(data, video).values())
        found = dataclasses.replace(found, notes=(*found.notes, *boxes.describe_boxes(data, videos)))
    return dataclasses.replace(config, data=data, video=video), found


def _check_animals(found: project.Project, config: Config, given: DataConfig) -> None:
    """Checks the options against the number of animals in the images.

    Args:
      found: the labels.
      config: the options, filled in.
      given: the options of the data as given.
    """
    refuse_for_several_animals(config)
    if config.model.kind == "finder" and config.data.animals < 2:
        raise UserError(
            f"model.kind is finder, and no image of {found.label_file} has several labelled animals: leave it out, or "
            "give the largest number of animals in a frame, above 1, in data.animals"
        )
    for name in ("body_size_px", "unlabelled_animals"):
        value = getattr(given, name)
        if value != getattr(DataConfig(), name) and not found.most_animals:
            shown = str(value).removesuffix(".0")
            raise UserError(
                f"data.{name} is {shown}, but no image of {found.label_file} has several labelled animals: leave it out"
            )


def _input_size_px(found: project.Project, config: Config) -> tuple[int, int]:
    is_given = config.data.input_width_px and config.data.input_height_px
    if config.model.kind != "finder" or not found.most_animals or is_given:
        return images.input_size_px(found, config.data)
    return images.whole_input_px(found, BODY_PX, feature_stride(config.model))


def _skeleton(found: project.Project, data: DataConfig) -> tuple[str, ...]:
    """Returns the edges of the given or the project's skeleton in the form of `data.skeleton`."""
    names = tuple(found.poses.keypoint_names)
    edges = edges_given("data.skeleton", data.skeleton, names) or known_pairs(found.poses.skeleton.edges, names)
    return tuple(edge_text(edge) for edge in edges)


def _frame_sizes_px(found: project.Project) -> tuple[int, ...]:
    """Returns the most frequent sizes of labelled images, in the form of `data.frame_sizes_px`; ignores crops."""
    sizes_px = enumerate(found.sizes_px.tolist())
    counts = collections.Counter(tuple(size) for row, size in sizes_px if not found.crop_px(row))
    most_first = sorted(counts, key=lambda size: (-counts[size], size))
    return tuple(side for size in most_first[:_NOTED_SIZES] for side in size)


def select_keypoints(found: project.Project, data: DataConfig) -> project.Project:
    """Returns the project with only the keypoints of `data.keypoint_names`, in that order.

    Raises:
      UserError: a name is not in the label file; or the project names keypoints that no label file has and
        `data.keypoint_names` does not choose.
    """
    if found.unlabelled_names and not data.keypoint_names:
        # Quoted: a name such as 1 would be read as a number.
        have = ",".join(f'"{name}"' for name in found.poses.keypoint_names)
        raise UserError(
            f"the project names the keypoints {', '.join(found.unlabelled_names)}, but no label file has them; correct "
            f"the names, or train only the others: data.keypoint_names='({have},)'"
        )
    if not data.keypoint_names:
        return found
    # The given Unicode form may differ from the label file's.
    spelled = {same_letters(name): name for name in found.poses.keypoint_names}
    wanted = tuple(spelled.get(same_letters(name), name) for name in data.keypoint_names)
    unknown = [name for name in wanted if name not in found.poses.keypoint_names]
    if unknown:
        raise UserError(
            f"data.keypoint_names has {unknown[0]!r}; the label file has {', '.join(found.poses.keypoint_names)}"
        )
    return match_keypoints(found, wanted)


def refuse_other_animals(found: project.Project, data: DataConfig) -> None:
    """Raises UserError if images have several animals, and a run learnt from images with one.

    Args:
      found: the labels.
      data: the options of the run, filled in.
    """
    if found.most_animals and data.animals < 2:
        raise UserError(
            f"{found.label_file} has up to {found.most_animals} animals in an image, and the run was trained on images "
            "with one"
        )


def match_keypoints(found: project.Project, names: tuple[str, ...]) -> project.Project:
    """Returns the project with exactly these keypoints, in this order; those that it lacks are unlabelled.

    Raises:
      UserError: the project has none of them.
    """
    if not set(names) & set(found.poses.keypoint_names):
        raise UserError(
            f"{found.label_file} has the keypoints {', '.join(found.poses.keypoint_names)}; it needs one of "
            f"{', '.join(names)}"
        )
    return dataclasses.replace(found, poses=found.poses.with_keypoints(names))


def sets_in_run(found: project.Project, known: KnownSplit) -> np.ndarray:
    """Returns the set (n,) of each frame in a run (same bytes, even if renamed), "unused" if not in the run."""
    pairs = zip(found.poses.frames, found.checksums, strict=True)
    return np.array([known.set_of_same(image, checksum) or UNUSED for image, checksum in pairs])


def changed_labels(found: project.Project, known: KnownSplit) -> int:
    """Returns how many frames of a run (same path, same bytes) now have other labels."""
    frames = zip(found.poses.frames, found.checksums, found.labels_checksums(), strict=True)
    return sum(
        known.checksums.get(image) == checksum and known.labels_checksums[image] not in ("", labels_checksum)
        for image, checksum, labels_checksum in frames
    )


def describe_not_visible(found: project.Project) -> list[str]:
    """Returns a sentence about labels with a position that are marked as not visible, [] without any."""
    marked = found.not_visible()
    if not marked.any():
        return []
    points = count(int(marked.sum()), "point")
    if (found.visibility[marked] == VISIBLE).all():
        how, other = "learns their positions, and they count in the errors", "without"
    else:
        how, other = "learns to be unsure of them, and they are left out of the errors", "with"
    return [f"{points} marked as not visible: the network {how}; evaluation.json also has the errors {other} them"]


def load(found: project.Project, config: Config) -> Dataset:
    """Decodes and splits a project that `prepare` returned.

    Raises:
      UserError: a frame does not decode, or the split cannot be made.
    """
    data = config.data
    sets = split.assign_sets(found, data)
    samples, messages = decode(found, config)
    described = (split.describe_new, split.describe_limit, split.describe_leaks)
    messages = (*(line for describe in described for line in describe(found, sets, data)), *messages)
    empty_rows = split.empty_training_rows(found, sets, data) if isinstance(samples, FrameSamples) else ()
    return Dataset(found, sets, samples, (data.input_width_px, data.input_height_px), messages, empty_rows)


def files_beside(found: project.Project, config: Config) -> list[Path]:
    """Returns the files next to the labelled images that a context model sees: images, then videos."""
    if config.model.kind != "heatmap_context":
        return []
    radius = CONTEXT_RADIUS["heatmap_context"]
    return context.files_beside(found, config.data, radius, _videos(found, config))


def _other_white(found: project.Project, data: DataConfig) -> list[str]:
    """Returns a sentence if a run's white differs from a project's, for images above 8 bits."""
    white = data.white or WHOLE_RANGE
    if found.white in (0, white):
        return []
    return [
        f"{found.label_file}: {found.white:g} would suit its images of more than 8 bits, but white is {white:g} "
        "(data.white of the run), so they look brighter or darker than the run's"
    ]


def _videos(found: project.Project, config: Config) -> dict[str, Path]:
    """Returns {name: video} of videos with frames around the labelled ones."""
    files = inputs.video_files(config.data, config.video) | dict(found.video_files)
    return files | {name: file for name in set(found.videos) if (file := of_name(name, files))}


def check_decoding(found: project.Project, config: Config) -> list[str]:
    """Decodes like `decode`, keeps no frames; returns sentences about the frames around labelled ones.

    Raises:
      UserError: as `decode`.
    """
    data = config.data
    size_px = data.input_width_px, data.input_height_px
    if config.model.kind == "heatmap_context":
        radius = CONTEXT_RADIUS["heatmap_context"]
        return context.check_windows(found, data, size_px, radius, _videos(found, config))
    if config.model.kind == "finder":
        found = found.whole_images(data.animals, with_empty=True)
    affines = images.fit_affines(found, data, size_px)

    def read(row: int) -> None:
        images.read_labelled(found, row, affines[row], size_px, data)

    for _ in map_in_threads(read, range(len(found.poses.frames)), data.threads, "decoding images"):
        pass
    return []


def decode(found: project.Project, config: Config) -> tuple[Samples, tuple[str, ...]]:
    """Returns the frames of a project as the network sees them, and sentences about frames that were substituted.

    The config must have the network's input size. A context model sees each frame with its neighbours.

    Raises:
      UserError: a frame does not decode.
    """
    data, messages = config.data, list[str]()
    size_px = data.input_width_px, data.input_height_px
    if config.model.kind == "finder":
        return _decode_whole(found, data, size_px), tuple(_other_white(found, data))
    if config.model.kind == "heatmap_context":
        radius = CONTEXT_RADIUS["heatmap_context"]
        frames, messages = context.load_windows(found, data, size_px, radius, _videos(found, config))
    else:
        frames = images.load_frames(found, data, size_px)
    keypoints_px = geometry.apply(frames.input_from_frame, found.keypoints_frame_px)
    # The input is black outside the crop, even where it contains a point or augmentation moves one there.
    visibility = np.where(images.outside_parts(found, data.crop_px), np.int8(0), found.visibility)
    points_px = keypoints_px.astype(np.float32)
    poses = dataclasses.replace(
        found.poses, points_px=points_px[:, None], visibility=visibility[:, None], columns={}, pixels="input"
    )
    sees_moments = views_at_once(config.model, data.views) > 1
    moments = found.rows_of_moments() if sees_moments else None
    samples = Samples(frames.pixels, poses, frames.frame_from_input, moments=moments)
    return samples, (*messages, *_other_white(found, data))


def _decode_whole(found: project.Project, data: DataConfig, size_px: tuple[int, int]) -> FrameSamples:
    """Returns the whole images of a project with all animals of each, and then those without animals."""
    whole = found.whole_images(data.animals, with_empty=True)
    frames, points_px = images.load_frames(whole, data, size_px), whole.poses.points_px
    shape = points_px.shape
    points_px = geometry.apply(frames.input_from_frame, points_px.reshape(shape[0], -1, 2)).reshape(shape)
    poses = dataclasses.replace(whole.poses, points_px=points_px.astype(np.float32), pixels="input")
    labelled = np.isfinite(points_px).any((-2, -1)).sum(axis=1)
    partly = (labelled > 0) & (labelled < data.animals) & (data.unlabelled_animals == "ignore")
    return FrameSamples(frames.pixels, poses, frames.frame_from_input, partly)
