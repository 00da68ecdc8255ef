"""Converts video predictions between jaxpose's tables and other tools' files."""

import contextlib
import dataclasses
import functools
import numbers
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxpose.config import DataConfig
from jaxpose.config.arguments import did_you_mean
from jaxpose.conversion.label_files import Target
from jaxpose.data.animals import place_names
from jaxpose.data.named_files import find_files
from jaxpose.data.skeleton import edges_given, known_pairs
from jaxpose.errors import UserError, is_installed, need
from jaxpose.formats import nwb, prediction_table, sleap, sleap_files
from jaxpose.formats.deeplabcut import tables as deeplabcut
from jaxpose.formats.lightning_pose import tables as lightning_pose
from jaxpose.formats.prediction_table import Footage, PredictionTable, check_predictions, read_footage
from jaxpose.formats.sleap_extras import read_skeleton
from jaxpose.outputs import output_folder
from jaxpose.pose.individuals import Individuals, read_individuals
from jaxpose.poses import Skeleton
from jaxpose.prediction.index import DETECTIONS, TRACKS
from jaxpose.prediction.video_tables import find_table, finished_tables, run_around, video_of
from jaxpose.run.identity import read_config
from jaxpose.run.paths import CONFIG_FILE, INDEX_FILE, INDIVIDUALS_FILE, VIDEO_TABLES_FOLDER
from jaxpose.terminal import count, tally

if TYPE_CHECKING:
    import xarray

CSV, DEEPLABCUT, SLP, SLEAP_ANALYSIS, PARQUET, NWB = "csv", "deeplabcut", "slp", "sleap-analysis", "parquet", "nwb"
SUFFIXES = {
    CSV: ".csv", SLEAP_ANALYSIS: ".analysis.h5", DEEPLABCUT: ".h5", SLP: ".slp", PARQUET: ".parquet", NWB: ".nwb",
}  # fmt: skip
DETECTIONS_FILE = f"{DETECTIONS}{SUFFIXES[CSV]}"
_UNIQUE = " and unique body parts"
# Forms with a place for each individual; SLEAP's project holds animals without a track as well.
_INDIVIDUALS = (CSV, DEEPLABCUT, SLEAP_ANALYSIS, NWB)
_NEED_VIDEO = (SLP, NWB)
EXTRAS = {DEEPLABCUT: "deeplabcut", SLP: "sleap", SLEAP_ANALYSIS: "sleap", PARQUET: "parquet", NWB: "nwb"}


def convert_predictions(source: Path, target: Target, video: Path | None) -> list[str]:
    """Converts a table, or a run's finished tables; returns lines about the written files.

    Args:
      source: a table, or a results folder of jaxpose predict.
      target: the output.
      video: for a table, its video; for a folder, the only video to convert.

    Raises:
      UserError: a table or a video cannot be used, or a file already exists with other content; files written so far
        stay, and the same command writes the others.
    """
    if target.form == NWB and target.session_start is None:
        raise UserError(nwb.NEEDS_START)
    if not _is_file(target) and not target.out.is_dir() and (other := form_of(target.out)):
        raise UserError(
            f"--out is {target.out}, the name of a file for {other}; for {target.form} it must be a folder, or "
            f"a file whose name ends in {SUFFIXES[target.form]}"
        )
    if target.form in EXTRAS:
        need(EXTRAS[target.form], str(target.out))
    if not source.is_dir():
        return _convert(source, video, Path(), target)
    if not (source / INDEX_FILE).is_file():
        raise UserError(f"{source} has no {INDEX_FILE}: it is not a folder in which jaxpose predict left its results")
    found = {find_table(source, video): video} if video else finished_tables(source)
    if len(found) > 1 and _is_file(target):
        raise UserError(f"--out is {target.out}, but {source} has {len(found)} tables; give a folder, or --video VIDEO")
    lines = []
    for predicted, of_table in found.items():
        table = _tracks_of(predicted)
        if table.stat().st_mtime_ns < predicted.stat().st_mtime_ns:
            lines.append(f"{table} is older than its detections, {predicted.name}, which were predicted again")
        place = table.relative_to(source / VIDEO_TABLES_FOLDER).parent
        lines += _convert(table, of_table if of_table.is_file() else None, place, target)
    return lines


