"""Predicts the time of a data-parallel step on many GPUs: its compute, and calls of T = latency + bytes / bandwidth.

Nothing here is measured by jaxpose. The constants are fits to published tables for 8 H200 (one node) and 4 x 8 B200
(four nodes, a network card of 50 GB/s for each GPU): NCCL all-reduce in network/README.md of stas00/ml-engineering,
payloads of 16 to 256 MiB, where the size is the payload, not the bus traffic.
"""

import math
from collections.abc import Sequence

import jax

GPUS_A_NODE = 8
# One node: 220, 347 and 436 GB/s bus bandwidth at 16, 64 and 256 MiB on 8 H200.
NODE_LATENCY_S, NODE_BYTES_PER_S = 70e-6, 267e9
# Four nodes: 64, 157 and 198 GB/s bus bandwidth at 16, 64 and 128 MiB on 4 x 8 B200.
FOUR_NODES_LATENCY_S, FOUR_NODES_BYTES_PER_S = 386e-6, 142e9
# Calls below 1 MiB, from the same tables: 40 GB/s (one node) and 5.4 GB/s (four nodes) at 1 MiB.
SMALL_BYTES = 2**20
NODE_SMALL_S, FOUR_NODES_SMALL_S = 40e-6, 400e-6
EXTRAPOLATION = (
    "2 and 4 GPUs: as 8; other numbers of nodes N: latency + the same for each doubling of N, time a byte = that of a "
    "node + a part that grows as 2 (N - 1) / N; both go through the fits of 1 and 4 nodes"
)
# A backward pass takes twice the forward pass: two matrix products for each one.
BACKWARD_SHARE = 2 / 3
# Per GPU, to other nodes.
CARD_BYTES_PER_S = 50e9
SLICES = (
    "a sum of slices (all-to-all, all-gather) moves as many bytes as a ring all-reduce and costs its latency twice; "
    "it begins after the whole backward pass, and nothing hides it. Several nodes: the GPUs of each node add first; "
    "then each GPU sends and receives an eighth of the vector * (1 - 8 / GPUs) twice, at 50 GB/s. Counts: one call"
)


def reduction_s(size_bytes: float, gpus: int) -> float:
    """Returns the predicted seconds of one all-reduce over GPUs, 8 a node; 0 on one GPU."""
    return sum(_parts_s(size_bytes, gpus))


def sliced_sum_s(size_bytes: float, gpus: int) -> float:
    """Returns the predicted seconds of a sum over shards: within each node and then between nodes.

    Each level is an all-to-all of slices and an all-gather of their sums, which together move as much as a ring
    all-reduce and cost its latency twice. A vector below 1 KiB is sent in one call.

    Args:
      size_bytes: the vector's.
      gpus: number of GPUs, 8 a node.
    """
    if size_bytes < 1024:
        return reduction_s(size_bytes, gpus)
    latency_s, _ = _parts_s(size_bytes, gpus)
    _, inside_s = _parts_s(size_bytes, min(gpus, GPUS_A_NODE))
    between_s = 2 * size_bytes / GPUS_A_NODE * max(0.0, 1 - GPUS_A_NODE / gpus) / CARD_BYTES_PER_S
    return 2 * latency_s + inside_s + between_s


def _parts_s(size_bytes: float, gpus: int) -> tuple[float, float]:
    """Returns the seconds of an all-reduce that do not depend on its bytes, and those that do."""
    if gpus == 1:
        return 0.0, 0.0
    nodes = max(1.0, gpus / GPUS_A_NODE)
    # log2 of 4 nodes is 2; 2 (N - 1) / N is 1.5 there.
    doublings, ring = math.log2(nodes), 2 * (nodes - 1) / nodes
    if size_bytes < SMALL_BYTES:
        return NODE_SMALL_S + (FOUR_NODES_SMALL_S - NODE_SMALL_S) * doublings / 2, 0.0
    latency_s = NODE_LATENCY_S + (FOUR_NODES_LATENCY_S - NODE_LATENCY_S) * doublings / 2
    second_a_byte = 1 / NODE_BYTES_PER_S
    second_a_byte += (1 / FOUR_NODES_BYTES_PER_S - 1 / NODE_BYTES_PER_S) * ring / 1.5
    return latency_s, size_bytes * second_a_byte


def step_s(
    compute_s: float,
    calls_bytes: Sequence[float],
    gpus: int,
    *,
    hides_counts: bool = False,
    buckets: int = 0,
    profile: Sequence[tuple[float, float]] = (),
) -> float:
    """Returns the predicted seconds of a step.

    Args:
      compute_s: the step's on one GPU with this GPU's frames.
      calls_bytes: for each all-reduce; the largest is that of the gradients, the smallest that of the counts.
      gpus: number of GPUs.
      hides_counts: the reduction of the counts overlaps the forward pass.
      buckets: above 0, the gradients are reduced in this many equal parts, each as soon as the backward pass has made
        it. Neither slows the other down.
      profile: (bytes, work) of the layers, the last first: see `backward_profile`.
    """
    calls = sorted(calls_bytes)
    gradients = calls.pop()
    if hides_counts and calls:
        calls.pop(0)
    shown_s = sum(reduction_s(call, gpus) for call in calls)
    if not buckets:
        return compute_s + shown_s + reduction_s(gradients, gpus)
    end_s = 0.0
    for number in range(1, buckets + 1):
        ready_s = compute_s * (1 - BACKWARD_SHARE * (1 - _made(number / buckets, profile)))
        end_s = max(end_s, ready_s) + reduction_s(gradients / buckets, gpus)
    return shown_s + max(end_s, compute_s)


def sharded_step_s(compute_s: float, vectors_bytes: Sequence[float], gpus: int) -> float:
    """Returns the predicted seconds of a step with `train.shards`, one shard a GPU; no sum overlaps computing.

    Args:
      compute_s: the step's on one GPU with this GPU's frames.
      vectors_bytes: for each vector that is summed.
      gpus: number of GPUs.
    """
    return compute_s + sum(sliced_sum_s(size, gpus) for size in vectors_bytes)


def backward_profile(params: dict, work_of: dict[str, float]) -> list[tuple[float, float]]:
    """Returns (bytes of the gradient, work) of each part of a network, in the order of the backward pass.

    Args:
      params: parameters by the names of the parts, in the order of the forward pass.
      work_of: the work of each part, in any unit.
    """
    sizes = {name: float(sum(leaf.nbytes for leaf in jax.tree.leaves(part))) for name, part in params.items()}
    return [(sizes[name], work_of[name]) for name in reversed(params)]


def _made(share: float, profile: Sequence[tuple[float, float]]) -> float:
    """Returns the share of the backward pass that makes this share of the gradients' bytes.

    A part's gradients count as made at its end.
    """
    all_bytes, all_work = (sum(values) for values in zip(*profile, strict=True))
    made_bytes = work = 0.0
    for size, part_work in profile:
        made_bytes, work = made_bytes + size, work + part_work
        if made_bytes >= share * all_bytes * (1 - 1e-9):
            break
    return work / all_work
