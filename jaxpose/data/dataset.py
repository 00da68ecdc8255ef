"""A project, its split and its decoded frames: everything that training and evaluation read."""

import collections
import contextlib
import dataclasses
from pathlib import Path

import numpy as np

from jaxpose import geometry
from jaxpose.codes import TEST, UNUSED, VALIDATION, VISIBLE
from jaxpose.config import SYNTHETIC, Config, DataConfig
from jaxpose.config.model import CONTEXT_RADIUS
from jaxpose.config.train import chooses_by_validation
from jaxpose.data import context, images, leaks, project, recordings, sessions, split, synthetic, video_boxes, windows
from jaxpose.data.cells import same_letters
from jaxpose.data.known_split import KnownSplit
from jaxpose.data.loader import Samples
from jaxpose.data.named_files import of_name
from jaxpose.data.skeleton import edge_text, edges_given, known_pairs
from jaxpose.data.white import WHOLE_RANGE
from jaxpose.errors import UserError
from jaxpose.quantities import count
from jaxpose.threads import map_in_threads

SYNTHETIC_FOLDER = Path("runs/synthetic-project")
# Number of sizes of labelled images that a run keeps: in a project of unrelated images, all may differ.
_NOTED_SIZES = 16


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Labelled frames, ready for the network.

    Attributes:
      project: the labelled frames and their labels.
      sets: str (n,), train, validation, test or unused.
      samples: the frames as the network sees them.
      size_px: (width, height) of the network's input.
      messages: sentences for the user about the origin of the frames.
    """

    project: project.Project
    sets: np.ndarray
    samples: Samples
    size_px: tuple[int, int]
    messages: tuple[str, ...] = ()

    @property
    def has_labels(self) -> bool:
        """Whether there are labelled frames; a pretraining reads none."""
        return len(self.sets) > 0

    def rows(self, name: str) -> np.ndarray:
        """Returns the row numbers (m,) of a set."""
        return np.flatnonzero(self.sets == name)

    def is_selection_tested(self, monitor: str) -> bool:
        """Returns whether some errors are of frames that did not choose the checkpoint by the metric `monitor`."""
        return len(self.rows(TEST)) > 0 or not len(self.rows(VALIDATION)) or not chooses_by_validation(monitor)

    def labelled_frame_px(self, rows: np.ndarray) -> np.ndarray:
        """Returns the labels (m, k, 2) of rows in frame pixels, NaN where there is none (visibility 0)."""
        return self.project.labelled_frame_px()[rows]

    def measured_frame_px(self, rows: np.ndarray) -> np.ndarray:
        """Returns the labels (m, k, 2) of rows that errors are measured from: see `Project.measured_frame_px`."""
        return self.project.measured_frame_px()[rows]


def prepare(config: Config, found: project.Project | None = None) -> tuple[Config, project.Project]:
    """Returns the config with all options filled in that depend on the project, and the project.

    Args:
      config: the options.
      found: the project; None = read here, in the layout of Lightning Pose. The synthetic project is made, if
        `data.project` asks for it. `jaxpose.formats.project.prepare` reads projects of other tools, too.

    Raises:
      UserError: the project or its labels cannot be used.
    """
    data = config.data
    if data.project == SYNTHETIC:
        data = dataclasses.replace(data, project=str(synthetic.make_project(SYNTHETIC_FOLDER.resolve())))
    found = select_keypoints(found or project.read_project(data), data)
    if not (found.visibility == VISIBLE).any():
        raise UserError(
            f"{found.label_file} has {count(len(found.poses.frames), 'image')}, and no keypoint is labelled in any of "
            "them: label some first"
        )
    if data.video_crops_px and data.video_crops_px != found.video_crops_px:
        raise UserError(
            f"data.video_crops_px is {data.video_crops_px}, but the labelled images of {found.folder} are the crops "
            f"{found.video_crops_px or '()'}; leave the option out: it is read from the project"
        )
    video, files = config.video, dict(found.video_files)
    # What is wrong with a folder of videos is reported where they are needed.
    with contextlib.suppress(UserError):
        video = sessions.named_videos(data, config.video, found.video_files)
        files = _videos(found, dataclasses.replace(config, data=data, video=video))
    notes = recordings.check_recordings(found, files, data.threads)
    found = dataclasses.replace(found, notes=(*found.notes, *notes))
    width, height = images.input_size_px(found, data)
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
    )
    if data.boxes:
        videos = list(sessions.video_files(data, video).values())
        found = dataclasses.replace(found, notes=(*found.notes, *video_boxes.describe_boxes(data, videos)))
    return dataclasses.replace(config, data=data, video=video), found


def _skeleton(found: project.Project, data: DataConfig) -> tuple[str, ...]:
    """Returns the edges of the given skeleton, or of the project's, as `data.skeleton` has them."""
    names = tuple(found.poses.keypoint_names)
    edges = edges_given("data.skeleton", data.skeleton, names) or known_pairs(found.poses.skeleton.edges, names)
    return tuple(edge_text(edge) for edge in edges)


def _frame_sizes_px(found: project.Project) -> tuple[int, ...]:
    """Returns the most frequent sizes of the labelled images, as `data.frame_sizes_px` has them; crops do not count."""
    sizes_px = enumerate(found.sizes_px.tolist())
    counts = collections.Counter(tuple(size) for row, size in sizes_px if not found.crop_px(row))
    most_first = sorted(counts, key=lambda size: (-counts[size], size))
    return tuple(side for size in most_first[:_NOTED_SIZES] for side in size)


