"""Writes a trained run as one file that runs without jaxpose: `jaxpose export --run RUN`.

Input: a run. Output: FILE.stablehlo or FILE.onnx, a program from frames to keypoints and confidence that was compared
with the run, and the same name with .json, which describes it.
"""

import argparse
from pathlib import Path

from jaxpose import __version__
from jaxpose.config.arguments import DONE, read_size_px
from jaxpose.early_signals import exit_with
from jaxpose.progress import phase, speak
from jaxpose.run.paths import RunArgument
from jaxpose.terminal import print_lines


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = RunArgument(
        "jaxpose.export", "Writes a trained run as one file that runs without jaxpose, and checks it against the run."
    )
    arguments.add_argument(
        "--out",
        metavar="FILE",
        help="file to write: *.stablehlo, which JAX runs, or *.onnx; default: RUN's name and .stablehlo",
    )
    arguments.add_argument(
        "--frame_size", default="", metavar="WxH", help="size of the frames in px; default: as the labelled images"
    )
    arguments.add_argument(
        "--platform", default="auto", metavar="NAME", help="platform of the check: auto, cpu, gpu or tpu"
    )
    arguments.add_argument("--batch", type=int, metavar="N", help="*.onnx: results at once; default: any number")
    arguments.add_argument("--fp16", action="store_true", help="*.onnx: the network computes in float16, for GPUs")
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    run = Path(given.run).expanduser()
    speak(f"jaxpose {__version__}: exports {run}")
    # These imports take seconds, which --help does not need.
    with phase("loading the packages"):
        from jaxpose.run.identity import refuse_no_run

        refuse_no_run(run)
        from jaxpose.export.command import export
        from jaxpose.export.program import SUFFIX

    lines = export(
        run,
        Path(given.out).expanduser() if given.out else Path(f"{run.resolve().name}{SUFFIX}"),
        frame_size_px=read_size_px("--frame_size", given.frame_size) if given.frame_size else None,
        platform=given.platform,
        overwrite=given.overwrite,
        batch=given.batch,
        fp16=given.fp16,
    )
    print_lines("\n".join(lines))
    return DONE


if __name__ == "__main__":
    exit_with(main)
