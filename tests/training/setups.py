"""What a training has before it compiles."""

import jax

from jaxpose import config as c
from jaxpose.cluster.mesh import make_mesh
from jaxpose.data import dataset
from jaxpose.training.pretrain_setup import make_pretrain_setup, read_videos
from jaxpose.training.setup import Setup, make_setup


def begin_pretraining(config: c.Config) -> Setup:
    """The setup of a pretraining on one device."""
    config, videos = read_videos(c.resolve(config))
    return make_pretrain_setup(config, make_mesh(jax.devices()[:1]), videos)


def begin(config: c.Config) -> Setup:
    """The setup of a training on one device."""
    config, project = dataset.prepare(c.resolve(config))
    return make_setup(config, make_mesh(jax.devices()[:1]), dataset.load(project, config))
