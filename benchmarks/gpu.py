"""How fast does jaxpose train and predict on this device, compared with torch?

    python benchmarks/gpu.py --platform gpu --out benchmarks/gpu.jsonl --part core

A part is a list of cells; each runs in a process of its own and appends one JSON line. A part skips cells that need
more than the `--minutes` left and cells that the file has already, so the same command continues where it ended.
`gpu_parts/plan.py` lists the cells, `gpu_parts/bars.py` the bars.

    python benchmarks/gpu.py --platform gpu --out benchmarks/gpu.jsonl

A single cell: the step that jaxpose.train compiles, on one device, with one batch that is already loaded: the figure
includes neither loading nor copying. After a warm-up, the time of `--steps` steps is taken `--repeats` times. Then, if
torch is installed, the same work in torch: the same backbone, a head of transposed convolutions, softmax, MSE and Adam,
with channels_last, autocast and torch.compile. Appends one JSON line for each of the two.
"""

import argparse
import importlib.util
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

# A test loads this file by its path.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from gpu_parts.figures import BLOCKS, PRECISIONS, VITS, forward_flops, host
from gpu_parts.jaxpose_step import measure_jaxpose, measure_jaxpose_predict, measure_option
from gpu_parts.plan import PARTS, append, name_of, run_part

__all__ = ["forward_flops", "main", "measure_jaxpose", "measure_torch", "read"]

MEASURES = ("step", "predict", "agreement", "first_step", "loader", "option", "videos")
BESIDE_TORCH = ("step", "predict")


def measure_torch(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the figures of the same work in torch."""
    from gpu_parts.torch_step import measure_torch_step

    return measure_torch_step(given)


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the line of a cell; a failure to measure is its `error`."""
    if given.framework == "torch":
        if importlib.util.find_spec("torch") is None:
            return {"framework": "torch", "error": "torch is not installed"}
        if given.measure not in BESIDE_TORCH or (given.norm, given.preset) != ("sync", "none"):
            rule = "--measure step or predict, --norm sync and --preset none"
            return {"framework": "torch", "error": f"the comparison is with {rule}"}
        from gpu_parts.torch_step import measure_torch_predict

        # Only the FLOP are counted with jax here; it must not reserve the memory of the GPU.
        jax.config.update("jax_platforms", "cpu")
        return measure_torch(given) if given.measure == "step" else measure_torch_predict(given)
    if given.measure in ("step", "predict", "option"):
        ways = {"step": measure_jaxpose, "predict": measure_jaxpose_predict, "option": measure_option}
        return ways[given.measure](given)
    # Each imports modules that the others do not need.
    if given.measure == "agreement":
        from gpu_parts.agreement import measure_agreement as found
    elif given.measure == "first_step":
        from gpu_parts.first_step import measure_first_step as found
    elif given.measure == "loader":
        from gpu_parts.loader import measure_loader as found
    else:
        from gpu_parts.videos import measure_videos as found
    return found(given)


def read(argv: list[str]) -> argparse.Namespace:
    """Returns the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--part", choices=tuple(PARTS), help="measure the cells of a part; other flags replace theirs")
    parser.add_argument("--minutes", type=float, default=9.0, help="of a part, after which no cell begins or goes on")
    parser.add_argument("--measure", default="step", choices=MEASURES, help="what a cell measures")
    parser.add_argument("--platform", default="auto", choices=("auto", "cpu", "gpu"))
    parser.add_argument("--framework", default="both", choices=("both", "jaxpose", "torch"))
    parser.add_argument("--backbone", default="resnet50", choices=(*BLOCKS, *VITS))
    parser.add_argument("--width", type=int, default=64, help="of a ResNet")
    parser.add_argument("--size_px", type=int, default=256, help="side of the input, a multiple of 32")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", default="bf16", choices=PRECISIONS)
    parser.add_argument("--norm", default="sync", choices=("sync", "group"))
    parser.add_argument("--preset", default="none", choices=("none", "dlc"), help="augmentation")
    parser.add_argument("--keypoints", type=int, default=17)
    parser.add_argument("--warmup", type=int, default=10, help="steps before the first repeat")
    parser.add_argument("--steps", type=int, default=50, help="steps of a repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peak_tflops", type=float, help="of the device in this precision, for the MFU")
    parser.add_argument("--deterministic", action="store_true", help="mesh.deterministic of jaxpose")
    parser.add_argument("--turn", type=int, default=0, help="tells two cells apart that are the same")
    parser.add_argument("--compile_option", default="", metavar="NAME=VALUE", help="of --measure option")
    parser.add_argument("--train_steps", type=int, default=300, help="of --measure agreement, before it compares")
    parser.add_argument("--videos", type=int, default=8, help="of --measure videos")
    parser.add_argument("--video_frames", type=int, default=1500, help="of each short video; long ones have 3 times")
    parser.add_argument("--decoders", type=int, default=8, help="videos that are decoded at the same time")
    parser.add_argument("--cell", default="", help="name of the cell, which a part gives")
    return parser.parse_args(argv)


def main(argv: list[str]) -> int:
    """Measures, prints and appends a line for each cell."""
    given = read(argv)
    if given.part:
        return run_part(given, _without_part(argv), Path(__file__), read)
    if given.framework == "both":
        # Each in a process of its own: jax reserves most of the memory of a GPU.
        for framework in ("jaxpose", "torch") if given.measure in BESIDE_TORCH else ("jaxpose",):
            subprocess.run([sys.executable, __file__, *argv, "--framework", framework], check=True)
        return 0
    names = set(vars(given)) - {"out", "part", "minutes", "cell"}
    line = {"cell": given.cell or name_of(given, read), "command": shlex.join(["python", "benchmarks/gpu.py", *argv])}
    line |= {name: getattr(given, name) for name in sorted(names)} | host()
    try:
        line |= measure(given)
    except Exception as error:
        append(given.out, line | {"error": f"{type(error).__name__}: {error}"[:500]})
        raise
    append(given.out, line)
    print(f"{line['cell']}: {_summary(line)}", flush=True)
    return 0


def _without_part(argv: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--part", "--minutes"):
        parser.add_argument(name)
    return parser.parse_known_args(argv)[1]


def _summary(line: dict[str, Any]) -> str:
    if "error" in line:
        return f"not measured: {line['error']}"
    if "images_per_s" in line:
        speed = line["images_per_s"]
        text = f"{speed['median']:.1f} images/s ({speed['least']:.1f} to {speed['most']:.1f}) on {line['device']}"
        return f"{text}, compiled in {line['compile_s']:.1f} s"
    shown = ("logits_relative", "matches", "first_step_s", "relative", "waiting_share", "frames_per_s")
    return ", ".join(f"{name} {line[name]}" for name in shown if name in line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
