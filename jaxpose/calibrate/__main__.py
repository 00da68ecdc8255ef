"""Calibrates cameras from videos of a board: `jaxpose calibrate FOLDER --board charuco:8x11:24:18.75 --out FILE`.

Input: a video or a folder of images for each camera. Output: a calibration, and how well it fits. With --check, an
existing calibration is compared with such videos, or with the tables of an animal's keypoints.
"""

import argparse

from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 1 (--check found a fault) or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.calibrate", "Calibrates cameras from videos of a board that they see together.")
    arguments.add_argument(
        "sources",
        nargs="+",
        metavar="FOLDER",
        help="a video or a folder of images for each camera, named after it; with --check also VIEW=TABLE ...",
    )
    arguments.add_argument(
        "--board",
        default="",
        metavar="BOARD",
        help="charuco:COLUMNSxROWS:SQUARE:MARKER or chessboard:COLUMNSxROWS:SQUARE, in squares and in your unit",
    )
    arguments.add_argument("--out", default="", metavar="FILE", help="calibration to write, in Anipose's form: .toml")
    arguments.add_argument(
        "--floor", type=int, metavar="FRAME", help="frame in which the board lies on the floor: z is 0 there and up"
    )
    arguments.add_argument(
        "--check",
        default="",
        metavar="FILE",
        help="compare this calibration with board videos, or with VIEW=TABLE of an animal, which --out refines",
    )
    arguments.add_argument("--unit", default="mm", metavar="UNIT", help="unit of the board, for reports; default: mm")
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # These imports take a second, which --help does not need.
    if given.check:
        from jaxpose.calibrate.check import check_calibration

        return check_calibration(given)
    from jaxpose.calibrate.command import calibrate_folder

    return calibrate_folder(given)


if __name__ == "__main__":
    exit_with(main)
