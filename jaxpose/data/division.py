"""Dividing frames at random into training, validation and test frames; the result depends on the seed alone."""

import numpy as np

from jaxpose.codes import TEST, TRAIN, UNUSED, VALIDATION
from jaxpose.config import DataConfig
from jaxpose.data.shares import Sizes, most_training_frames, sizes_by_frame, sizes_by_video
from jaxpose.errors import UserError

# Keep these uses of data.seed apart from each other and from the loader's.
_DIVIDE, _LIMIT = 2, 3


def divide_new(sets: np.ndarray, new: np.ndarray, folder_of: np.ndarray, data: DataConfig) -> None:
    """Divides the frames that a known split lacks, by folder if the split keeps folders together."""
    known = sets != ""
    by_folder = set(zip(folder_of[known].tolist(), _trained(sets[known]).tolist(), strict=True))
    keeps_folders = len(by_folder) == len({folder for folder, _ in by_folder}) and len({of for _, of in by_folder}) > 1
    if keeps_folders:
        divide_videos(sets, folder_of, data)
    elif len(new):
        fill(sets, new, sizes_by_frame(data, len(sets)), data.seed)


def divide_videos(sets: np.ndarray, folder_of: np.ndarray, data: DataConfig) -> None:
    """Gives each frame without a set the set of its folder; divides folders without a set."""
    folders, place = np.unique(folder_of, return_inverse=True)
    folder_sets = np.full(len(folders), "", sets.dtype)
    known = np.flatnonzero(sets != "")
    folder_sets[place[known]] = _trained(sets[known])
    sizes = sizes_by_video(data, len(folders), len(sets))
    fill(folder_sets, np.flatnonzero(folder_sets == ""), sizes, data.seed)
    empty = sets == ""
    sets[empty] = folder_sets[place[empty]]


def fill(sets: np.ndarray, rows: np.ndarray, sizes: Sizes, seed: int) -> None:
    """Gives sets to rows so that all rows together have the sizes, as far as existing sets allow."""
    counts = [int((_trained(sets) == name).sum()) for name in (VALIDATION, TEST)]
    validation, test = (max(wanted - count, 0) for wanted, count in zip(sizes[1:], counts, strict=True))
    if validation + test > len(rows):
        validation = round(len(rows) * validation / (validation + test))
        test = len(rows) - validation
    order = _shuffled(rows, seed, _DIVIDE)
    train = len(rows) - validation - test
    sets[order[:train]] = TRAIN
    sets[order[train : train + validation]] = VALIDATION
    sets[order[train + validation :]] = TEST


def fill_stretches(sets: np.ndarray, stretches: list[np.ndarray], sizes: Sizes, seed: int) -> None:
    """Gives sets to stretches, each the rows of frames that stay together, so that the sets have about the sizes.

    Stretches of one frame get the sets that `fill` gives to these frames.
    """
    train, validation, _ = sizes
    done = 0
    for stretch in (stretches[at] for at in _shuffled(np.arange(len(stretches)), seed, _DIVIDE).tolist()):
        middle = done + (len(stretch) - 1) / 2
        sets[stretch] = TRAIN if middle < train else VALIDATION if middle < train + validation else TEST
        done += len(stretch)


def limit_training(sets: np.ndarray, new: np.ndarray, data: DataConfig) -> None:
    """Turns all but `data.train_frames` training frames into unused ones; only rows of `new` may change."""
    limit, candidates = data.train_frames, new[sets[new] == TRAIN]
    if limit == 1:
        return
    if limit > 1 and limit != int(limit):
        raise UserError(f"data.train_frames is {limit:g}; above 1 it must be a whole number of frames")
    # A share counts the frames that an earlier run left unused, because they were training frames, too.
    settled = np.setdiff1d(np.arange(len(sets)), new)
    pool = len(candidates) + np.isin(sets[settled], (TRAIN, UNUSED)).sum()
    wanted = most_training_frames(limit, int(pool))
    room = max(wanted - int((sets[settled] == TRAIN).sum()), 0)
    sets[_shuffled(candidates, data.seed, _LIMIT)[room:]] = UNUSED


def _shuffled(rows: np.ndarray, seed: int, use: int) -> np.ndarray:
    # numpy promises only that the raw stream of a bit generator stays the same in later versions.
    return rows[np.argsort(np.random.Philox([seed, use]).random_raw(len(rows)), kind="stable")]


def _trained(sets: np.ndarray) -> np.ndarray:
    """Returns the sets with unused frames, which `data.train_frames` leaves out, as training frames."""
    return np.where(sets == UNUSED, TRAIN, sets)
