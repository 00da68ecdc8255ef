"""Why a training cannot go on."""

ADVICE = "Try a new run with a lower optim.lr or with optim.clip_norm=1, or look at what train.log names"


class Diverged(RuntimeError):
    """Too many non-finite steps in a row or no other ones, or devices whose copies of the state differ."""
