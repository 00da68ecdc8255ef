"""The folder of a finished run whose network another tool has trained."""

import dataclasses
import os
from pathlib import Path

from jaxpose.checksums import read_json, write_csv, write_json
from jaxpose.config import Config
from jaxpose.errors import UserError
from jaxpose.files import has_same_files, write_folder
from jaxpose.run.identity import write_config
from jaxpose.run.paths import CONFIG_FILE, FINISHED_FILE, PARAMETERS_FILE, SPLIT_FILE
from jaxpose.run.pca import Subspaces, save_subspaces
from jaxpose.run.summary import CONVERTED
from jaxpose.run.weights import export_parameters
from jaxpose.unfinished import was_cut_off


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """What a finished run consists of.

    Attributes:
      config: with everything filled in that depends on the project.
      params: the parameters of the network, nested dict.
      statistics: its batch statistics, nested dict.
      step: optimizer steps of the training.
      split_text: of split.csv, as `jaxpose.data.split.split_text` makes it; "" if the sets of the frames are unknown.
      subspaces: of the training labels' poses, by the name of their loss.
      source: what was converted, for the summary.
    """

    config: Config
    params: dict
    statistics: dict
    step: int
    split_text: str
    subspaces: Subspaces
    source: dict[str, str]


def write_run(out: Path, run: FinishedRun, overwrite: bool = False) -> None:
    """Writes a finished run; the folder gets its name when it is complete.

    Args:
      out: the run folder; it must not exist, or be empty.
      run: its content.
      overwrite: the folder may hold a run that was converted.

    Raises:
      UserError: the folder cannot be written, or holds files.
    """
    refuse_used(out, overwrite)
    try:
        with write_folder(out, overwrite) as folder:
            write_config(folder / CONFIG_FILE, run.config)
            if run.split_text:
                write_csv(folder / SPLIT_FILE, run.split_text)
            # Also without a subspace: a run whose file is absent has lost it.
            save_subspaces(folder, run.subspaces)
            metadata = {"step": str(run.step), "keypoint_names": ",".join(run.config.data.keypoint_names)}
            export_parameters(folder / PARAMETERS_FILE, {"params": run.params, "statistics": run.statistics}, metadata)
            summary = {"out": str(out), "steps": run.step, "best_step": run.step, "reason": CONVERTED, "exit_code": 0}
            write_json(folder / FINISHED_FILE, summary | {"sets": {}, "converted": run.source})
            refuse_used(out, overwrite, folder)
    except OSError as error:
        raise UserError(f"--out is {out}, which cannot be written: {error.strerror}; give another folder") from None


def refuse_used(out: Path, overwrite: bool, new: Path | None = None) -> None:
    """Refuses a folder that holds files, unless a killed command left them that wrote the same, or a file.

    Args:
      out: the folder for a run.
      overwrite: it may hold a run that was converted.
      new: what is to be written there, once that is known.

    Raises:
      UserError: it is one.
    """
    is_kept = has_same_files(new, out) if new else was_cut_off(Path(os.path.realpath(out)))
    if out.is_dir() and any(out.iterdir()) and not is_kept:
        is_converted = (out / FINISHED_FILE).is_file() and "converted" in read_json(out / FINISHED_FILE)
        if not overwrite or not is_converted:
            rule = ": --overwrite replaces the run" * is_converted
            raise UserError(f"--out is {out}, which holds files{rule}; give a new folder for the run")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out is {out}, which is a file; give a folder for the run")
