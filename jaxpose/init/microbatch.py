"""Estimates how many frames fit on a GPU at once; `jaxpose train --dry_run` compiles to get the exact number."""

# MiB of a compiled step of 16 frames of 128 x 128 px in f32 (--dry_run on a CPU: 367 and 1,020), minus the state:
# parameters, gradients and Adam's two moments.
_STATE_MIB = {"resnet18": 172.0, "resnet50": 363.0}
_FRAME_MIB = {"resnet18": (367 - 172) / 16, "resnet50": (1020 - 363) / 16}
_MEASURED_PX = 128 * 128
# JAX takes three quarters of a GPU's memory. We have not measured GPUs, so we leave half of that free.
_USABLE = 0.75 / 2


def largest_microbatch(
    backbone: str, size_px: tuple[int, int], gpu_gib: float, batch: int, clip_frames: int = 0
) -> int | None:
    """Returns how many labelled frames of a batch fit into one pass: `batch`, or half, a quarter, ... of it.

    Returns None for a network that was not measured.

    Args:
      backbone: name of the network.
      size_px: (width, height) of the network's input.
      gpu_gib: memory of a GPU.
      batch: labelled frames per update on one GPU.
      clip_frames: additional unlabelled frames per pass.
    """
    if backbone not in _FRAME_MIB:
        return None
    frame_mib = _FRAME_MIB[backbone] * size_px[0] * size_px[1] / _MEASURED_PX
    frames = int((_USABLE * gpu_gib * 1024 - _STATE_MIB[backbone]) / frame_mib) - clip_frames
    most = batch
    while most > 1 and most > frames:
        most = -(-most // 2)
    return most
