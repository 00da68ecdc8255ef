"""The error that ends a training: it cannot continue."""

ADVICE = "Try a new run with a lower optim.lr or with optim.clip_norm=1, or check the images that train.log names"


class Diverged(RuntimeError):
    """Too many steps in a row, or all steps, were not finite; or the devices hold different states."""
