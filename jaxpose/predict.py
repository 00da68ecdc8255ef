"""Predicts the keypoints of images and videos: `python -m jaxpose.predict`, or `load(run).predict(frames)` from Python.

What comes in: a run, and files or folders. What goes out: <out>/video_preds/<video>.csv and
<out>/image_preds/<folder>/predictions.csv, in the form of Lightning Pose, in pixels of the original frame.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxpose.config.arguments import DONE, SOME_FAILED, RunArguments, make_folder
from jaxpose.data.image_file import decode_image
from jaxpose.data.inputs import Inputs, find_inputs
from jaxpose.data.threads import map_in_threads
from jaxpose.data.video import scan
from jaxpose.formats.lightning_pose import SCORERS, PredictionWriter
from jaxpose.pose.pca import errors_px
from jaxpose.training import predicted
from jaxpose.training.estimator import Estimator, load
from jaxpose.training.trained import read_run_config
from jaxpose.training.video_tables import Incomplete, open_pose_errors, predict_video, write_moment_errors

__all__ = ["Estimator", "load", "main", "plan"]

_LISTED_PROBLEMS = 20

# Output file -> the video, or the images, that it has a row for each frame of.
Jobs = dict[Path, Path | list[Path]]


def main(argv: list[str] | None = None) -> int:
    """Runs the verb and returns its exit code: 0, 2 (a mistake of the user), 4 (some inputs failed) or 130."""
    arguments = RunArguments(
        "jaxpose.predict", "Predicts the keypoints of images and videos with a trained run: a CSV row for each frame."
    )
    arguments.add_argument("inputs", nargs="+", metavar="FRAMES_OR_VIDEO", help="images, videos, or folders of them")
    arguments.add_argument(
        "--out", metavar="FOLDER", help="gets video_preds/ and image_preds/; default: the run folder"
    )
    arguments.add_argument("--overwrite", action="store_true", help="replace predictions that are there")
    return arguments.run(_run, argv)


def _run(given: argparse.Namespace) -> int:
    # All that can be checked is checked before the network is built.
    run, out = Path(given.run), Path(given.out or given.run)
    read_run_config(run)
    jobs = plan(find_inputs(given.inputs), out)
    make_folder(out)
    estimator = load(run, devices=given.devices, platform=given.platform, batch_size=given.batch_size)
    print(f"{run} ({estimator.weights_label}) on {'; '.join(estimator.devices)}", flush=True)
    failed, videos_done = 0, []
    for file, source in jobs.items():
        sources = [source] if isinstance(source, Path) else source
        try:
            origin = estimator.origin(sources)
            if not given.overwrite and predicted.is_there(file, origin):
                print(f"{sources[0]}: {file} is there already (--overwrite predicts it again)", flush=True)
            else:
                if isinstance(source, Path):
                    done = predict_video(estimator, scan(source), file)
                else:
                    done = _predict_images(estimator, source, file)
                print(done, flush=True)
                predicted.note(file, origin)
            if isinstance(source, Path):
                videos_done.append(file)
        except (ValueError, OSError, Incomplete) as error:
            failed += 1
            for line in str(error).splitlines():
                print(f"jaxpose.predict: {line}", file=sys.stderr)
    for line in write_moment_errors(estimator, videos_done):
        print(line, flush=True)
    if failed:
        print(f"jaxpose.predict: {failed} of {len(jobs)} inputs failed, the others are done", file=sys.stderr)
    return SOME_FAILED if failed else DONE


def plan(inputs: Inputs, out: Path) -> Jobs:
    """Returns which file is written for what.

    Raises:
      ValueError: two inputs would write the same file.
    """
    jobs: Jobs = {}
    pairs = [(out / "video_preds" / f"{video.stem}.csv", video) for video in inputs.videos]
    pairs += [(out / "image_preds" / folder.name / "predictions.csv", files) for folder, files in inputs.images.items()]
    for file, source in pairs:
        if file in jobs:
            first, second = (entry if isinstance(entry, Path) else entry[0].parent for entry in (jobs[file], source))
            raise ValueError(f"{first} and {second} would both write {file}; predict them with different --out")
        jobs[file] = source
    return jobs


def _predict_images(estimator: Estimator, paths: list[Path], file: Path) -> str:
    """Writes the predictions of a folder's images and how far they lie from poses that occur; returns what was done."""
    project = Path(estimator.config.data.project)
    index = [_row_name(path, project) for path in paths]
    names: list[str] = []
    problems: list[str] = []

    def read(path: Path) -> tuple[np.ndarray, np.ndarray] | str:
        try:
            return estimator.fit(decode_image(path.read_bytes()))
        except (ValueError, OSError) as error:
            return f"{path}: {error}"

    def frames() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        images = map_in_threads(read, paths, estimator.config.data.threads, paths[0].parent.name)
        for name, image in zip(index, images, strict=True):
            if isinstance(image, str):
                problems.append(image)
            else:
                names.append(name)
                yield image

    done, started = 0, time.monotonic()
    with contextlib.ExitStack() as opened:
        scorer = SCORERS[estimator.config.model.kind]
        rows = opened.enter_context(PredictionWriter(file, estimator.keypoint_names, scorer))
        # Which images are views of one moment is not known.
        errors = open_pose_errors(opened, estimator, file)
        for keypoints, confidence in estimator.fitted(frames()):
            of_batch = names[done : done + len(keypoints)]
            rows.append(of_batch, keypoints, confidence)
            for pca, writer in errors:
                writer.append(of_batch, errors_px(pca, keypoints))
            done += len(keypoints)
        if problems:
            shown = [*problems[:_LISTED_PROBLEMS], f"{done} rows of {len(index)} images are in {file}.partial"]
            raise Incomplete("\n".join(shown))
    speed = done / (time.monotonic() - started)
    return f"{paths[0].parent}: {done} images, {speed:.1f} images/s, in {file}"


def _row_name(path: Path, project: Path) -> str:
    """Returns what an image is called in the CSV: as in the label file if it is the run's project's, else as given."""
    with contextlib.suppress(ValueError):
        return path.resolve().relative_to(project.resolve()).as_posix()
    return path.as_posix()


if __name__ == "__main__":
    sys.exit(main())
