"""The files that come with jaxpose: `configs/` and `launch/` of a checkout, also in an installed package."""

from pathlib import Path

_FOLDER = Path("configs")
# Files of launch/ by the names that users give.
TEMPLATES = {
    "slurm": "slurm.sbatch",
    "slurm-predict": "predict.sbatch",
    "hosts": "hosts.sh",
    "kubernetes": "k8s/jobset.yaml",
}


def shipped_folder() -> Path:
    """Returns the folder of the config files that come with jaxpose."""
    return _shipped(_FOLDER, _FOLDER)


def read_template(name: str) -> str:
    """Returns the text of a template for starting jaxpose on several machines; the name is one of `TEMPLATES`."""
    return (_shipped(Path("templates"), Path("launch")) / TEMPLATES[name]).read_text()


def shipped_names() -> list[str]:
    """Returns the names by which `find_config` knows these files: configs/pose.py, ..."""
    return sorted(str(_FOLDER / file.name) for file in shipped_folder().glob("*.py"))


def find_config(name: str) -> Path:
    """Returns the path of a config file; configs/NAME.py is the one that comes with jaxpose if there is no such file.

    The path may not exist.
    """
    path = Path(name)
    return shipped_folder() / path.name if str(path) in shipped_names() and not path.is_file() else path


def _shipped(installed: Path, in_checkout: Path) -> Path:
    package = Path(__file__).resolve().parents[1]
    return package / installed if (package / installed).is_dir() else package.parent / in_checkout
