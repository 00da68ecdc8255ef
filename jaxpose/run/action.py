"""Decides what to do with a run folder: start, resume, report a finished run, or refuse another run."""

from pathlib import Path

from jaxpose.config import Config
from jaxpose.errors import UserError
from jaxpose.quantities import listed
from jaxpose.run.extension import Extension, extension_of, with_length_of
from jaxpose.run.identity import differences, read_config
from jaxpose.run.paths import (
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
    FINISHED_FILE,
    INDEX_FILE,
    NO_RUN,
    SPLIT_FILE,
    VIDEO_TABLES_FOLDER,
)
from jaxpose.run.refusal import start_options, way_on
from jaxpose.run.summary import CONVERTED, read_summary


def decide_action(path: Path, config: Config, split_text: str) -> tuple[str, tuple[str, ...], Extension | None]:
    """Applies the table of run folders and `resume` (docs/data.md); writes nothing.

    Args:
      path: the run folder.
      config: resolved config.
      split_text: content of split.csv for this config and data.

    Returns:
      The action ("start", "resume" or "finished"), messages for the user, and the extension that makes the run longer,
      if any.

    Raises:
      UserError: the folder holds another run, or `config.resume` does not allow the action.
    """
    if config.resume == "overwrite":
        return "start", (), None
    if not (path / CONFIG_FILE).exists():
        if config.resume in ("must", "extend"):
            raise UserError(f"resume is {config.resume}, but {path} holds no run; use resume=auto to start one")
        return "start", (), None
    if config.resume == "never":
        raise UserError(f"resume is never, but {path} holds a run; choose another out, or resume=overwrite")
    compared = with_length_of(read_config(path / CONFIG_FILE), config) if config.resume == "extend" else config
    found = differences(path, compared, split_text)
    if found:
        raise UserError(
            f"{path} holds another run; differing: {'; '.join(found)}. {way_on(path, compared, split_text)}"
        )
    is_finished = (path / FINISHED_FILE).exists()
    extension = extension_of(path, config, split_text) if config.resume == "extend" else None
    unchecked: tuple[str, ...] = ()
    if not (path / SPLIT_FILE).exists() and (is_finished or any((path / CHECKPOINTS_FOLDER).glob("[0-9]*"))):
        unchecked = (f"{path / SPLIT_FILE} is gone, so jaxpose cannot check that the data are unchanged",)
    if is_finished and not extension:
        return "finished", unchecked, None
    if is_finished and (why_not := _why_not_longer(read_summary(path).get("reason"), config)):
        raise UserError(
            f"resume is extend, but the run in {path} {why_not}; {start_options(path, config)} without "
            "resume=extend starts another run from its weights"
        )
    messages = extension.messages() if extension else ()
    if extension and not config.out:
        messages = (f"{path} is the only run there that differs in its length alone", *messages)
    messages += unchecked
    if extension and any((path / VIDEO_TABLES_FOLDER).glob("*.csv")):
        messages += (
            f"{path / VIDEO_TABLES_FOLDER} holds predictions of earlier weights; {INDEX_FILE} names their weights",
        )
    return "resume", messages, extension


def _why_not_longer(reason: object, config: Config) -> str:
    """Returns why a finished run with this `reason` cannot be trained longer, or ""."""
    if reason == "early stop":
        patience = config.train.early_stop_patience
        return f"stopped early (train.early_stop_patience = {patience}), as a longer one would"
    return "was converted from another tool and has no checkpoints" if reason == CONVERTED else ""


def refuse_foreign(path: Path) -> None:
    """Raises UserError if a folder holds files but no run."""
    if not path.exists():
        return
    if not path.is_dir():
        raise UserError(f"the run folder {path} is a file; choose another out")
    if (path / CONFIG_FILE).exists():
        read_config(path / CONFIG_FILE)
        return
    foreign = sorted({entry.name for entry in path.iterdir()} - NO_RUN)
    if foreign:
        raise UserError(
            f"{path} holds files, but no run of jaxpose ({listed(foreign, 3)}); they are never "
            "deleted: choose another out"
        )
