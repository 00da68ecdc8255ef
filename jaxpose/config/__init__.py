"""Every option of jaxpose as typed dataclasses: defaults, meaning, units and rules.

Input: a `Config` made by `configs/*.py` and changed by flags. Output: a checked, resolved `Config`, and `config.json`,
which later commands read as data.
"""

from jaxpose.config.augment import PRESETS, AugmentConfig
from jaxpose.config.check import resolve, validate, validate_stored
from jaxpose.config.data import DataConfig, crop_of_video, video_crop
from jaxpose.config.evaluate import EvalConfig
from jaxpose.config.log import LogConfig
from jaxpose.config.losses import (
    ConsistencyConfig,
    LossesConfig,
    PcaMultiviewConfig,
    PcaSingleviewConfig,
    TemporalConfig,
    TemporalHeatmapConfig,
    UnimodalConfig,
)
from jaxpose.config.mesh import MeshConfig
from jaxpose.config.model import BACKBONES, ModelConfig
from jaxpose.config.optim import OptimConfig
from jaxpose.config.paths import SPLIT_KINDS, SYNTHETIC, find_path, project_folder
from jaxpose.config.predict import PredictConfig
from jaxpose.config.pretrain import PretrainConfig
from jaxpose.config.root import (
    Config,
    config_hash,
    differing_keys,
    from_dict,
    from_json,
    harmless_keys,
    portable_options,
    to_json,
)
from jaxpose.config.train import TrainConfig
from jaxpose.config.video import VideoConfig

__all__ = [
    "AugmentConfig", "BACKBONES", "Config", "ConsistencyConfig", "DataConfig", "EvalConfig", "LogConfig",
    "LossesConfig", "MeshConfig", "ModelConfig", "OptimConfig", "PRESETS", "PcaMultiviewConfig",
    "PcaSingleviewConfig", "PredictConfig", "SPLIT_KINDS", "SYNTHETIC", "TemporalConfig", "TemporalHeatmapConfig",
    "PretrainConfig", "TrainConfig", "UnimodalConfig", "VideoConfig", "config_hash", "crop_of_video",
    "differing_keys", "find_path", "from_dict", "from_json", "harmless_keys", "portable_options", "project_folder",
    "resolve", "to_json", "validate", "validate_stored", "video_crop",
]  # fmt: skip
