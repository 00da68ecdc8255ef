"""Makes points in 3D of the predictions of several cameras: `jaxpose triangulate --calibration FILE VIEW=TABLE ...`.

Input: a calibration, and a table of predictions for each view. Output: a table of points, each with its standard
deviation, its reprojection error and the number of views that agree.
"""

import argparse

from jaxpose.config.arguments import Arguments
from jaxpose.early_signals import exit_with


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0 or 2 (a mistake of the user)."""
    arguments = Arguments(
        "jaxpose.triangulate", "Triangulates the predictions of several calibrated cameras into 3D points."
    )
    arguments.add_argument(
        "views",
        nargs="+",
        metavar="VIEW=TABLE",
        help="a camera of the calibration and its predictions (.csv, .h5, .analysis.h5, .slp, .parquet); one for each "
        "member of an ensemble",
    )
    arguments.add_argument(
        "--calibration",
        required=True,
        metavar="PATH",
        help="the cameras: .toml of Anipose or caliscope, .mat of DANNCE, .slp of SLEAP, folder of JARVIS or OpenCV",
    )
    arguments.add_argument("--out", required=True, metavar="FILE", help="file to write: .csv, .h5, .trc or .nwb")
    arguments.add_argument(
        "--to",
        default="",
        choices=["", *_FORMATS],
        metavar="FORMAT",
        help=f"{', '.join(_FORMATS)}; default: by the name of --out, csv for .csv",
    )
    arguments.add_argument(
        "--smooth", action="store_true", help="smooth the points over time and fill gaps; needs consecutive frames"
    )
    arguments.add_argument(
        "--reprojections",
        default="",
        metavar="FOLDER",
        help="also write the points as each view sees them, FOLDER/VIEW.csv, for jaxpose draw",
    )
    arguments.add_argument(
        "--unit", default="mm", metavar="UNIT", help="unit of length of the calibration, for reports; default: mm"
    )
    arguments.add_argument("--fps", type=float, metavar="F", help="frames per second, for .trc and .nwb")
    arguments.add_session_start()
    arguments.add_overwrite()
    arguments.add_quiet()
    return arguments.run(_run, argv)


# See `jaxpose.triangulate.tables`.
_FORMATS = ("csv", "anipose", "sleap-anipose", "trc", "nwb")


def _run(given: argparse.Namespace) -> int:
    # These imports take a second, which --help does not need.
    from jaxpose.triangulate.command import triangulate_tables

    return triangulate_tables(given)


if __name__ == "__main__":
    exit_with(main)
