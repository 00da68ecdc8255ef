"""Do other people's files from other tools open, with the right numbers?

    python benchmarks/public_files.py FOLDER --out benchmarks/public_files.jsonl

FOLDER holds clones of public repositories. Every file in them that is named like a label file, a table of predictions
or a video is opened as the verbs open it. Labels and predictions are compared with another reader's content of the same
file: json for COCO, h5py for SLEAP and DeepLabCut, csv for tables. Labels and predictions that open are converted to
all other tools' formats, and tables are read back. A video must have as many frames as PyAV decodes. With `--run RUN`,
`jaxpose predict` predicts all videos that open, and each table must have a row for each of these frames.

Outcomes: `right` (everything equal, with what was left out), `refused` (one line for the user, in `detail`), `wrong`
(other numbers), `failed` (any other error). Writes one JSON line a file.
"""

import argparse
import csv
import datetime
import json
import logging
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np

from jaxpose import predict
from jaxpose.config import DataConfig
from jaxpose.conversion.label_files import Target, convert_labels
from jaxpose.conversion.prediction_tables import convert_predictions, read_table
from jaxpose.errors import UserError
from jaxpose.formats.project import read_project
from jaxpose.prediction.index import DONE, parse_rows
from jaxpose.run.paths import INDEX_FILE
from jaxpose.video.index import read_index

RIGHT, REFUSED, WRONG, FAILED = "right", "refused", "wrong", "failed"
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".m4v", ".wmv")
LABEL_FORMS = {"csv": "labels.csv", "deeplabcut": "dlc", "coco": "labels.json", "slp": "labels.slp"}
TABLE_FORMS = {"csv": "t.csv", "deeplabcut": "tDLC_x.h5", "sleap-analysis": "t.analysis.h5", "parquet": "t.parquet"}
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
# Positions in a CSV have up to 17 digits; other tables hold float32.
NEAR_PX = 1e-3
MOST_DETAIL = 300
EXIT_MISTAKE = 2
AXES = '["track", "xy", "node", "frame"]'
# A clone without large files has a text in their place.
LFS = b"version https://git-lfs"


class Differs(Exception):
    """Two readers find other numbers in one file."""


def kind_of(file: Path) -> str:
    """Returns `labels`, `predictions`, `video`, or "" for a file of another kind."""
    suffix = file.suffix.lower()
    with file.open("rb") as stream:
        if stream.read(len(LFS)) == LFS:
            return ""
    if suffix in VIDEOS:
        return "video"
    if suffix == ".slp":
        return "labels"
    if suffix == ".json":
        return "labels" if _is_coco(file) else ""
    if suffix in (".h5", ".hdf5"):
        return _kind_of_hdf5(file)
    if suffix == ".csv":
        return _kind_of_csv(file)
    return ""


def _is_coco(file: Path) -> bool:
    try:
        content = json.loads(file.read_bytes())
    except ValueError:
        return False
    return isinstance(content, dict) and any("keypoints" in entry for entry in _annotations(content))


def _annotations(content: dict[str, Any]) -> list[dict[str, Any]]:
    found = content.get("annotations")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _kind_of_hdf5(file: Path) -> str:
    try:
        with _opened(file) as content:
            if "tracks" in content and "node_names" in content:
                return "predictions"
            tables = [
                key
                for key, value in content.items()
                if isinstance(value, h5py.Group) and not {"axis0", "table"}.isdisjoint(value)
            ]
    except OSError:
        return ""
    if tables:
        return "labels" if file.stem.startswith("CollectedData") else "predictions"
    return ""


def _opened(file: Path) -> Any:
    # The type checker does not know what a name in a file stands for.
    return h5py.File(file)


def _kind_of_csv(file: Path) -> str:
    with file.open(newline="", encoding="utf-8", errors="replace") as stream:
        rows = [row for row, _ in zip(csv.reader(stream), range(4), strict=False)]
    if not any(row and row[0] == "coords" for row in rows):
        return ""
    return "labels" if "likelihood" not in {cell for row in rows for cell in row} else "predictions"