def _tracks_of(table: Path) -> Path:
    """Returns the tracks next to detections; of another table, the table itself.

    Raises:
      UserError: there are none, or several.
    """
    if not _is_of_detections(table):
        return table
    stem = table.name.removesuffix(DETECTIONS_FILE) + TRACKS
    found = [file for suffix in SUFFIXES.values() if (file := table.with_name(f"{stem}{suffix}")).is_file()]
    if not found:
        out = shlex.quote(str(table.with_name(f"{stem}{SUFFIXES[CSV]}")))
        raise UserError(f"{table} has no tracks; make them with jaxpose track {shlex.quote(str(table))} --out {out}")
    if len(found) > 1:
        names = " and ".join(file.name for file in found)
        raise UserError(f"{table.parent} has the tracks {names}; give the file to convert instead of the folder")
    return found[0]


def read_table(file: Path, several: bool = False, with_placed: bool = False) -> PredictionTable:
    """Reads a video's predictions from a table in any readable form.

    Args:
      file: the table.
      several: whether a frame may have several animals.
      with_placed: also read what a person placed in a SLEAP project with one predicted instance a frame.

    Raises:
      UserError: it does not exist, has another form, cannot be understood, or has several animals that are not wanted.
    """
    readers: dict[str, Callable[[Path], PredictionTable]] = {
        CSV: _read_csv,
        SLEAP_ANALYSIS: sleap_files.read_analysis,
        SLP: functools.partial(sleap_files.read_slp, with_placed=with_placed),
        DEEPLABCUT: deeplabcut.read_predictions,
        PARQUET: prediction_table.read_predictions,
    }
    if not file.is_file():
        beside = [name.name for name in file.parent.glob("*")]
        absent = "is a folder, not a table" if file.is_dir() else f"does not exist{did_you_mean(file.name, beside)}"
        raise UserError(f"the table {file} {absent}")
    if file.suffix in (".pickle", ".pkl"):
        raise UserError(
            f"{file} is a pickle of DeepLabCut, which could run any code; deeplabcut.stitch_tracklets(config, [video]) "
            "writes its animals to an .h5 table, which jaxpose reads (of a _full or _assemblies pickle, after "
            "deeplabcut.convert_detections2tracklets)"
        )
    form = _form_in(file)
    if form not in readers:
        suffixes = ", ".join(SUFFIXES[known] for known in readers)
        raise UserError(f"{file} cannot be read as a table of predictions: its name must end in one of {suffixes}")
    table = readers[form](file)
    if not several and not table.has_one_place:
        raise UserError(f"{file} has {count(table.animals, 'animal')}{_UNIQUE * (table.unique is not None)}; give a "
                        "table of one animal")  # fmt: skip
    return table


def to_xarray(file: str | os.PathLike, fps: float = 0.0) -> "xarray.Dataset":
    """Reads a video's predictions, or its tracks, from a table in any readable form, in the layout of `movement`.

    Args:
      file: the table; that of several animals needs tracks.
      fps: frames per second; 0: the times are numbers of frames.

    Returns:
      `position` (time, space, keypoint, individual) in px and `confidence` (time, keypoint, individual), NaN where
      there is no position. A single animal without a name is `id_0`.

    Raises:
      UserError: xarray is not installed, or the table cannot be read or has several animals without tracks.
    """
    need("xarray", "a Dataset")
    import xarray

    if not isinstance(fps, numbers.Real) or not 0 <= fps < np.inf:
        raise UserError(f"fps is {fps!r}; it must be a positive number, or 0 for times in frames")
    poses = read_table(Path(file).expanduser(), several=True).placed().poses
    frames, animals = len(poses.frames), poses.individuals or ("id_0",)
    confidence = np.full(poses.points_px.shape[:3], np.nan) if poses.confidence is None else poses.confidence
    noted = {"fps": fps, "time_unit": "seconds"} if fps else {"time_unit": "frames"}
    return xarray.Dataset(
        {
            "position": (("time", "space", "keypoint", "individual"), poses.points_px.transpose(0, 3, 2, 1)),
            "confidence": (("time", "keypoint", "individual"), confidence.transpose(0, 2, 1)),
        },
        {
            "time": np.arange(frames) / fps if fps else np.arange(frames),
            "space": ["x", "y"],
            "keypoint": list(poses.keypoint_names),
            "individual": list(animals),
        },
        {"source_software": "jaxpose", "source_file": str(file), "ds_type": "poses"} | noted,
    )


