"""The order of clips: maps each draw to a window of consecutive frames."""

import functools

import numpy as np

# Keeps the order of the clips apart from other uses of data.seed.
_ORDER = 3
# Frames decoded at once if clips are not read from the cache: a few GOPs.
_BLOCK_FRAMES = 256


def place(
    draw: int, frame_counts: tuple[int, ...], sequence_length: int, seed: int, mixed_blocks: int = 1
) -> tuple[int, int]:
    """Returns the number of the session and the number of the first frame of a draw.

    The windows of a session of n frames begin at 0, S, 2 S, ...; the last one ends with the session, so that every
    frame is in a window. Pass e over all windows shuffles blocks of neighbouring windows and the windows inside of each
    block, so that frames decoded for one clip serve the next ones too. With mixed blocks, the windows of several blocks
    are shuffled together.

    Args:
      draw: not negative.
      frame_counts: frames of each session, none below `sequence_length`.
      sequence_length: frames of a clip (S).
      seed: data.seed.
      mixed_blocks: number of these blocks.
    """
    window_counts = tuple(window_count(count, sequence_length) for count in frame_counts)
    first_windows = np.cumsum([0, *window_counts])
    epoch, position = divmod(draw, int(first_windows[-1]))
    window = int(_order(seed, epoch, window_counts, _block_windows(sequence_length), mixed_blocks)[position])
    session = int(np.searchsorted(first_windows, window, side="right")) - 1
    first = (window - int(first_windows[session])) * sequence_length
    return session, min(first, frame_counts[session] - sequence_length)


def window_count(frame_count: int, sequence_length: int) -> int:
    """Returns how many windows a session has; the last one may overlap the one before."""
    return -(-frame_count // sequence_length)


@functools.lru_cache(maxsize=4)
def _order(seed: int, epoch: int, window_counts: tuple[int, ...], block_windows: int, mixed_blocks: int) -> np.ndarray:
    """Returns the windows (n,), numbered over all sessions, in the order in which a pass draws them."""
    # A block is numbered by its first window; other numbers are not used.
    first_windows = np.cumsum([0, *window_counts[:-1]])
    blocks = [
        first + np.arange(count) // block_windows * block_windows
        for first, count in zip(first_windows, window_counts, strict=True)
    ]
    block_of_window = np.concatenate(blocks)
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, _ORDER, epoch])))
    rank_of_block = rng.permutation(len(block_of_window))
    _, rank_of_window = np.unique(rank_of_block[block_of_window], return_inverse=True)
    return np.lexsort((rng.random(len(block_of_window)), rank_of_window // mixed_blocks))


def block_around(first: int, frame_count: int, sequence_length: int) -> tuple[int, int]:
    """Returns the frames [start, end) of the block of a clip that begins at frame `first` of a session."""
    length = _block_windows(sequence_length) * sequence_length
    # The last window was moved back and may begin before its block; if it is alone there, it is the block.
    window_start = -(-first // sequence_length) * sequence_length
    start = min(window_start // length * length, frame_count - sequence_length)
    return start, min(start + length, frame_count)


def _block_windows(sequence_length: int) -> int:
    return max(1, _BLOCK_FRAMES // sequence_length)
