"""The error for a user's mistake: a verb prints its text, one line for each mistake, and exits with 2."""

import importlib.util


class UserError(ValueError):
    """A mistake of the user in an argument, an option, the data, or a file or folder that was named.

    The text has a line for each mistake. Each line names the thing, its value, the rule, and the fix. A mistake of the
    program, such as an array of the wrong shape, is another ValueError.
    """


# Optional packages: extras of pyproject.toml, imported where they are used.

# The modules of each extra.
EXTRAS = {
    "deeplabcut": ("h5py", "pandas", "tables"),
    "export": ("flatbuffers", "onnx", "onnxruntime"),
    "mlflow": ("mlflow",),
    "nwb": ("sleap_io", "pynwb", "ndx_pose"),
    "pandas": ("pandas",),
    "parquet": ("pyarrow",),
    "sleap": ("sleap_io", "h5py"),
    "tensorboard": ("tensorboard",),
    "torch": ("torch",),
    "wandb": ("wandb",),
    "xarray": ("xarray",),
}


def need(extra: str, what: str, *modules: str) -> None:
    """Checks that the packages of an extra are installed; call it before work that a late refusal would waste.

    Args:
      extra: a key of `EXTRAS`.
      what: the thing that needs them: a file, a format, a flag.
      modules: the ones that are needed; none means all.

    Raises:
      UserError: a package is not installed.
    """
    absent = [module for module in modules or EXTRAS[extra] if not is_installed(module)]
    if absent:
        are = "which is" if len(absent) == 1 else "which are"
        raise UserError(f"{what} needs {' and '.join(absent)}, {are} not installed: pip install 'jaxpose[{extra}]'")


def is_installed(module: str) -> bool:
    """Returns whether a package can be imported, without importing it."""
    spec = importlib.util.find_spec(module)
    # A folder of that name, such as wandb leaves where it ran, is a package without a file.
    return spec is not None and spec.origin is not None
