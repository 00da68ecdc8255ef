"""The size of an image whose row is merged."""

from pathlib import Path

from jaxpose.data.image_file import image_facts
from jaxpose.data.orientation import NORMAL, describe
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, read_bytes


def read_size_px(image: Path) -> tuple[int, int]:
    """Returns (width, height) of an image.

    Raises:
      UserError: it does not exist, is not an image, or has an EXIF orientation.
    """
    try:
        facts = image_facts(read_bytes(image, most_bytes=None))
    except FileNotFoundError:
        raise UserError(f"{image} does not exist") from None
    except (OSError, NotRegularFile) as error:
        raise UserError(f"{image} cannot be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{image}: {error}") from None
    if facts.orientation != NORMAL:
        raise UserError(f"{image} has {describe(facts.orientation)}; save it upright, and check its labels")
    return facts.stored_px
