"""Compares converted networks with the package deeplabcut, on networks that it builds, with random weights.

The package and jaxpose need not share an environment. The first command needs deeplabcut 3, the second one jaxpose:

    python benchmarks/deeplabcut_parity.py make FOLDER
    python benchmarks/deeplabcut_parity.py compare FOLDER

Input: none. Output of `make`: for each network a snapshot, its config, frames, boxes, and the package's maps and poses.
Output of `compare`: a line for each network with the largest differences.
"""
# The package deeplabcut is in an environment of its own.
# pyright: reportMissingImports=false

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

BODYPARTS = ["nose", "left ear", "right ear", "tail"]
FRAMES = 2
# Name -> (net_type, size of the frames (width, height), side of the boxes or 0 for whole frames).
NETWORKS = {
    "resnet_50": ("resnet_50", (320, 256), 0),
    "resnet_50, frames of an odd size": ("resnet_50", (333, 245), 0),
    "resnet_101": ("resnet_101", (320, 256), 0),
    "superanimal_quadruped, boxes of the input's size": ("superanimal", (400, 320), 256),
    "superanimal_quadruped, boxes of half its size": ("superanimal", (400, 320), 128),
    "superanimal_quadruped, boxes of 300 px, shrunk": ("superanimal", (420, 330), 300),
}


def make(folder: Path) -> None:
    import torch
    from deeplabcut.pose_estimation_pytorch.apis.utils import get_pose_inference_runner
    from deeplabcut.pose_estimation_pytorch.config import PoseConfig
    from deeplabcut.pose_estimation_pytorch.models import PoseModel

    rng = np.random.default_rng(0)
    for number, (net_type, size_px, side_px) in enumerate(NETWORKS.values()):
        place = folder / str(number)
        place.mkdir(parents=True)
        config = _config(net_type)
        torch.manual_seed(number)
        model = PoseModel.build(dict(config["model"])).eval()
        with torch.no_grad():
            for name, tensor in model.state_dict().items():
                if tensor.ndim == 1 and not name.startswith("heads."):
                    # Norms: scales and variances around 1, biases and means around 0.
                    around = 0.0 if name.endswith(("bias", "mean")) else 1.0
                    tensor.copy_(around + 0.2 * (torch.rand(tensor.shape) - 0.5))
                elif name.startswith("heads."):
                    tensor.copy_(0.01 * torch.randn(tensor.shape))
            # Maps and offsets of the size that trained networks have.
            found = model(torch.randn(1, 3, 128, 128))["bodypart"]
            for part, maps in (("heatmap_head", found["heatmap"]), ("locref_head", found["locref"])):
                for tensor in getattr(model.heads["bodypart"], part).parameters():
                    tensor.div_(maps.abs().max())
        metadata = {"epoch": 200, "metrics": {"metrics/test.rmse": np.float64(3.5)}, "losses": {}}
        torch.save({"metadata": metadata, "model": model.state_dict()}, place / "snapshot-200.pt")
        PoseConfig.from_dict(config).to_yaml(place / "pytorch_config.yaml", overwrite=True)
        frames = [_picture(rng, size_px) for _ in range(FRAMES)]
        corners = [(8, 12), (96, 16)] if side_px else []
        boxes = np.array([(*corner, side_px, side_px) for corner in corners]).reshape(-1, 4)
        runner = get_pose_inference_runner(config, place / "snapshot-200.pt", device="cpu", max_individuals=1)
        given = [(frame, {"bboxes": boxes[n : n + 1]}) if side_px else frame for n, frame in enumerate(frames)]
        poses = np.stack([found["bodyparts"][0] for found in runner.inference(given)])
        with torch.no_grad():
            batch = torch.cat([runner.preprocessor(frame, dict(more))[0] for frame, more in _pairs(given)])
            outputs = model(batch)["bodypart"]
        arrays = {"frames": np.stack(frames), "boxes": boxes, "poses": poses}
        np.savez(place / "known.npz", **arrays, **{name: value.numpy() for name, value in outputs.items()})
        print(place, flush=True)


