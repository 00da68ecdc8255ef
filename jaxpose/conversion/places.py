"""Where converted labels come from and may be written."""

from pathlib import Path

from jaxpose.config import DataConfig, project_folder
from jaxpose.errors import UserError
from jaxpose.formats.deeplabcut.project import is_project


def refuse_out(project: str, out: Path) -> None:
    """Checks that new label files change no project.

    Raises:
      UserError: `out` lies in the folder of the project, or a DeepLabCut project would get a label file that is read in
        place of its own labels.
    """
    path, folder = Path(project).expanduser(), project_folder(project).resolve()
    is_folder = path.is_dir() or path.suffix.lower() in (".yaml", ".yml")
    if is_folder and out.resolve().is_relative_to(folder):
        raise UserError(f"--out is {out}, in the project {folder} itself; choose a place outside of it")
    if out.name == DataConfig().labels and is_project(out.parent):
        raise UserError(
            f"--out is {out}, but {out.parent} is a DeepLabCut project, whose own labels would not be read any more; "
            "choose another place"
        )
