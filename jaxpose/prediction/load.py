"""Reads a trained run and compiles its network for the devices."""

# pyright: reportInvalidTypeForm=false
# (jaxlib has no stubs: pyright does not know jax.Device)

import dataclasses
import os
import re
from pathlib import Path

import jax

from jaxpose.cluster.devices import describe, start_backend
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.config import Config, validate
from jaxpose.errors import UserError
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.phases import phase
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Predictor
from jaxpose.run.ensemble import refuse_ensemble
from jaxpose.run.load import load_network, read_run_config
from jaxpose.run.pca import agreeing_views, load_subspaces
from jaxpose.run.run_argument import run_folder


def load(
    run: str | os.PathLike,
    *,
    devices: object = "auto",
    platform: str = "auto",
    batch_size: int | None = None,
    labelled_batch_size: int | None = None,
    is_compiled: bool = True,
) -> Predictor:
    """One frame takes 16 ms of CPU time with resnet18 at 128 px, 95 ms with resnet50 at 256 px (Xeon; no GPU yet).

    Returns the best network of a run, compiled; of an unfinished run, its best checkpoint so far. `predict(frame)` of a
    single frame has a program of its own, which the first such call compiles (some seconds); with batch_size=1 that is
    the only program, and `load` compiles it. Frames in a list or stack are predicted `batch_size` at a time, and a call
    takes the time of full batches.

    Args:
      run: a run folder of `jaxpose.train`, or a folder of runs: the newest, whose name is printed.
      devices: as the option mesh.devices.
      platform: as the option mesh.platform.
      batch_size: frames at once on each device; None is the run's eval.batch_size.
      labelled_batch_size: labelled frames at once; None is `batch_size`.
      is_compiled: False leaves compiling to `Predictor.compile`, as there may be nothing to predict.

    Raises:
      UserError: the folder is not a run or has no weights, or a device does not exist.
    """
    run = Path(run_folder(run))
    config = read_run_config(run)
    refuse_ensemble(run, config)
    config = dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, devices=devices, platform=platform))
    if batch_size is not None:
        config = dataclasses.replace(config, eval=dataclasses.replace(config.eval, batch_size=batch_size))
    chosen = start_devices(config)
    with phase("reading the weights"):
        trained = load_network(run)
    mesh = make_mesh(chosen)
    subspaces = load_subspaces(run, config)
    runner = BatchRunner(
        config, trained.graphdef, mesh, config.eval.batch_size, labelled_batch_size,
        agreeing_views(config.model, subspaces),
    )  # fmt: skip
    with pinned_settings(config.train.precision):
        weights = replicate(mesh, (trained.params, trained.statistics))
    predictor = Predictor(config, runner, weights, describe(chosen), subspaces, trained.label)
    if is_compiled:
        predictor.compile()
    return predictor


def start_devices(config: Config) -> list[jax.Device]:
    """Checks a config with the flags of a verb in it, starts JAX, and returns the devices.

    Raises:
      UserError: a value is not allowed, or a device does not exist.
    """
    try:
        validate(config)
        with phase("starting the devices"):
            return start_backend(config.mesh)
    except UserError as error:
        # jaxpose train calls it mesh.devices=2, these verbs --devices=2.
        text = re.sub(r"\bmesh\.(\w+=)", r"--\1", str(error)).replace("mesh.", "").replace("eval.", "")
        raise UserError(text) from None
