"""Every option of jaxpose as typed dataclasses: defaults, meaning, units and rules.

Input: a `Config` made by `configs/*.py` and changed by flags. Output: a checked, resolved `Config`, and `config.json`,
which later commands read as data.
"""

from jaxpose.config.data import PRESETS, AugmentConfig, DataConfig, VideoConfig, crop_of_video, video_crop
from jaxpose.config.losses import (
    ConsistencyConfig,
    LossesConfig,
    MultiviewConsistencyConfig,
    PcaMultiviewConfig,
    PcaSingleviewConfig,
    ReprojectionConfig,
    TemporalConfig,
    TemporalHeatmapConfig,
    UnimodalConfig,
)
from jaxpose.config.model import BACKBONES, ModelConfig, PretrainConfig
from jaxpose.config.output import EvalConfig, LogConfig, PredictConfig
from jaxpose.config.paths import SPLIT_KINDS, SYNTHETIC, SYNTHETIC_GROUP, SYNTHETICS, find_path, project_folder
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
from jaxpose.config.rules import resolve, validate, validate_stored
from jaxpose.config.train import MeshConfig, OptimConfig, TrainConfig

__all__ = [
    "AugmentConfig", "BACKBONES", "Config", "ConsistencyConfig", "DataConfig", "EvalConfig", "LogConfig",
    "LossesConfig", "MeshConfig", "ModelConfig", "MultiviewConsistencyConfig", "OptimConfig", "PRESETS",
    "PcaMultiviewConfig", "PcaSingleviewConfig", "PredictConfig", "ReprojectionConfig", "SPLIT_KINDS", "SYNTHETIC",
    "SYNTHETICS", "SYNTHETIC_GROUP",
    "TemporalConfig", "TemporalHeatmapConfig", "PretrainConfig", "TrainConfig", "UnimodalConfig", "VideoConfig",
    "config_hash", "crop_of_video", "differing_keys", "find_path", "from_dict", "from_json", "harmless_keys",
    "portable_options", "project_folder", "resolve", "to_json", "validate", "validate_stored", "video_crop",
]  # fmt: skip
