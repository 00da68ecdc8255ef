"""Published weights from the Hugging Face hub, by way of its usual cache."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from jaxpose.config.weights import PUBLISHED
from jaxpose.errors import UserError
from jaxpose.phases import phase


def fetch(name: str) -> Path:
    """Returns the file of published weights, from the hub's cache, or else downloaded into it.

    What the cache has is taken as it is: a later version would be another run.

    Args:
      name: a key of `PUBLISHED`.

    Raises:
      UserError: the file is not in the cache and cannot be downloaded; the message says which file to put where.
    """
    # It takes half a second, and few runs need it.
    from huggingface_hub import constants, errors, hf_hub_download

    weights = PUBLISHED[name]
    with contextlib.suppress(errors.LocalEntryNotFoundError):
        return Path(hf_hub_download(weights.repository, weights.file, local_files_only=True))
    try:
        with phase(f"fetching {weights.file} of {weights.repository}"), _without_warnings():
            return Path(hf_hub_download(weights.repository, weights.file))
    except errors.GatedRepoError:
        reason = f"its owner gives access on request: ask on https://huggingface.co/{weights.repository}, then log in"
    except errors.LocalEntryNotFoundError:
        offline = "HF_HUB_OFFLINE forbids to download it"
        reason = offline if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
    except (OSError, errors.HfHubHTTPError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    cache = Path(constants.HF_HUB_CACHE)
    folder = f"models--{weights.repository.replace('/', '--')}"
    raise UserError(
        f"model.weights is {name}: {weights.file} of the hub's {weights.repository} is not in {cache}, and {reason}. "
        f"On a machine with a network, run `hf download {weights.repository} {weights.file}` and copy the folder "
        f"{folder} of its cache into {cache}"
    )


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Hides the library's warnings about each of its attempts; the error that follows says all of it."""
    library = logging.getLogger("huggingface_hub")
    before = library.level
    library.setLevel(logging.ERROR)
    try:
        yield
    finally:
        library.setLevel(before)
