"""The networks of an ensemble as one predictor of labelled frames."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from jaxpose.cluster.devices import describe
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.config import Config
from jaxpose.data.loader import Samples
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.phases import phase
from jaxpose.prediction.batch_runner import BatchRunner, Predictions
from jaxpose.prediction.load import load, start_devices
from jaxpose.prediction.predictor import Predictor
from jaxpose.run.ensemble import member_folders
from jaxpose.run.load import load_network
from jaxpose.run.pca import Subspaces, agreeing_views, load_subspaces

# The predictions of each member, beside their median: (members, n, k, 2).
MEMBERS = "members_frame_px"


class EnsemblePredictor:
    """The networks of an ensemble, which share one compiled program.

    Attributes:
      config: of the ensemble.
      subspaces: as of `Predictor`.
      weights_label: a description of the weights.
      devices: descriptions of its devices.
    """

    def __init__(
        self,
        config: Config,
        runner: BatchRunner,
        weights: Sequence[tuple[dict, dict]],
        subspaces: Subspaces,
        devices: Sequence[str] = (),
    ):
        self.config, self.subspaces, self.devices = config, subspaces, devices
        self.weights_label = f"the best weights of {len(weights)} members"
        self._runner, self._weights = runner, weights

    def labelled(self, samples: Samples, rows: np.ndarray, stops: Callable[[], bool] = lambda: False) -> Predictions:
        """Returns the median of the keypoints and the mean of the confidence of the members, and `MEMBERS`.

        Arguments and errors are those of `Predictor.labelled`.
        """
        found = [self._runner.labelled(*weights, samples, rows, stops) for weights in self._weights]
        members = np.stack([of_member["keypoints_frame_px"] for of_member in found])
        confidence = np.mean([of_member["confidence"] for of_member in found], axis=0)
        return {"keypoints_frame_px": np.median(members, axis=0), "confidence": confidence, MEMBERS: members}


def load_labelling(
    run: Path, config: Config, devices: object, platform: str, batch_size: int | None, labelled_batch_size: int
) -> Predictor | EnsemblePredictor:
    """Returns what predicts labelled frames: the network of a run, or the networks of an ensemble.

    Args:
      run: the run folder.
      config: of this folder.
      devices: as the option mesh.devices.
      platform: as the option mesh.platform.
      batch_size: frames at once on each device; None is the run's eval.batch_size.
      labelled_batch_size: labelled frames at once.

    Raises:
      UserError: a network has no weights, or a device does not exist.
    """
    members = member_folders(run, config)
    if not members:
        return load(
            run, devices=devices, platform=platform, batch_size=batch_size, labelled_batch_size=labelled_batch_size,
            is_compiled=False,
        )  # fmt: skip
    mesh_options = dataclasses.replace(config.mesh, devices=devices, platform=platform)
    at_once = batch_size or config.eval.batch_size
    config = dataclasses.replace(config, mesh=mesh_options, eval=dataclasses.replace(config.eval, batch_size=at_once))
    chosen = start_devices(config)
    mesh = make_mesh(chosen)
    with phase("reading the weights"), pinned_settings(config.train.precision):
        networks = [load_network(member) for member in members]
        weights = [replicate(mesh, (network.params, network.statistics)) for network in networks]
    subspaces = load_subspaces(members[0], config)
    views = agreeing_views(config.model, subspaces)
    runner = BatchRunner(config, networks[0].graphdef, mesh, at_once, labelled_batch_size, views)
    return EnsemblePredictor(config, runner, weights, subspaces, describe(chosen))
