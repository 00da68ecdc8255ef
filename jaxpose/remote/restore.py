"""Brings a run back from its copy into an empty run folder, as on a machine that has never seen the run.

Input: a config with `log.remote_url`. Output: the run folder as the copy has it, every file checked.
"""

import dataclasses
import os
import shutil
from pathlib import Path

from jaxpose.config import Config, differing_keys
from jaxpose.errors import UserError
from jaxpose.files import write_atomic
from jaxpose.remote.download import download
from jaxpose.remote.record import COPIED_FILE, copy_is_ahead
from jaxpose.remote.store import RemoteFolder, is_leftover, run_name
from jaxpose.run.extension import with_length_of
from jaxpose.run.identity import parse_config, parse_signed_split_rows, read_split_rows, share_frames
from jaxpose.run.paths import CONFIG_FILE, NO_RUN, RESTORING_FOLDER, SPLIT_FILE


@dataclasses.dataclass(frozen=True)
class _Copy:
    """What a copy is, compared with the run folder.

    Attributes:
      config: of the run whose copy it is.
      ahead: how far it is ahead of a folder that is not empty, or "".
      shares_frames: False where the folder has none of its frames.
    """

    config: Config
    ahead: str
    shares_frames: bool


def restore(config: Config, folder: Path, *, dry_run: bool = False) -> list[str]:
    """Downloads the copy of a run into its empty run folder, or checks that a copy is this run's and not ahead of it.

    A download that is cut short begins again the next time; it never leaves half a run in the folder. Does nothing
    without `log.remote_url`, and downloads nothing with resume=overwrite.

    Args:
      config: resolved config.
      folder: the run folder, locked.
      dry_run: only check, and report what would be downloaded.

    Returns:
      Messages for the user, one sentence each.

    Raises:
      UserError: the folder is its own copy; or the copy is not a copy, is another run's, is damaged, or is ahead of a
        folder that is not empty; or it cannot be read and the folder is empty, so that an existing run might be started
        anew.
    """
    if not config.log.remote_url:
        return []
    remote, staging = RemoteFolder(config.log.remote_url, run_name(folder)), folder / RESTORING_FOLDER
    if remote.is_at(folder):
        raise UserError(f"log.remote_url is {config.log.remote_url}, so the copy of {folder} would be itself")
    overwrites = config.resume == "overwrite"
    is_empty = not folder.is_dir() or {entry.name for entry in folder.iterdir()} <= NO_RUN
    _refuse_links(staging)
    if (staging / CONFIG_FILE).exists() and not dry_run and not overwrites:
        # The config is downloaded last, so the download is complete.
        _move_in(staging, folder)
        return [f"the download from {remote.url} is complete now"]
    try:
        found = _look(remote, folder, compares=not is_empty and not overwrites)
    except UserError:
        raise
    # Each kind of store has exceptions of its own.
    except Exception as error:
        reason = f"{remote.url} cannot be read: {error}"
        if is_empty and not overwrites:
            raise UserError(
                f"{reason}. It may hold this run's copy; resume=overwrite would start anew without looking"
            ) from None
        return [f"{reason}; the run continues from its own folder, and jaxpose tries the copy again"]
    if found is None or overwrites:
        return []
    _refuse_other_copy(config, folder, remote, found)
    if not is_empty:
        return []
    if config.resume == "never":
        raise UserError(f"resume is never, but {remote.url} holds the copy of this run; use resume=auto to continue")
    if dry_run:
        return [f"{remote.url} holds the copy of this run, which would be downloaded"]
    messages = download(remote, staging)
    _move_in(staging, folder)
    return messages


def _look(remote: RemoteFolder, folder: Path, compares: bool) -> _Copy | None:
    """Returns a description of the copy, None if there is none; on request compared with the run folder."""
    stored = _stored_config(remote)
    if stored is None:
        return None
    if not compares:
        return _Copy(stored, "", shares_frames=True)
    return _Copy(stored, copy_is_ahead(remote, folder), _share_frames(remote, folder))


def _refuse_other_copy(config: Config, folder: Path, remote: RemoteFolder, found: _Copy) -> None:
    """Raises UserError where a copy is another run's, or ahead of the run folder."""
    compared = with_length_of(found.config, config) if config.resume == "extend" else config
    if differing := differing_keys(found.config, compared):
        differences = "; ".join(f"{key} {old!r} -> {new!r}" for key, (old, new) in differing.items())
        raise UserError(
            f"{remote.url} holds the copy of another run; differing: {differences}. "
            "Choose another out or log.remote_url, or resume=overwrite to start anew"
        )
    if not found.shares_frames:
        raise UserError(
            f"{remote.url} holds the copy of a run of another project: it has none of the frames of {folder}. "
            "Choose another log.remote_url"
        )
    if found.ahead:
        raise UserError(
            f"{remote.url} is ahead of the run folder: {found.ahead}. Move {folder} away to continue from the copy, or "
            "choose another log.remote_url; resume=overwrite would start anew"
        )


def _stored_config(remote: RemoteFolder) -> Config | None:
    """Returns the config of the run whose copy this is, None if there is no copy.

    Raises:
      UserError: the remote folder holds something else.
    """
    names = [name for name in remote.names() if not is_leftover(name)]
    if names and COPIED_FILE not in names:
        raise UserError(
            f"{remote.url} holds files that are not the copy of a run ({', '.join(names[:3])}); choose another"
        )
    if CONFIG_FILE not in names:
        return None
    return parse_config(remote.read(CONFIG_FILE), f"{remote.url}/{CONFIG_FILE}")


def _share_frames(remote: RemoteFolder, folder: Path) -> bool:
    """Returns whether split.csv of a copy and of a run folder have a frame in common; True where one is absent."""
    if not (folder / SPLIT_FILE).is_file() or SPLIT_FILE not in remote.names():
        return True
    copied = parse_signed_split_rows(remote.read(SPLIT_FILE), f"{remote.url}/{SPLIT_FILE}")
    return share_frames(copied, read_split_rows(folder))


def _refuse_links(staging: Path) -> None:
    """Refuses what no download leaves behind: files elsewhere would be moved or copied into the run folder."""
    links = [path for path in (staging, *staging.rglob("*")) if path.is_symlink()]
    if links:
        raise UserError(f"{links[0]} is a link, which jaxpose did not make; remove {staging}, then repeat")


def _move_in(staging: Path, folder: Path) -> None:
    """Moves a complete download into place, the config first: without it, the rest would count as foreign files."""
    write_atomic(folder / CONFIG_FILE, (staging / CONFIG_FILE).read_bytes())
    for entry in staging.iterdir():
        if entry.name != CONFIG_FILE:
            os.replace(entry, folder / entry.name)
    shutil.rmtree(staging)