def labels(file: Path, work: Path) -> str:
    """Opens, compares and converts a label file; returns the parts left out."""
    data = _project_of(file)
    found = read_project(data)
    ours = [points[np.isfinite(points).all(axis=1)] for points in found.labelled_frame_px()]
    theirs = [points[np.isfinite(points).all(axis=1)] for points in _labels_of(file)]
    keys = Counter(_key(points) for points in theirs)
    for image, points in zip(found.poses.frames, ours, strict=True):
        if len(points) and not keys[_key(points)]:
            raise Differs(f"the points of {image} are not in the file: {points[:2].tolist()}")
        keys[_key(points)] -= 1
    for form, name in LABEL_FORMS.items():
        convert_labels(data, Target(form, work / form / name))
    return f"{len(ours)} of {len(theirs)} rows; {len(found.problems)} problems"


def _key(points: np.ndarray) -> tuple[float, ...]:
    return tuple(np.sort(np.round(points, 2), axis=0).ravel().tolist())


def _project_of(file: Path) -> DataConfig:
    if file.suffix.lower() in (".slp", ".json"):
        return DataConfig(project=str(file), on_bad_frame="skip")
    # The project folder is the one from which the images are named.
    folder = file.parents[2] if file.parent.parent.name == "labeled-data" else file.parent
    if (folder / "config.yaml").is_file() and file.stem.startswith("CollectedData"):
        return DataConfig(project=str(folder), on_bad_frame="skip")
    return DataConfig(project=str(folder), labels=str(file.relative_to(folder)), on_bad_frame="skip")


def _labels_of(file: Path) -> Iterator[np.ndarray]:
    """Yields the points (k, 2) of each labelled animal by a reader that is not jaxpose's."""
    suffix = file.suffix.lower()
    if suffix == ".json":
        for entry in _annotations(json.loads(file.read_bytes())):
            points = np.array(entry.get("keypoints", []), float).reshape(-1, 3)
            yield np.where(points[:, 2:] > 0, points[:, :2], np.nan)
    elif suffix == ".slp":
        with _opened(file) as content:
            points, instances = content["points"][...], content["instances"][...]
            version = content["metadata"].attrs["format_id"]
            for one in instances[instances["instance_type"] == 0]:
                rows = points[one["point_id_start"] : one["point_id_end"]]
                seen = rows["visible"].astype(bool)
                places = np.stack([rows["x"], rows["y"]], axis=1) - (0.5 if version < 1.1 else 0)
                yield np.where(seen[:, None], places, np.nan)
    elif suffix == ".csv":
        yield from _rows_of_csv(file)[1][..., :2]
    else:
        yield from _rows_of_hdf5(file)[1][..., :2]


def predictions(file: Path, work: Path) -> str:
    """Opens, compares and converts a table, and reads it back; returns its size."""
    found = read_table(file)
    names, cells = _table_of(file)
    if tuple(names) != found.poses.keypoint_names:
        raise Differs(f"keypoints {found.poses.keypoint_names} against {names}")
    points_px, confidence = found.poses.one_animal()
    _same("positions", points_px, cells[..., :2])
    # Scores above 1, which SLEAP writes, count as 1.
    _same("confidence", confidence, np.minimum(cells[..., 2], 1))
    for form, name in TABLE_FORMS.items():
        convert_predictions(file, Target(form, work / name), None)
        again_px, again = read_table(work / name).poses.one_animal()
        _same(f"positions in {form}", again_px, points_px)
        _same(f"confidence in {form}", again, confidence)
    return f"{len(confidence)} frames, {len(names)} keypoints"


def _same(what: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, atol=NEAR_PX, rtol=1e-6, equal_nan=True):
        raise Differs(f"other {what}")


def _table_of(file: Path) -> tuple[list[str], np.ndarray]:
    if file.suffix.lower() == ".csv":
        return _rows_of_csv(file)
    with _opened(file) as content:
        if "tracks" in content:
            names = [name.decode() for name in content["node_names"][...]]
            axes = json.loads(content["tracks"].attrs.get("dims", AXES))
            points = content["tracks"][...].transpose([axes.index(axis) for axis in ("track", "frame", "node", "xy")])[
                0
            ]
            if "point_scores" not in content:
                return names, np.pad(points, ((0, 0), (0, 0), (0, 1)), constant_values=np.nan)
            axes.remove("xy")
            scores = content["point_scores"][...].transpose([axes.index(axis) for axis in ("track", "frame", "node")])
            return names, np.concatenate([points, scores[0][..., None]], axis=2)
    return _rows_of_hdf5(file)


