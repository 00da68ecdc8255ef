"""The flags of the verbs that read a trained run."""

from jaxpose.config.arguments import RunArguments


def predict_arguments() -> RunArguments:
    """Returns the flags of jaxpose.predict."""
    arguments = RunArguments(
        "jaxpose.predict", "Predicts the keypoints of images and videos with a trained run: a CSV row for each frame."
    )
    arguments.add_argument(
        "inputs", nargs="+", metavar="FRAMES_OR_VIDEO", help="images, videos, folders of them, globs, or @LIST"
    )
    arguments.add_argument("--out", metavar="FOLDER", help="folder of the predictions; default: the run folder")
    arguments.add_argument("--overwrite", action="store_true", help="replace existing predictions")
    arguments.add_argument("--stretch_minutes", type=float, metavar="M", help="minutes of video claimed at a time")
    arguments.add_argument("--decoders", type=int, metavar="N", help="segments decoded at a time, per device")
    return arguments


def evaluate_arguments() -> RunArguments:
    """Returns the flags of jaxpose.evaluate."""
    arguments = RunArguments("jaxpose.evaluate", "Evaluates a trained run on labelled frames: tables and CSV files.")
    arguments.add_argument(
        "--project", default="", metavar="FOLDER", help="labelled frames; default: the run's project"
    )
    arguments.add_argument("--labels", default="", metavar="FILE", help="a label file of the project, evaluated alone")
    arguments.add_argument("--out", metavar="FOLDER", help="folder of the results; default: the run folder")
    return arguments
