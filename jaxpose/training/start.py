"""Starts a training: its devices and its data, which must be the same for all processes, and the start block."""

import jax
from jax.sharding import Mesh

from jaxpose.cluster.agreement import on_all_processes, require_same
from jaxpose.cluster.devices import describe, require_threads, start_backend
from jaxpose.cluster.mesh import make_mesh
from jaxpose.config import Config, portable_options, resolve
from jaxpose.config.data import mask_steps
from jaxpose.config.model import BACKBONES, ModelConfig, views_at_once
from jaxpose.config.terms import terms
from jaxpose.data import dataset, split
from jaxpose.data.boxes import boxes_checksum, boxes_of_videos
from jaxpose.data.inputs import sessions
from jaxpose.data.report import data_report
from jaxpose.data.rigs import cameras_checksum
from jaxpose.errors import need
from jaxpose.formats.project import prepare
from jaxpose.model.pose_net import map_count
from jaxpose.poses import SETS
from jaxpose.prediction.evaluation import extra_projects
from jaxpose.progress import phase
from jaxpose.remote.store import load_hook
from jaxpose.run.paths import refuse_unusable_out
from jaxpose.steps.layout import microbatch_size, part_count
from jaxpose.steps.optim import peak_rate
from jaxpose.steps.state import parameter_count
from jaxpose.terminal import count, print_lines
from jaxpose.threads import allowed_cores
from jaxpose.training.batches import shards_of_step
from jaxpose.training.compiled_run import CompiledRun
from jaxpose.training.initial_weights import describe_backbone_rate
from jaxpose.training.loop import members_at_once
from jaxpose.training.setup import Setup


def start_devices(config: Config) -> tuple[Config, Mesh]:
    """Returns the resolved config and the devices of all processes.

    Raises:
      TypeError: the argument is not a Config.
      UserError: the devices cannot be used, or a process has other options.
    """
    if not isinstance(config, Config):
        raise TypeError(
            f"train takes a Config, not {config!r}: config = Config(); config.data.project = 'mice'; train(config)"
        )
    asked, config = config.mesh, resolve(config)
    with phase("starting the devices"):
        devices = start_backend(config.mesh)
        require_threads(asked, devices)
    require_same({name: value for name, value in portable_options(config).items() if name != "mesh.process"})
    return config, make_mesh(devices)


def read_data(config: Config, shows: bool) -> tuple[Config, dataset.Dataset]:
    """Returns the config with all options that depend on the project filled in, and the labelled frames.

    Args:
      config: the resolved config.
      shows: print the report on the data, on process 0.

    Raises:
      UserError: on some process, the place of the run folder, the project, an extra label file, the hook or the videos
        cannot be used.
    """

    def read() -> tuple[Config, dataset.Dataset]:
        refuse_unusable_out(config.out)
        prepared, project = prepare(config)
        if shows and jax.process_index() == 0:
            print_lines("\n".join(data_report(prepared, project)))
        # Refuse now what could not be evaluated, predicted or passed to the hook at the end.
        load_hook(prepared.log.remote_hook)
        if prepared.log.tracker != "none":
            need(prepared.log.tracker, f"log.tracker={prepared.log.tracker}")
        extra_projects(prepared)
        if prepared.eval.predict_videos != "no":
            sessions(prepared.data, prepared.video)
        return prepared, dataset.load(project, prepared)

    return on_all_processes(read)


def list_files(setup: Setup) -> str:
    """Returns the text of split.csv: every file that the training reads, fixed here, once.

    Raises:
      UserError: the processes do not see the same files.
    """
    data = setup.data
    # All streams have the same videos.
    clip_files = next((stream.source.files() for stream in setup.clips.values()), [])
    files_beside = on_all_processes(lambda: dataset.files_beside(data.project, setup.config))
    of_clips = on_all_processes(lambda: boxes_of_videos(setup.config.data, clip_files))
    text = split.split_text(
        data.project, data.sets, clip_files, files_beside, setup.weights_sha256, setup.trained_before,
        setup.weights_option, boxes_checksum(data.project.boxes_px, *of_clips.values()),
        setup.teacher_sha256, cameras_checksum(setup.rigs), data.empty_rows,
    )  # fmt: skip
    require_same({f"line {n} of split.csv": line for n, line in enumerate(text.splitlines(), 1)})
    return text


# The start block: the devices, sizes and costs of a run, as rows of name and text.

_MIB = 2**20
# The two newest, the best, and the one that is being written.
_CHECKPOINTS_AT_ONCE = 4


def start_block(run: CompiledRun, members: int = 1) -> dict[str, str]:
    """Returns the rows of the start block; the step's cost is a row only once the step is compiled.

    Args:
      run: the training, or the first one of an ensemble's members.
      members: their number, 1 for a single network.
    """
    setup = run.setup
    config, facts = setup.config, setup.facts
    machines = len(set(run.machines))
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(run.state))
    cores = f"cores allowed: {allowed_cores()}"
    return {
        **_describe_data(setup),
        **_describe_members(run, members),
        "network": f"{config.model.backbone}{_describe_choices(config.model)}, "
        f"{parameter_count(run.state.params):,} parameters, {config.train.precision}",
        "input": _describe_input(setup),
        "processes": f"{jax.process_count()}" + (f" on {machines} machines" if machines > 1 else ""),
        "devices": "; ".join(describe(list(setup.mesh.devices.flat))),
        "loader": f"threads: {run.threads[0]} here ({cores}), {sum(run.threads)} in all",
        "batch": _describe_batch(setup),
        **_describe_masks(setup),
        **_describe_clips(setup),
        **_describe_rate(setup),
        **({"backbone": describe_backbone_rate(config.optim, facts)} if setup.weights_option else {}),
        "length": f"{facts.total_steps} steps; an epoch is {facts.steps_per_epoch}",
        **({"step": run.step_cost} if run.step_cost else {}),
        "disk": f"about {members * _CHECKPOINTS_AT_ONCE * state_bytes / _MIB:,.0f} MiB of checkpoints",
    }