def _pairs(given: list[Any]) -> list[tuple[np.ndarray, dict]]:
    return [one if isinstance(one, tuple) else (one, {}) for one in given]


def _config(net_type: str) -> dict:
    from deeplabcut.pose_estimation_pytorch.config import PoseConfig
    from deeplabcut.pose_estimation_pytorch.config.enums import NetType
    from deeplabcut.pose_estimation_pytorch.config.make_pose_config import build_pose_config_defaults
    from deeplabcut.pose_estimation_pytorch.config.metadata import PoseMetadata
    from deeplabcut.pose_estimation_pytorch.task import Task

    if net_type == "superanimal":
        return PoseConfig.build_for_superanimal_inference(
            "superanimal_quadruped", model_name="resnet_50", detector_name="fasterrcnn_resnet50_fpn_v2"
        ).to_dict()
    metadata = PoseMetadata(bodyparts=BODYPARTS, individuals=["animal"])
    return build_pose_config_defaults(NetType(net_type), metadata, task=Task.BOTTOM_UP, multi_animal=False)


def _picture(rng: np.random.Generator, size_px: tuple[int, int]) -> np.ndarray:
    """Returns a smooth picture (height, width, 3) uint8."""
    import cv2

    small = rng.integers(0, 256, (size_px[1] // 8, size_px[0] // 8, 3), dtype=np.uint8)
    return cv2.resize(small, size_px, interpolation=cv2.INTER_CUBIC)


def compare(folder: Path) -> None:
    import jax
    import jax.numpy as jnp

    from jaxpose.conversion.deeplabcut import Source, convert_snapshot
    from jaxpose.model.pose_net import apply_network
    from jaxpose.prediction.predictor import load
    from jaxpose.run.load import load_network

    for number, (title, (_, size_px, side_px)) in enumerate(NETWORKS.items()):
        place = folder / str(number)
        known = np.load(place / "known.npz")
        run = place / "run"
        convert_snapshot(Source(place / "snapshot-200.pt", size_px=() if side_px else size_px), run, overwrite=True)
        points, confidence = load(run, devices=1, batch_size=1).predict(
            list(known["frames"]), *([known["boxes"]] if side_px else [])
        )
        poses = known["poses"]
        distance_px = np.linalg.norm(points - poses[..., :2], axis=-1)
        line = {"keypoints_px": float(distance_px.max()), "confidence": float(np.abs(confidence - poses[..., 2]).max())}
        if not side_px or side_px == 256:
            network = load_network(run)
            frames = known["frames"]
            if side_px:
                frames = np.stack(
                    [f[y : y + h, x : x + w] for f, (x, y, w, h) in zip(frames, known["boxes"], strict=True)]
                )

            def outputs(frame: np.ndarray, network: Any = network) -> jax.Array:
                sequences, counted = [jnp.asarray(frame, jnp.float32)[None, None]], [jnp.ones((1, 1), bool)]
                found, _ = apply_network(
                    network.graphdef, network.params, network.statistics, sequences, counted, jnp.float32(1), False
                )
                return found[0][0, 0, 0]

            with jax.default_matmul_precision("highest"):
                ours = np.stack([jax.jit(outputs)(frame) for frame in frames])
            theirs = known["locref"].reshape(FRAMES, -1, 2, *known["locref"].shape[2:])
            line["maps"] = float(np.abs(ours[:, :, 0] - known["heatmap"]).max())
            line["largest_map"] = float(np.abs(known["heatmap"]).max())
            line["offsets_px"] = 7.2801 * float(np.abs(ours[:, :, 1:] - theirs).max())
        print(
            json.dumps({"network": title} | {name: float(f"{value:.2g}") for name, value in line.items()}), flush=True
        )


if __name__ == "__main__":
    verbs = {"make": make, "compare": compare}
    if len(sys.argv) != 3 or sys.argv[1] not in verbs:
        sys.exit(__doc__)
    with contextlib.suppress(KeyboardInterrupt):
        verbs[sys.argv[1]](Path(sys.argv[2]))
