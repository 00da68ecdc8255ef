"""The flags of the verbs that read a run."""

from jaxpose.config.arguments import Arguments, RunArguments


def predict_arguments() -> RunArguments:
    """Returns the flags of jaxpose.predict."""
    arguments = RunArguments(
        "jaxpose.predict",
        "Predicts keypoints of images and videos with a trained run and writes a CSV row for each frame.",
    )
    arguments.add_argument(
        "inputs",
        nargs="+",
        metavar="FRAMES_OR_VIDEO",
        help="images, videos, folders of them, globs in quotes, or @LIST.txt",
    )
    arguments.add_argument("--out", metavar="FOLDER", help="folder for the predictions; default: the run folder")
    arguments.add_argument("--overwrite", action="store_true", help="replace existing predictions")
    arguments.add_argument("--stretch_minutes", type=float, metavar="M", help="minutes of video claimed at a time")
    arguments.add_argument("--decoders", type=int, metavar="N", help="segments decoded at the same time per device")
    return arguments


def evaluate_arguments() -> RunArguments:
    """Returns the flags of jaxpose.evaluate."""
    arguments = RunArguments(
        "jaxpose.evaluate", "Evaluates a trained run on labelled frames; prints tables and writes CSV files."
    )
    arguments.add_argument(
        "--project", default="", metavar="FOLDER", help="project with labelled frames; default: the run's"
    )
    arguments.add_argument("--labels", default="", metavar="FILE", help="label file of the project to evaluate alone")
    arguments.add_argument("--out", metavar="FOLDER", help="folder for the files; default: the run folder")
    return arguments


def watch_arguments() -> Arguments:
    """Returns the flags of jaxpose.watch."""
    arguments = Arguments("jaxpose.watch", "Follows a run, or its copy at log.remote_url, until it ends.")
    arguments.add_argument("run", metavar="RUN_OR_URL", help="run folder, or a URL such as s3://bucket/runs/0a1b2c3d")
    arguments.add_argument("--every_s", type=float, default=5.0, metavar="S", help="seconds between two checks")
    arguments.add_argument(
        "--silent_s", type=float, default=180.0, metavar="S", help="report silence after this many seconds"
    )
    return arguments
