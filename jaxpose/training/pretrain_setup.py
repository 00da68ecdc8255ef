"""Prepares a pretraining: videos without labels, the initial weights, and the teacher of a distillation."""

import dataclasses

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from jaxpose.cluster.agreement import arrays_from_0, on_all_processes
from jaxpose.config import SYNTHETICS, Config, DataConfig, ModelConfig, project_folder
from jaxpose.config import train as lengths
from jaxpose.data.boxes import boxes_of_videos
from jaxpose.data.dataset import Dataset
from jaxpose.data.images import square_side_px
from jaxpose.data.inputs import clip_sessions, named_videos, video_files
from jaxpose.data.label_files import refuse_absent_project
from jaxpose.data.loader import Samples
from jaxpose.data.project import Project
from jaxpose.data.synthetic import make_named
from jaxpose.errors import UserError, need
from jaxpose.formats import project as formats
from jaxpose.model.pose_net import make_network, make_teacher, map_count
from jaxpose.poses import Poses
from jaxpose.remote.store import load_hook
from jaxpose.run.paths import refuse_unusable_out
from jaxpose.run.weights import checksum
from jaxpose.steps.layout import microbatch_size
from jaxpose.steps.terms import DataFacts
from jaxpose.training.initial_weights import load_backbone, load_initial_weights
from jaxpose.training.setup import Setup, describe_limits, open_clip_streams
from jaxpose.video.index import as_labelled, labelled_sizes_px, read_index

_TEACHER = "pretrain.teacher"
_WHY = "pretraining learns from videos"


def read_videos(config: Config) -> tuple[Config, Dataset]:
    """Returns the config with the size of the input filled in, and a dataset without labelled frames.

    Raises:
      UserError: on some process, the place of the run folder, the project, its videos or the hook cannot be used.
    """

    def read() -> tuple[Config, Dataset]:
        refuse_unusable_out(config.out)
        load_hook(config.log.remote_hook)
        if config.log.tracker != "none":
            need(config.log.tracker, f"log.tracker={config.log.tracker}")
        data = config.data
        if data.project in SYNTHETICS:
            data = dataclasses.replace(data, project=str(make_named(data.project)))
        refuse_absent_project(data.project)
        named, notes = formats.named_videos(data)
        video = named_videos(data, config.video, named)
        if notes and not video_files(data, video):
            raise UserError(
                f"{_WHY}, but none that {data.project} names can be used ({'; '.join(notes)}): put them into "
                f"{project_folder(data.project)}, or name their folder in video.folder"
            )
        if not data.input_width_px:
            side_px = _side_px(dataclasses.replace(config, data=data, video=video))
            data = dataclasses.replace(data, input_width_px=side_px, input_height_px=side_px)
        return dataclasses.replace(config, data=data, video=video), _without_labels(data, notes)

    return on_all_processes(read)


def make_pretrain_setup(config: Config, mesh: Mesh, data: Dataset) -> Setup:
    """Makes or loads the first weights and those of the teacher, and opens the videos; compiles nothing.

    Raises:
      UserError: there is no video, or weights cannot be read or do not fit.
    """
    train = config.train
    graphdef, params, statistics = make_network(config.model, map_count(config), train.precision, train.seed)
    initial = load_initial_weights(config, data, params, statistics)
    teacher, teacher_params, message = _load_teacher(config)
    clips, notes = open_clip_streams(config, "pretraining learns from videos")
    frames = clips["unlabelled"].source.frame_count
    total_steps = lengths.total_steps(train, frames)
    facts = DataFacts(
        size_px=(config.data.input_height_px, config.data.input_width_px),
        passes=-(-train.batch_size // microbatch_size(train)),
        steps_per_epoch=lengths.steps_per_epoch(train, frames),
        total_steps=total_steps,
        has_new_head=initial.has_new_head,
        teacher=teacher,
    )
    messages = [
        *data.project.notes,
        *initial.messages * bool(initial.option),
        *message,
        *describe_limits(config, mesh, data, total_steps),
    ]
    return Setup(
        config, mesh, data, graphdef, initial.params, initial.statistics, facts, clips, initial.option,
        initial.sha256, initial.trained_before, {}, [*messages, *notes], teacher_params,
        checksum(teacher_params) if teacher_params else "",
    )  # fmt: skip


def _load_teacher(config: Config) -> tuple[nnx.GraphDef | None, dict | None, list[str]]:
    """Returns definition and parameters of the teacher, if any, and messages; process 0 reads it for all."""
    if config.pretrain.method != "distill":
        return None, None, []
    graphdef, params = make_teacher(config.pretrain, config.train.precision)
    model = ModelConfig(backbone=config.pretrain.teacher_backbone, weights=config.pretrain.teacher)

    def load() -> tuple[str, dict]:
        backbone = load_backbone(model, params["backbone"], {}, _TEACHER)
        return backbone.message, backbone.params

    message, loaded = arrays_from_0(load, jax.tree.map(np.asarray, params["backbone"]))
    return graphdef, {"backbone": loaded}, [message] * bool(message)


def _side_px(config: Config) -> int:
    """Returns the side of the input by the rule for labelled images, applied to video frames."""
    data = config.data
    sessions = clip_sessions(data, config.video, _WHY)
    files = [file for session in sessions for file in session]
    if data.crop_px:
        return square_side_px(np.array([data.crop_px[2:]]), 0)
    if boxes_px := boxes_of_videos(data, files):
        sizes_px = np.concatenate([boxes[boxes[:, 2] > 0, 2:] for boxes in boxes_px.values()])
        return square_side_px(sizes_px, 0)
    labelled_px = labelled_sizes_px(data)
    indexes = [as_labelled(read_index(file), labelled_px) for file in files]
    return square_side_px(np.array([(index.width_px, index.height_px) for index in indexes]), 0)


def _without_labels(data: DataConfig, notes: list[str]) -> Dataset:
    """Returns the dataset of a project without reading its labels, and sentences about its videos."""
    folder, size_px = project_folder(data.project), (data.input_width_px, data.input_height_px)
    poses = Poses.of_one_animal((), (), np.zeros((0, 0, 2), np.float32), visibility=np.zeros((0, 0), np.int8))
    project = Project(
        folder=folder, label_file=folder, poses=poses, paths=(), sources=(), videos=(), views=(),
        moments=np.zeros(0, np.int32), sizes_px=np.zeros((0, 2), np.int32), byte_counts=(), checksums=(),
        pixel_checksums=(), problems=(), notes=tuple(notes),
    )  # fmt: skip
    pixels = np.zeros((0, 1, size_px[1], size_px[0], 3), np.uint8)
    poses = dataclasses.replace(poses, pixels="input")
    samples = Samples(pixels, poses, np.zeros((0, 2, 3), np.float32))
    return Dataset(project, np.zeros(0, "<U10"), samples, size_px)
