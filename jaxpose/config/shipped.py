"""The config files that come with jaxpose: `configs/` of a checkout, `jaxpose/configs/` of an installed package."""

from pathlib import Path

_FOLDER = Path("configs")


def shipped_folder() -> Path:
    """Returns the folder of the config files that come with jaxpose."""
    package = Path(__file__).resolve().parents[1]
    installed = package / _FOLDER
    return installed if installed.is_dir() else package.parent / _FOLDER


def shipped_names() -> list[str]:
    """Returns the names by which `find_config` knows these files: configs/pose.py, ..."""
    return sorted(str(_FOLDER / file.name) for file in shipped_folder().glob("*.py"))


def find_config(name: str) -> Path:
    """Returns the path of a config file; configs/NAME.py is the one that comes with jaxpose if there is no such file.

    The path may not exist.
    """
    path = Path(name)
    return shipped_folder() / path.name if str(path) in shipped_names() and not path.is_file() else path
