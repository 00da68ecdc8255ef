"""Calibrates cameras from videos of a board: `jaxpose calibrate FOLDER --board charuco:8x11:24:18.75 --out FILE`.

Input: a video or a folder of images for each camera. Output: a calibration, and how well it fits.
"""

import argparse

from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments("jaxpose.calibrate", "Calibrates cameras from videos of a board that they see together.")
    arguments.add_argument(
        "folder", metavar="FOLDER", help="a video or a folder of images for each camera, named after it"
    )
    arguments.add_argument(
        "--board",
        required=True,
        metavar="BOARD",
        help="charuco:COLUMNSxROWS:SQUARE:MARKER or chessboard:COLUMNSxROWS:SQUARE, in squares and in your unit",
    )
    arguments.add_argument(
        "--out", required=True, metavar="FILE", help="calibration to write, in Anipose's form: .toml"
    )
    arguments.add_argument("--unit", default="mm", metavar="UNIT", help="unit of the board, for reports; default: mm")
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # These imports take a second, which --help does not need.
    from jaxpose.calibrate.command import calibrate_folder

    return calibrate_folder(given)


if __name__ == "__main__":
    exit_with(main)
