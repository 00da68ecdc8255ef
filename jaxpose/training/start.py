"""The start of a training: its devices and its data, which must be the same for all processes."""

import jax
from jax.sharding import Mesh

from jaxpose.cluster.agreement import on_all_processes, require_same
from jaxpose.cluster.devices import require_threads, start_backend
from jaxpose.cluster.mesh import make_mesh
from jaxpose.config import Config, portable_options, resolve
from jaxpose.data import dataset, split
from jaxpose.data.boxes import boxes_checksum
from jaxpose.data.report import data_report
from jaxpose.data.sessions import sessions
from jaxpose.data.video_boxes import boxes_of_videos
from jaxpose.extras import need
from jaxpose.formats.project import prepare
from jaxpose.phases import phase
from jaxpose.prediction.evaluation import extra_projects
from jaxpose.remote.store import load_hook
from jaxpose.run.out import refuse_unusable_out
from jaxpose.terminal import print_lines
from jaxpose.training.setup import Setup


def start_devices(config: Config) -> tuple[Config, Mesh]:
    """Returns the resolved config and the devices of all processes.

    Raises:
      TypeError: what is given is no Config.
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
    # All streams are of the same videos.
    clip_files = next((stream.source.files() for stream in setup.clips.values()), [])
    files_beside = on_all_processes(lambda: dataset.files_beside(data.project, setup.config))
    of_clips = on_all_processes(lambda: boxes_of_videos(setup.config.data, clip_files))
    text = split.split_text(
        data.project, data.sets, clip_files, files_beside, setup.weights_sha256, setup.trained_before,
        setup.weights_option, boxes_checksum(data.project.boxes_px, *of_clips.values()),
        setup.teacher_sha256,
    )  # fmt: skip
    require_same({f"line {n} of split.csv": line for n, line in enumerate(text.splitlines(), 1)})
    return text
