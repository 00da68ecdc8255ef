"""What crosses devices in a step, what would that cost on many GPUs, and what grows with devices and hosts here?

    python benchmarks/scaling.py --part count --backbone resnet18 --out benchmarks/scaling.jsonl
    python benchmarks/scaling.py --part predict --out benchmarks/scaling.jsonl    # --shards: with train.shards
    python benchmarks/scaling.py --part host --out benchmarks/scaling.jsonl

`count` compiles the train step of a network of full size for 1, 2, 8 and 64 fake CPU devices and reads its collectives;
with `--shards`, the programs of the step with `train.shards` that have collectives, which are its sums over devices.
`predict` puts these counts, from the file, into the model of `alpha_beta.py`: all its figures are PREDICTIONS. `host`
measures the dispatch of a step, the compilation, and the input of one host. Appends one JSON line per answer.
"""

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

# Compiling takes half the time without it; collectives are made before it.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")

import jax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 64)

from alpha_beta import EXTRAPOLATION, SLICES, backward_profile, sharded_step_s, step_s  # noqa: E402
from collectives import Collective, collectives  # noqa: E402
from gpu import forward_flops  # noqa: E402
from host_cost import dispatch, input_cost, lower_step, lower_sums  # noqa: E402

from jaxpose import config as c  # noqa: E402
from jaxpose.model.pose_net import make_network  # noqa: E402

KEYPOINTS = 17
NORMS = {"resnet18": ("sync", "group", "frozen"), "resnet50": ("sync", "group", "frozen"),
         "vit_small": ("sync",)}  # fmt: skip
SHARDED_NORMS = {"resnet18": ("shard", "group"), "resnet50": ("shard", "group"), "vit_small": ("sync",)}
DEVICES = (1, 2, 8, 64)
# With `train.shards`: devices, machines, shards.
LAYOUTS = ((1, 1, 8), (2, 1, 8), (8, 1, 8), (8, 2, 8), (64, 1, 64), (64, 2, 64), (64, 8, 64))
GPUS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Images/s of one H200 at 256 px, bf16. Nothing here was measured by jaxpose. resnet50: the goal that was set for this
# project, which is 0.75 of MLPerf's 7,956 images/s at 224 px (training_results_v4.0, H200, 8 GPUs) at 256 px with a
# head. resnet18: by a roofline of bytes and FLOP, with the same share of it. vit_small: 40 % of 989 TFLOP/s.
IMAGES_PER_S = {"resnet50": 4500, "resnet18": 15700, "vit_small": 10000}
# The same, 4 / 3 as fast: resnet50 as MLPerf's. The faster the step, the more a reduction costs.
FAST = 4 / 3
BUCKETS = (2, 4, 8, 16)
AIMS = {8: 0.978, 32: 0.95}


def count(backbone: str) -> Iterator[dict[str, Any]]:
    """Yields a line for each norm: the collectives of the step by number of devices, and of 2 passes on 8 devices."""
    for norm in NORMS[backbone]:
        found: dict[str, Any] = {}
        started = time.process_time()
        for devices, passes in [*((devices, 1) for devices in DEVICES), (8, 2)]:
            network = make_network(c.ModelConfig(backbone=backbone, norm=norm), KEYPOINTS, "f32", 0)
            lowered = lower_step(network, backbone, norm, devices, passes)
            program = lowered.compile({"xla_backend_optimization_level": "0"})
            found[f"{devices} devices, {passes} pass{'es' * (passes > 1)}"] = {
                **_about(collectives(program.as_text() or "")),
                "calls_before_xla_merges": lowered.as_text().count("stablehlo.all_reduce"),
            }
        parameters = sum(leaf.nbytes for leaf in jax.tree.leaves(network[1]))
        yield {"answer": "collectives of the compiled step", "backbone": backbone, "norm": norm,
               "parameters_bytes": parameters, "found": found,
               "cpu_s": round(time.process_time() - started, 1)}  # fmt: skip