def is_table(file: Path) -> bool:
    """Returns whether a file is named like a table of any form."""
    return bool(form_of(file))


def form_of(file: Path) -> str:
    """Returns the form that the name of a file says, "" for none."""
    return next((form for form, suffix in SUFFIXES.items() if file.name.lower().endswith(suffix)), "")


def form_to_write(out: Path, forms: Sequence[str], source: Path) -> str:
    """Returns the form that the name of a file to write says.

    Args:
      out: the value of --out.
      forms: the forms that the command writes.
      source: the table that it reads.

    Raises:
      UserError: it is not one of the forms, or `out` is the source.
    """
    form = form_of(out)
    if form not in forms:
        endings = ", ".join(SUFFIXES[known] for known in forms)
        other = f". jaxpose convert predictions --to {form} converts these tables" if form else ""
        raise UserError(f"--out is {out}; its name must end in one of {endings}{other}")
    if out.exists() and source.exists() and out.samefile(source):
        raise UserError(f"--out is {out}, which is the table to read; choose another file")
    return form


def refuse_no_video(out: Path, table: PredictionTable) -> None:
    """Raises UserError if a file to write is a .slp, but the table does not name its video."""
    if form_of(out) == SLP and table.footage is None:
        raise UserError(
            f"--out is {out}, but {table.file} does not name its video, which .slp files describe: write an .h5 file, "
            "then give it and --video VIDEO to jaxpose convert predictions --to slp"
        )


def find_footage(table: PredictionTable, video: Path | None) -> Footage | None:
    """Returns the video that a table names, else the given one, else that of the results folder with the table.

    Raises:
      UserError: the video cannot be read, or its number of frames differs from the table.
    """
    if table.footage is not None:
        return table.footage
    if video is None and (video := video_of(table.file)) and not video.is_file():
        return None
    return read_footage(video, table) if video else None


def with_skeleton(table: PredictionTable, data: DataConfig | None = None) -> PredictionTable:
    """Returns a table with the skeleton of the run that predicted it, which SLEAP needs to merge it into the project.

    The edges are those of `data.skeleton`. A SLEAP project that still exists adds its name and symmetries.

    Args:
      table: if it has a skeleton, it stays as it is.
      data: the options of the run; None: those of the run whose folder holds the table, if any.
    """
    if data is None and (run := run_around(table.file)):
        data = read_config(run / CONFIG_FILE).data
    names = table.poses.keypoint_names
    if data is None or table.poses.skeleton.edges or set(data.keypoint_names) != set(names):
        return table
    project = Path(data.project)
    is_sleap = project.suffix.lower() == SUFFIXES[SLP] and project.is_file() and is_installed("sleap_io")
    skeleton = Skeleton()
    # The predictions are whole without the project.
    with contextlib.suppress(UserError):
        skeleton = read_skeleton(sleap.load(project)) if is_sleap else skeleton
    edges = edges_given("data.skeleton", data.skeleton, names)
    skeleton = dataclasses.replace(skeleton, edges=edges, symmetries=known_pairs(skeleton.symmetries, names))
    return dataclasses.replace(table, poses=dataclasses.replace(table.poses, skeleton=skeleton))


