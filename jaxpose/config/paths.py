"""Resolves the paths of a config once, so that later neither working directory nor links matter; finds config files."""

import dataclasses
import os
from pathlib import Path, PurePath

from jaxpose.config.model import NO_WEIGHTS, PUBLISHED
from jaxpose.config.root import Config

# Projects that jaxpose makes: of one animal, and of several.
SYNTHETIC, SYNTHETIC_GROUP = "synthetic", "synthetic-group"
SYNTHETICS = (SYNTHETIC, SYNTHETIC_GROUP)
SPLIT_KINDS = ("frame", "video", "moment")


def resolve_paths(config: Config) -> Config:
    """Returns a copy in which paths are relative to the project if they lie in it, or absolute.

    The former are `data.labels`, `data.boxes`, `data.video_boxes`, `data.calibration`, `video.folder` and
    `video.files`.

    The project, a file or run folder in `data.split`, `model.weights`, `train.init_from` and `pretrain.teacher`, and
    paths outside the project become absolute. The path of a file that does not exist stays as it is: its reader refuses
    it.
    """
    data, video, model, train = config.data, config.video, config.model, config.train
    project = data.project
    if project and project not in SYNTHETICS:
        # Path.resolve raises RuntimeError where symbolic links form a loop.
        project = os.path.realpath(Path(project).expanduser())
    in_project = [] if project in ("", *SYNTHETICS) else [str(project_folder(project))]
    split, init_from = data.split, train.init_from
    if split not in SPLIT_KINDS:
        split = str(find_path(split, *in_project) or split)
    if init_from:
        init_from = str(find_path(init_from) or init_from)
    weights = model.weights
    if weights and weights != NO_WEIGHTS and weights not in PUBLISHED:
        weights = str(find_path(weights) or weights)
    pretrain = config.pretrain
    if (teacher := pretrain.teacher) and teacher not in PUBLISHED:
        pretrain = dataclasses.replace(pretrain, teacher=str(find_path(teacher) or teacher))
    names = ("labels", "boxes", "video_boxes", "calibration")
    places = {name: _relative(getattr(data, name), *in_project) for name in names}
    data = dataclasses.replace(data, project=project, split=split, **places)
    files = tuple(_relative(file, *in_project) for file in video.files)
    video = dataclasses.replace(video, folder=_relative(video.folder, *in_project), files=files)
    train = dataclasses.replace(train, init_from=init_from)
    model = dataclasses.replace(model, weights=weights)
    return dataclasses.replace(config, data=data, video=video, model=model, train=train, pretrain=pretrain)


def project_folder(project: str) -> Path:
    """Returns the base folder of a project's paths: its own or, if the project is a file, the file's."""
    path = Path(project).expanduser()
    return path.parent if path.is_file() else path


def find_path(path: str, *folders: str) -> Path | None:
    """Returns the absolute path, without links, of a path relative to the working directory or one of the folders."""
    for folder in ("", *folders):
        place = os.path.join(folder, os.path.expanduser(path))
        if os.path.exists(place):
            return Path(os.path.realpath(place))
    return None


def _relative(path: str, *folders: str) -> str:
    """Returns a path relative to the first of the folders that contains it, if any."""
    pure = PurePath(os.path.expanduser(path))
    if not pure.is_absolute():
        return pure.as_posix() if path else path
    # The last part is not followed: videos/ may be a link to another disk.
    pure = PurePath(os.path.realpath(pure.parent), pure.name)
    return next((pure.relative_to(folder).as_posix() for folder in folders if pure.is_relative_to(folder)), str(pure))


# The files that are shipped with jaxpose: `configs/` and `launch/` of a checkout, even in an installed package.

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
    """Returns the path of a config file; without a file of that path, configs/NAME.py is jaxpose's own.

    The path may not exist.
    """
    path = Path(name)
    return shipped_folder() / path.name if str(path) in shipped_names() and not path.is_file() else path


def _shipped(installed: Path, in_checkout: Path) -> Path:
    package = Path(__file__).resolve().parents[1]
    return package / installed if (package / installed).is_dir() else package.parent / in_checkout