def select_keypoints(found: project.Project, data: DataConfig) -> project.Project:
    """Returns the project with the keypoints of `data.keypoint_names` alone, in that order.

    Raises:
      UserError: a name is not in the label file; or the project names keypoints that no label file has, and
        `data.keypoint_names` does not say which to train.
    """
    if found.unlabelled_names and not data.keypoint_names:
        # Quoted, because a name such as 1 would be read as a number.
        have = ",".join(f'"{name}"' for name in found.poses.keypoint_names)
        raise UserError(
            f"the project names the keypoints {', '.join(found.unlabelled_names)}, and no label file has them; correct "
            f"the names, or train the others alone: data.keypoint_names='({have},)'"
        )
    if not data.keypoint_names:
        return found
    # A name may be given in another Unicode form than that of the label file.
    spelled = {same_letters(name): name for name in found.poses.keypoint_names}
    wanted = tuple(spelled.get(same_letters(name), name) for name in data.keypoint_names)
    unknown = [name for name in wanted if name not in found.poses.keypoint_names]
    if unknown:
        raise UserError(
            f"data.keypoint_names has {unknown[0]!r}; the label file has {', '.join(found.poses.keypoint_names)}"
        )
    return match_keypoints(found, wanted)


def match_keypoints(found: project.Project, names: tuple[str, ...]) -> project.Project:
    """Returns the project with exactly these keypoints, in this order; keypoints that the project lacks are unlabelled.

    Raises:
      UserError: it has none of them.
    """
    if not set(names) & set(found.poses.keypoint_names):
        raise UserError(
            f"{found.label_file} has the keypoints {', '.join(found.poses.keypoint_names)}; needed is one of "
            f"{', '.join(names)}"
        )
    return dataclasses.replace(found, poses=found.poses.with_keypoints(names))


def sets_in_run(found: project.Project, known: KnownSplit) -> np.ndarray:
    """Returns the set (n,) of each frame in a run (same bytes, even if renamed), "unused" if it was not in the run."""
    pairs = zip(found.poses.frames, found.checksums, strict=True)
    return np.array([known.set_of_same(image, checksum) or UNUSED for image, checksum in pairs])


def changed_labels(found: project.Project, known: KnownSplit) -> int:
    """Returns how many frames of a run (same path, same bytes) have other labels now."""
    frames = zip(found.poses.frames, found.checksums, found.labels_checksums(), strict=True)
    return sum(
        known.checksums.get(image) == checksum and known.labels_checksums[image] not in ("", labels_checksum)
        for image, checksum, labels_checksum in frames
    )


def describe_not_visible(found: project.Project) -> list[str]:
    """Returns a sentence about the labels that are marked as not visible and have a position, [] without any."""
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
    described = (split.describe_new, split.describe_limit, leaks.describe_leaks)
    messages = (*(line for describe in described for line in describe(found, sets, data)), *messages)
    return Dataset(found, sets, samples, (data.input_width_px, data.input_height_px), messages)


def files_beside(found: project.Project, config: Config) -> list[Path]:
    """Returns the files next to the labelled images that a context model sees: images, then videos."""
    if config.model.kind != "heatmap_context":
        return []
    radius = CONTEXT_RADIUS["heatmap_context"]
    return windows.files_beside(found, config.data, radius, _videos(found, config))


def _other_white(found: project.Project, data: DataConfig) -> list[str]:
    """Returns a sentence if a run's white is not that of a project's images of more than 8 bits."""
    white = data.white or WHOLE_RANGE
    if found.white in (0, white):
        return []
    return [
        f"{found.label_file}: {found.white:g} would suit its images of more than 8 bits, but white is {white:g} "
        "(data.white of the run), so they look brighter or darker than the run's"
    ]


def _videos(found: project.Project, config: Config) -> dict[str, Path]:
    """Returns the videos with the frames around the labelled ones, by their names."""
    files = sessions.video_files(config.data, config.video) | dict(found.video_files)
    return files | {name: file for name in set(found.videos) if (file := of_name(name, files))}


def check_decoding(found: project.Project, config: Config) -> list[str]:
    """Decodes what `decode` returns, keeps nothing, and returns sentences about the frames around labelled ones.

    Raises:
      UserError: as `decode`.
    """
    data = config.data
    size_px = data.input_width_px, data.input_height_px
    if config.model.kind == "heatmap_context":
        radius = CONTEXT_RADIUS["heatmap_context"]
        return context.check_windows(found, data, size_px, radius, _videos(found, config))
    affines = images.fit_affines(found, data, size_px)

    def read(row: int) -> None:
        images.read_labelled(found, row, affines[row], size_px, data)

    for _ in map_in_threads(read, range(len(found.poses.frames)), data.threads, "decoding images"):
        pass
    return []


def decode(found: project.Project, config: Config) -> tuple[Samples, tuple[str, ...]]:
    """Returns the frames of a project as the network sees them, and sentences about frames that were substituted.

    The size of the network's input must be filled in. A context model sees each frame with its neighbours.

    Raises:
      UserError: a frame does not decode.
    """
    data, messages = config.data, list[str]()
    size_px = data.input_width_px, data.input_height_px
    if config.model.kind == "heatmap_context":
        radius = CONTEXT_RADIUS["heatmap_context"]
        frames, messages = context.load_windows(found, data, size_px, radius, _videos(found, config))
    else:
        frames = images.load_frames(found, data, size_px)
    keypoints_px = geometry.apply(frames.input_from_frame, found.keypoints_frame_px)
    # A point outside the crop may be in the input, or augmentation may move it there, but the image is black there.
    visibility = np.where(images.outside_parts(found, data.crop_px), np.int8(0), found.visibility)
    points_px = keypoints_px.astype(np.float32)
    poses = dataclasses.replace(
        found.poses, points_px=points_px[:, None], visibility=visibility[:, None], columns={}, pixels="input"
    )
    samples = Samples(frames.pixels, poses, frames.frame_from_input)
    return samples, (*messages, *_other_white(found, data))