def individuals_for(table: Path) -> tuple[Individuals, DataConfig, Path | None] | None:
    """Returns what tells individuals apart in the run whose folder holds a table, its options, and the table's video.

    None without such a run, or if its labels do not distinguish the individuals.

    Raises:
      UserError: the file is damaged.
    """
    run = run_around(table)
    if run is None or not (run / INDIVIDUALS_FILE).is_file():
        return None
    found = read_individuals(run / INDIVIDUALS_FILE)
    return (found, read_config(run / CONFIG_FILE).data, video_of(table)) if found.is_reliable else None


def file_stem(file: Path) -> str:
    """Returns the name of a file without the suffix of its form."""
    return file.name[: -len(SUFFIXES[form_of(file)])]


def _form_in(file: Path) -> str:
    """Returns the form of an existing table; SLEAP writes its analysis to any name that ends in .h5."""
    form = form_of(file)
    return SLEAP_ANALYSIS if form == DEEPLABCUT and sleap_files.is_analysis(file) else form


def _convert(table: Path, video: Path | None, place: Path, target: Target) -> list[str]:
    predictions = read_table(table, several=True)
    if video is None and target.form == NWB and predictions.footage and not predictions.footage.images:
        named = str(predictions.footage.path)
        video = find_files([named], [[table.parent]])[named].file
    footage = read_footage(video, predictions) if video else None
    if target.form == SLEAP_ANALYSIS or (target.form == SLP and not predictions.is_plain):
        footage = footage or predictions.footage
    if target.form in (SLP, SLEAP_ANALYSIS, NWB):
        predictions = with_skeleton(predictions)
    if footage is None and target.form in _NEED_VIDEO:
        raise UserError(f"{target.form} files describe the video of {table}; give --video VIDEO")
    target = dataclasses.replace(target, scorer=target.scorer or scorer_for_deeplabcut(predictions))
    file = _file(predictions, video, place, target)
    with output_folder(file.parent, target.overwrite) as folder:
        written = write_form(folder / file.name, predictions, footage, target)
    names = ", ".join(str(file.with_name(one.name)) for one in written)
    lines = [*predictions.notes, f"{table} -> {names}", f"dropped: {dropped(predictions, target) or 'nothing'}"]
    if target.form == DEEPLABCUT and footage is None:
        lines.append("create_labeled_video of DeepLabCut also needs <table>_meta.pickle: give --video VIDEO")
    return lines


def scorer_for_deeplabcut(predictions: PredictionTable) -> str:
    """Returns the scorer of a table for DeepLabCut, which reads only its own kind of names."""
    is_theirs = predictions.scorer.startswith(deeplabcut.SCORER_PREFIX)
    return predictions.scorer if is_theirs else deeplabcut.SCORER


def dropped(predictions: PredictionTable, target: Target) -> str:
    """Returns the source's content that the target lacks, "" for nothing."""
    found = []
    if target.form == DEEPLABCUT and predictions.scorer != target.scorer:
        found.append(f"the scorer {predictions.scorer}, replaced by {target.scorer}")
    if not predictions.is_plain and target.form != SLP:
        poses = predictions.poses
        lost = int((np.isfinite(poses.points_px[..., 0]).any(axis=2) & (np.asarray(poses.identity) < 0)).sum())
        found += [count(lost, "animal") + " without a track"] if lost else []
        found += [f"the names of the tracks {', '.join(poses.individuals)}"] if target.form == PARQUET else []
        found += [] if target.form == SLEAP_ANALYSIS else ["the score of each animal"] * (poses.score is not None)
    if predictions.unique and target.form not in (CSV, DEEPLABCUT):
        found.append(count(len(predictions.unique.keypoint_names), "unique body part"))
    is_whole = target.form == SLP and predictions.by_hand is not None
    if predictions.is_plain and _form_in(predictions.file) in (SLEAP_ANALYSIS, SLP) and not is_whole:
        found.append("edges, the name of the track, and scores of instances and tracks")
    if target.form != SLP:
        found += _left_in_slp(predictions, target.form)
    return "; ".join([*found, *predictions.unread])