def _describe_data(setup: Setup) -> dict[str, str]:
    data, config = setup.data, setup.config
    if not data.has_labels:
        ((term,), (stream,)) = terms(config), setup.clips.values()
        videos = count(len(stream.source.files()), "video")
        return {"project": f"{data.project.folder}, {videos}, no labels", "method": term.name}
    counts = {name: len(data.rows(name)) for name in SETS}
    untested = "; no test set: the validation error is that of the frames that choose the checkpoint"
    of_kind = f" ({data.project.kind})" if data.project.kind else ""
    absent = data.project.describe_absent()
    untested *= not data.is_selection_tested(config.train.monitor)
    return {
        "project": f"{data.project.folder}{of_kind}, {len(config.data.keypoint_names)} keypoints",
        "animals" if data.project.most_animals else "frames": ", ".join(
            f"{count} {name}" for name, count in counts.items() if count
        )
        + f"; {absent}" * bool(absent)
        + untested,
    }


def _describe_members(run: CompiledRun, members: int) -> dict[str, str]:
    if members == 1:
        return {}
    mesh = run.setup.mesh
    where = "side by side on one device" if mesh.size == 1 else f"each on all {mesh.size} devices, in turns"
    state_mib = sum(leaf.nbytes for leaf in jax.tree.leaves(run.state)) / _MIB
    text = f"{members} networks, {where}; a device holds {members * state_mib:,.0f} MiB for their states"
    if run.step:
        # On a CPU, members are computed at the same time as far as there are cores.
        at_once = members_at_once(mesh, members)
        needed_mib = members * state_mib + at_once * max(0.0, run.step.needed_bytes / _MIB - state_mib)
        text += f", and needs at most {needed_mib:,.0f} MiB"
    return {"members": text}


def _describe_choices(model: ModelConfig) -> str:
    return f", width {model.width}, {model.norm} norm" if BACKBONES[model.backbone].has_width else ""


def _describe_input(setup: Setup) -> str:
    model, (width, height) = setup.config.model, setup.data.size_px
    stride = model.heatmap_stride
    if model.decoding == "deeplabcut":
        maps = f"one map and two of offsets a keypoint, cells of {stride} px"
        return f"{width} x {height} px (resize: {setup.config.data.resize}), {maps}"
    maps = f"one map of {width // stride} x {height // stride} cells a keypoint"
    if not setup.data.has_labels:
        maps = f"{map_count(setup.config)} numbers a cell of {stride} px"
    cells = f"{width // stride} x {height // stride} cells"
    shown = {
        "regression": "one point a keypoint, no maps",
        "heatmap_context": f"{maps} and head",
        "finder": f"one map of centres and two of offsets a keypoint, {cells}",
    }
    return f"{width} x {height} px (resize: {setup.config.data.resize}), {shown.get(model.kind, maps)}"


def _describe_batch(setup: Setup) -> str:
    train, passes = setup.config.train, setup.facts.passes
    devices = setup.mesh.size
    at_once = -(-microbatch_size(train) // part_count(train, devices))
    taken = "one pass" if passes == 1 else f"{passes} passes of at most {microbatch_size(train)}"
    views = views_at_once(setup.config.model, setup.config.data.views)
    noun = "frames" if views == 1 else f"moments of {views} frames"
    text = f"{train.batch_size} {noun} a step in {taken}, at most {at_once} at once on a device"
    if train.shards <= 0:
        return text
    idle = f", {devices - train.shards} of {devices} devices have none" if train.shards < devices else ""
    return f"{text}; {count(train.shards, 'shard')}{idle}"


def _describe_masks(setup: Setup) -> dict[str, str]:
    augment = setup.config.augment
    if not augment.mask_share:
        return {}
    first, last = mask_steps(augment, setup.facts.steps_per_epoch)
    shares = f"{augment.mask_share_start:.0%} to {augment.mask_share:.0%} of the patches of a frame"
    ends = f"; the run ends at step {setup.facts.total_steps}" * (last > setup.facts.total_steps)
    return {"masks": f"{shares}, from step {first} to step {last}{ends}"}


def _describe_clips(setup: Setup) -> dict[str, str]:
    lines = {}
    for term in terms(setup.config):
        if (stream := setup.clips.get(term.stream.name)) is None:
            continue
        if not setup.data.has_labels:
            lines["frames"] = f"{count(stream.source.frame_count, 'frame')} of video, {stream.per_step} a step"
            continue
        most = shards_of_step(setup, stream, 0).frame_index.shape[-1]
        # A frame and its neighbours are never cut.
        cut = f", at most {most} frames of each on a device" * (term.stream.name == "clips")
        lines[term.stream.name] = f"{term.stream.line}{cut}; {', '.join(term.losses)}"
    return lines | ({"in videos": setup.animal_clips} if setup.animal_clips else {})


def _describe_rate(setup: Setup) -> dict[str, str]:
    optim, batch = setup.config.optim, setup.config.train.batch_size
    if optim.lr_scale == "none":
        return {}
    peak = peak_rate(optim, batch)
    at = f"{optim.lr:g} at {optim.lr_reference_batch} frames a step is {peak:g} at {batch}"
    return {"rate": f"{at} (optim.lr_scale: {optim.lr_scale})"}
