"""The function of the user that `log.remote_hook` names. Nothing here imports jax."""

import importlib
from collections.abc import Callable

from jaxpose.errors import UserError


def load_hook(name: str) -> Callable[[str], object] | None:
    """Returns the function that MODULE:FUNCTION names, None for "".

    Raises:
      UserError: it cannot be imported, or is not a function.
    """
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        hook = getattr(importlib.import_module(module), function)
    # A user's module may raise anything.
    except (Exception, SystemExit) as error:
        raise UserError(
            f"log.remote_hook is {name!r}, which cannot be imported: {type(error).__name__}: {error}"
        ) from None
    if not callable(hook):
        raise UserError(f"log.remote_hook is {name!r}, which is not a function but of type {type(hook).__name__}")
    return hook
