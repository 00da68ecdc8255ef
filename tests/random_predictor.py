"""A predictor that nobody trained."""

import jax
import numpy as np

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.config.losses import PcaSingleviewConfig
from jaxpose.model.pose_net import make_network
from jaxpose.pose.pca import fit_singleview
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Predictor
from tests.lively import lively


def predictor_of(kind: str) -> Predictor:
    """A network with weights that nobody trained, whose maps differ much from frame to frame."""
    names = ("nose", "ear", "tail")
    config = c.Config(
        data=c.DataConfig(project="p", input_height_px=32, input_width_px=32, keypoint_names=names),
        model=c.ModelConfig(kind=kind, backbone="resnet10", width=8, head_width=4),
        eval=c.EvalConfig(batch_size=8),
    )
    graphdef, params, statistics = make_network(config.model, len(names), "f32", seed=0)
    params = lively(params)
    mesh = make_mesh(jax.devices()[:2])
    poses = np.random.default_rng(1).normal(16, 5, (40, 3, 2))
    pca = fit_singleview(poses, range(3), PcaSingleviewConfig(components=2))
    weights = replicate(mesh, (params, statistics))
    return Predictor(
        config, BatchRunner(config, graphdef, mesh, 8), weights, ["cpu"], {"pca_singleview": pca}, "random"
    )
