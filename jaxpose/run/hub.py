"""Published weights from the Hugging Face hub, by way of its usual cache."""

from pathlib import Path

from jaxpose.config.weights import PUBLISHED
from jaxpose.errors import UserError


def fetch(name: str) -> Path:
    """Returns the file of published weights, downloaded unless the cache of the hub has it.

    Args:
      name: a key of `PUBLISHED`.

    Raises:
      UserError: the file is not in the cache and cannot be downloaded; the message says which file to put where.
    """
    # It takes half a second, and few runs need it.
    from huggingface_hub import constants, errors, hf_hub_download

    weights = PUBLISHED[name]
    try:
        return Path(hf_hub_download(weights.repository, weights.file))
    except errors.GatedRepoError:
        reason = f"its owner gives access on request: ask on https://huggingface.co/{weights.repository}, then log in"
    except errors.OfflineModeIsEnabled:
        reason = "HF_HUB_OFFLINE forbids to download it"
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