def _left_in_slp(predictions: PredictionTable, form: str) -> list[str]:
    """Returns the content that SLEAP's projects hold, and files of another form do not."""
    by_hand = 0 if predictions.by_hand is None else int(predictions.by_hand.sum())
    hidden = 0 if predictions.hidden_px is None else int(np.isfinite(predictions.hidden_px[..., 0]).sum())
    found = [f"the mark of {count(by_hand, 'animal')} that a person placed"] if by_hand else []
    skeleton, has_edges = predictions.poses.skeleton, form in (SLEAP_ANALYSIS, NWB)
    lost = {
        "position* of keypoints that are not visible": hidden,
        "edge* of the skeleton": 0 if has_edges or predictions.is_plain else len(skeleton.edges),
        "symmetric pair* of the skeleton": len(skeleton.symmetries),
    }
    return [*found, *tally(lost)]


def _file(predictions: PredictionTable, video: Path | None, place: Path, target: Target) -> Path:
    if _is_file(target):
        return target.out
    stem = file_stem(predictions.file)
    if target.form == DEEPLABCUT:
        of_video = video.stem if video else stem if predictions.is_plain else stem.removesuffix(TRACKS)
        return target.out / place / deeplabcut.file_name(of_video, target.scorer, tracked=not predictions.is_plain)
    return target.out / place / f"{stem}{SUFFIXES[target.form]}"


def _is_file(target: Target) -> bool:
    return target.out.name.lower().endswith(SUFFIXES[target.form]) and not target.out.is_dir()


def write_form(file: Path, predictions: PredictionTable, footage: Footage | None, target: Target) -> list[Path]:
    """Writes predictions in a form; returns the files.

    Raises:
      UserError: the form cannot hold the predictions, or a package is not installed.
    """
    if target.form in _INDIVIDUALS:
        predictions = predictions.placed()
    elif target.form != SLP and predictions.animals > 1:
        raise UserError(
            f"{predictions.file} has {count(predictions.animals, 'animal')}; {target.form} files that jaxpose writes "
            f"hold one: choose {', '.join((*_INDIVIDUALS, SLP))}"
        )
    if target.form == DEEPLABCUT:
        return deeplabcut.write_predictions(file, predictions, target.scorer, footage)
    if target.form == SLEAP_ANALYSIS:
        sleap_files.write_analysis(file, predictions, footage)
    elif target.form == PARQUET:
        prediction_table.write_predictions(file, predictions)
    elif target.form == SLP and footage:
        sleap_files.write_predictions_slp(file, predictions, footage)
    elif footage and target.session_start:
        nwb.write_predictions(file, predictions, footage, target.session_start)
    elif not predictions.is_plain:
        lightning_pose.write_individuals(file, predictions)
    else:
        poses = predictions.poses
        lightning_pose.write_predictions(
            file, poses.frames, poses.keypoint_names, *poses.one_animal(), predictions.scorer
        )
    return [file]


def _is_of_detections(file: Path) -> bool:
    """Returns whether a table has the animals of each frame, the surest first: `animal1` is no individual."""
    if not file.name.endswith(DETECTIONS_FILE):
        return False
    names = lightning_pose.individuals_in(file)
    return len(names) > 1 and names == place_names(len(names))


def _read_csv(file: Path) -> PredictionTable:
    if (several := lightning_pose.read_individuals(file)) is not None:
        return _without_identity(several) if _is_of_detections(file) else several
    found, first_row = lightning_pose.read_predictions(file), lightning_pose.first_row(file)
    names = found.poses.keypoint_names
    return check_predictions(file, found.scorer, found.poses.frames, names, *found.poses.one_animal(), first_row)


def _without_identity(table: PredictionTable) -> PredictionTable:
    """Returns detections of jaxpose predict: an animal's place in a frame means nothing in the next one."""
    identity = np.full_like(np.asarray(table.poses.identity), -1)
    return dataclasses.replace(table, poses=dataclasses.replace(table.poses, identity=identity, individuals=()))
