"""Writes the folder of a finished run with a network from another tool."""

import dataclasses
import os
from pathlib import Path

from jaxpose.checksums import read_json, write_csv, write_json
from jaxpose.config import Config
from jaxpose.config.option import flat_options
from jaxpose.errors import UserError
from jaxpose.files import was_cut_off
from jaxpose.outputs import has_same_files, write_folder
from jaxpose.run.identity import write_config
from jaxpose.run.paths import CONFIG_FILE, FINISHED_FILE, PARAMETERS_FILE, SPLIT_FILE
from jaxpose.run.pca import Subspaces, save_subspaces
from jaxpose.run.status import CONVERTED
from jaxpose.run.weights import export_parameters

_OPTIONS_OF_INPUT = ("data.resize", "data.input_width_px", "data.input_height_px", "data.views")


@dataclasses.dataclass(frozen=True)
class FinishedRun:
    """The content of a finished run.

    Attributes:
      config: including all options that depend on the project.
      params: the network's parameters, nested dict.
      statistics: the batch statistics, nested dict.
      step: number of optimizer steps.
      split_text: of split.csv, from `jaxpose.data.split.split_text`; "" if the frames' sets are unknown.
      subspaces: of the training labels' poses, by loss name.
      source: the converted file, for the summary.
    """

    config: Config
    params: dict
    statistics: dict
    step: int
    split_text: str
    subspaces: Subspaces
    source: dict[str, str]


def write_run(out: Path, run: FinishedRun, overwrite: bool = False) -> None:
    """Writes a finished run; the folder gets its name when complete.

    Args:
      out: the run folder, absent or empty.
      run: its content.
      overwrite: the folder may hold a converted run.

    Raises:
      UserError: the folder cannot be written, or holds files.
    """
    refuse_used(out, overwrite)
    try:
        with write_folder(out, overwrite) as folder:
            write_config(folder / CONFIG_FILE, run.config)
            if run.split_text:
                write_csv(folder / SPLIT_FILE, run.split_text)
            # Also without a subspace: a missing file means that it was lost.
            save_subspaces(folder, run.subspaces)
            metadata = {"step": str(run.step), "keypoint_names": ",".join(run.config.data.keypoint_names)}
            export_parameters(folder / PARAMETERS_FILE, {"params": run.params, "statistics": run.statistics}, metadata)
            summary = {"out": str(out), "steps": run.step, "best_step": run.step, "reason": CONVERTED, "exit_code": 0}
            write_json(folder / FINISHED_FILE, summary | {"sets": {}, "converted": run.source})
            refuse_used(out, overwrite, folder)
    except OSError as error:
        raise UserError(f"--out is {out}, which cannot be written: {error.strerror}; give another folder") from None


def refuse_used(out: Path, overwrite: bool, new: Path | None = None) -> None:
    """Refuses a file, or a folder with files, unless a killed command that wrote the same left them.

    Args:
      out: the folder for a run.
      overwrite: it may hold a converted run.
      new: the content to write, once known.

    Raises:
      UserError: it is such a path.
    """
    is_kept = has_same_files(new, out) if new else was_cut_off(Path(os.path.realpath(out)))
    if out.is_dir() and any(out.iterdir()) and not is_kept:
        is_converted = (out / FINISHED_FILE).is_file() and "converted" in read_json(out / FINISHED_FILE)
        if not overwrite or not is_converted:
            rule = ": --overwrite replaces the run" * is_converted
            raise UserError(f"--out is {out}, which holds files{rule}; give a new folder for the run")
    if out.exists() and not out.is_dir():
        raise UserError(f"--out is {out}, which is a file; give a folder for the run")


def options_of_network(config: Config) -> list[str]:
    """Returns the network and input options that differ from their defaults."""
    defaults = flat_options(Config())
    return [
        f"{name}={','.join(value) if isinstance(value, tuple) else value}"
        for name, (_, value) in flat_options(config).items()
        if (name.startswith("model.") or name in _OPTIONS_OF_INPUT) and value != defaults[name][1]
    ]