def count_shards(backbone: str) -> Iterator[dict[str, Any]]:
    """Yields a line for each norm: the collectives of the step with `train.shards` by number of devices."""
    for norm in SHARDED_NORMS[backbone]:
        started, found, vectors = time.process_time(), {}, []
        network = make_network(c.ModelConfig(backbone=backbone, norm=norm), KEYPOINTS, "f32", 0)
        for devices, machines, shards in LAYOUTS:
            sums = lower_sums(network, backbone, norm, devices, shards, machines)
            vectors = [size_bytes for size_bytes, _ in sums]
            programs = [lowered.compile().as_text() or "" for _, lowered in sums if lowered]
            crossing = sum(map(collectives, programs), [])
            of_machine = devices // machines
            between = [each for each in crossing if _is_between(each, of_machine)]
            found[f"{devices} devices, {machines} machines, {shards} shards"] = {
                **_about(crossing), "sizes_between_machines_bytes": sorted(each.size_bytes for each in between)
            }  # fmt: skip
        yield {"answer": "collectives of the compiled step with train.shards", "backbone": backbone, "norm": norm,
               "vectors_bytes": vectors, "found": found,
               "cpu_s": round(time.process_time() - started, 1)}  # fmt: skip


def _is_between(crossing: Collective, of_machine: int) -> bool:
    """Returns whether devices of several machines exchange, where neighbours share a machine."""
    return any(len({device // of_machine for device in group}) > 1 for group in crossing.groups)


def _about(crossing: list[Collective]) -> dict[str, Any]:
    return {
        "kinds": sorted({each.kind for each in crossing}),
        "calls": len(crossing),
        "bytes": sum(each.size_bytes for each in crossing),
        "calls_in_loop": sum(each.in_loop for each in crossing),
        "bytes_in_loop": sum(each.size_bytes for each in crossing if each.in_loop),
        "sizes_bytes": sorted(each.size_bytes for each in crossing),
    }


def predict(counted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the lines of predicted efficiencies, from the lines of `count` or `count_shards`."""
    lines = []
    for line in counted:
        backbone, norm = line["backbone"], line["norm"]
        has_shards = "vectors_bytes" in line
        calls = line["found"]["8 devices, 1 machines, 8 shards" if has_shards else "8 devices, 1 pass"]["sizes_bytes"]
        ways = _sharded_ways(line["vectors_bytes"]) if has_shards else _ways(backbone, norm, calls)
        for frames in (64, 16):
            for scaling in ("weak", "strong"):
                lines.append({
                    "answer": "PREDICTION of the efficiency, not measured", "backbone": backbone, "norm": norm,
                    "scaling": scaling, "frames_a_gpu": frames if scaling == "weak" else f"{frames} on 8 GPUs",
                    "one_gpu_images_per_s": IMAGES_PER_S[backbone], "one_gpu_source": "assumed, not measured by us",
                    "model": "alpha-beta, constants in alpha_beta.py", "extrapolation": EXTRAPOLATION,
                    **({"shards": "one a GPU", "slices": SLICES} if has_shards else {}),
                    "calls": len(calls), "bytes": sum(calls),
                    "efficiency": {speed: {way: _efficiencies(IMAGES_PER_S[backbone] * factor, frames, scaling, step)
                                           for way, step in ways.items()}
                                   for speed, factor in (("goal", 1.0), ("4/3 of the goal", FAST))},
                })  # fmt: skip
    return [*lines, *_aims(lines)]


def _ways(backbone: str, norm: str, calls: list[int]) -> dict[str, Callable[..., float]]:
    """Returns the models of a step of one program, by their names."""
    ways: dict[str, dict[str, Any]] = {"as compiled": {}}
    if norm != "sync" or backbone == "vit_small":
        # The first layer of `sync` waits for the counts.
        ways["counts hidden"] = {"hides_counts": True}
    profile = _profile(backbone)
    for buckets in BUCKETS:
        ways[f"{buckets} buckets"] = {**list(ways.values())[-1], "buckets": buckets, "profile": profile}
    return {way: functools.partial(step_s, calls_bytes=calls, **options) for way, options in ways.items()}


def _sharded_ways(vectors: list[int]) -> dict[str, Callable[..., float]]:
    return {"shards": functools.partial(sharded_step_s, vectors_bytes=vectors)}


def _efficiencies(speed: float, frames: int, scaling: str, step: Callable[..., float]) -> dict[str, float]:
    """Returns images/s a GPU, as a share of one GPU's, by the number of GPUs."""
    found = {}
    for gpus in GPUS:
        # Strong scaling: the same batch on all numbers of GPUs, `frames` a GPU on 8 of them.
        batch = frames * (gpus if scaling == "weak" else 8)
        compute_s = -(-batch // gpus) / speed
        found[str(gpus)] = round(batch / speed / gpus / step(compute_s, gpus=gpus), 4)
    return found


def _aims(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a line for each network and way: whether it reaches the aims in weak scaling at 64 frames a GPU."""
    found = []
    for line in lines:
        if line["scaling"] == "weak" and line["frames_a_gpu"] == 64:
            for way, efficiency in line["efficiency"]["goal"].items():
                reached = {f"{gpus} GPUs": efficiency[str(gpus)] >= aim for gpus, aim in AIMS.items()}
                found.append({"answer": "PREDICTION of the aims", "backbone": line["backbone"], "norm": line["norm"],
                              "way": way, "efficiency": {str(gpus): efficiency[str(gpus)] for gpus in AIMS},
                              "aim": {str(gpus): aim for gpus, aim in AIMS.items()}, "reached": reached})  # fmt: skip
    return found


def _profile(backbone: str) -> list[tuple[float, float]]:
    """Returns (bytes, work) of the parts of a network from its head to its first layer; a part is a block."""
    _, params, _ = make_network(c.ModelConfig(backbone=backbone), KEYPOINTS, "f32", 0)
    network, parts, work = params["backbone"], {}, {}
    if backbone == "vit_small":
        # Every weight is used once for each token.
        parts = {"first": {name: network[name] for name in network if name != "blocks"}}
        parts |= {f"block {number}": block for number, block in network["blocks"].items()}
        parts |= {"head": params["head"]}
        work = {name: float(sum(leaf.size for leaf in jax.tree.leaves(part))) for name, part in parts.items()}
        return backward_profile(parts, work)
    for name in ("conv1", "layer1", "layer2", "layer3", "layer4"):
        for block in [""] if name == "conv1" else network[name]:
            inside = network[name] if name == "conv1" else {block: network[name][block]}
            parts[f"{name}{block}"] = inside
            work[f"{name}{block}"] = float(forward_flops({"backbone": {name: inside}}, 256))
    parts["head"] = params["head"]
    work["head"] = float(forward_flops({"backbone": {}, "head": params["head"]}, 256))
    return backward_profile(parts, work)


def main() -> int:
    """Counts, predicts or measures, and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--part", required=True, choices=("count", "predict", "host"))
    arguments.add_argument("--backbone", default="resnet18", choices=tuple(NORMS), help="of --part count")
    arguments.add_argument("--shards", action="store_true", help="of --part count and predict: with train.shards")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    given = arguments.parse_args()
    lines: Iterable[dict[str, Any]]
    if given.part == "count":
        lines = count_shards(given.backbone) if given.shards else count(given.backbone)
    elif given.part == "host":
        lines = [*dispatch((1, 2, 8)), *input_cost((1, 2, 4, 8))]
    else:
        before = map(json.loads, given.out.read_text().splitlines()) if given.out.exists() else ()
        counts = (line for line in before if "collectives" in line["answer"])
        counted = {
            (line["backbone"], line["norm"]): line for line in counts if ("vectors_bytes" in line) == given.shards
        }
        if not counted:
            arguments.error(f"{given.out} has no counts: run --part count first")
        lines = predict(list(counted.values()))
    about = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
    about |= {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    for line in lines:
        print(json.dumps(line), flush=True)
        with open(given.out, "a") as file:
            file.write(json.dumps(line | about | {"load": os.getloadavg()[0]}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
