"""Detects which tool's config was given in place of a project."""

from pathlib import Path

from jaxpose.errors import UserError
from jaxpose.text_file import read_yaml

# Sections of Lightning Pose, some of which a config may lack, and an option of every DeepLabCut project.
PROJECT_SECTIONS, _DEEPLABCUT = ("data", "training", "model"), "bodyparts"


def is_project_config(project: str) -> bool:
    """Returns whether a project is given as a YAML file."""
    return project.lower().endswith((".yaml", ".yml")) and Path(project).expanduser().is_file()


def is_lightning_pose_config(file: Path) -> bool:
    """Returns whether a YAML file is the config of a Lightning Pose project; the other known one is DeepLabCut's.

    Raises:
      UserError: it is not YAML, or the config of neither.
    """
    tree, _ = read_yaml(file)
    sections = tree if isinstance(tree, dict) else {}
    if any(isinstance(sections.get(name), dict) for name in PROJECT_SECTIONS):
        return True
    if _DEEPLABCUT not in sections:
        raise UserError(
            f"{file} is neither the config of a Lightning Pose project (sections {', '.join(PROJECT_SECTIONS)}) "
            f"nor that of a DeepLabCut project ({_DEEPLABCUT}); give the folder of the project"
        )
    return False