def _rows_of_csv(file: Path) -> tuple[list[str], np.ndarray]:
    with file.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.reader(stream))
    at = next(number for number, row in enumerate(rows) if row and row[0] == "coords")
    first = next(column for column, cell in enumerate(rows[at]) if column and cell)
    names = list(dict.fromkeys(rows[at - 1][first:]))
    cells = [[float(cell or "nan") for cell in row[first:]] for row in rows[at + 1 :] if row]
    return names, np.array(cells).reshape(len(cells), len(names), -1)


def _rows_of_hdf5(file: Path) -> tuple[list[str], np.ndarray]:
    import pandas

    table: Any = pandas.read_hdf(file)
    names = list(dict.fromkeys(map(str, table.columns.get_level_values("bodyparts"))))
    return names, table.to_numpy(float).reshape(len(table), len(names), -1)


def video(file: Path, work: Path) -> str:
    """Compares the number of frames with PyAV's; returns it."""
    found = read_index(file)
    with av.open(str(file)) as container:
        count = sum(1 for _ in container.decode(video=0))
    if found.frame_count != count:
        raise Differs(f"{found.frame_count} frames, but {count} are decoded")
    return f"{count} frames"


READERS: dict[str, Callable[[Path, Path], str]] = {"labels": labels, "predictions": predictions, "video": video}


def outcome_of(file: Path, kind: str) -> tuple[str, str]:
    """Returns an outcome and its detail."""
    with tempfile.TemporaryDirectory() as work:
        try:
            return RIGHT, READERS[kind](file, Path(work))
        except UserError as error:
            return REFUSED, " / ".join(str(error).splitlines()[:2])
        except Differs as error:
            return WRONG, str(error)
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return FAILED, f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"


def predict_videos(run: Path, counts: dict[Path, int]) -> dict[Path, tuple[str, str]]:
    """Predicts videos, and returns the outcome of each; `counts` has the frames that PyAV decodes."""
    # One call refuses two videos that differ in their suffix only: they would write the same table.
    first = {file.with_suffix(""): file for file in counts}.values()
    outcomes = {}
    for files in (list(first), [file for file in counts if file not in first]):
        with tempfile.TemporaryDirectory() as work:
            if files and predict.main(["--run", str(run), "--out", work, *map(str, files)]) == EXIT_MISTAKE:
                raise SystemExit("jaxpose predict refused the videos")
            index = Path(work, INDEX_FILE)
            ended = parse_rows(index, index.read_bytes()).values() if files else ()
            for row in ended:
                count = counts[Path(row.path)]
                rows = len(read_table(Path(work, row.table)).poses.frames) if row.state == DONE else 0
                outcome = (RIGHT if rows == count else WRONG) if row.state == DONE else REFUSED
                outcomes[Path(row.path)] = (outcome, f"{rows} rows of {count} frames" if rows else row.reason)
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--run", type=Path, help="a run, whose network predicts the videos")
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    logging.disable(logging.INFO)
    files = sorted(path for path in given.folder.resolve().rglob("*") if path.is_file())
    outcomes = {(file, kind): outcome_of(file, kind) for file in files if (kind := kind_of(file))}
    counts = {
        file: int(detail.split()[0])
        for (file, kind), (end, detail) in outcomes.items()
        if (kind, end) == ("video", RIGHT)
    }
    predicted = predict_videos(given.run, counts) if given.run else {}
    outcomes |= {(file, "prediction of the video"): outcome for file, outcome in predicted.items()}
    with given.out.open("a", encoding="utf-8") as stream:
        for (file, kind), (outcome, detail) in outcomes.items():
            name = file.relative_to(given.folder.resolve()).as_posix()
            detail = detail.replace(f"{given.folder.resolve()}/", "")[:MOST_DETAIL]
            row = {"file": name, "kind": kind, "outcome": outcome, "detail": detail, "commit": given.commit}
            stream.write(json.dumps(row) + "\n")
    totals = Counter((kind, outcome) for (_, kind), (outcome, _) in outcomes.items())
    for (kind, outcome), number in sorted(totals.items()):
        print(f"{kind:<24} {outcome:<8} {number}")


if __name__ == "__main__":
    sys.exit(main())
