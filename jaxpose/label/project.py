"""A project to label: its label files, and the images that have labels or could have some."""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from unicodedata import normalize

from jaxpose.config import DataConfig
from jaxpose.data.frame_names import FrameNames
from jaxpose.data.inputs import IMAGE_SUFFIXES, natural_key
from jaxpose.data.label_changes import changing_labels
from jaxpose.data.label_files import (
    files_of_views,
    find_folder,
    find_labels,
    moment_of_image,
    refuse_absent_project,
    view_of_video,
    without_view,
)
from jaxpose.data.labels import refuse_unique
from jaxpose.data.skeleton import flip_permutation, known_pairs
from jaxpose.errors import UserError, need
from jaxpose.files import is_regular, read_bytes
from jaxpose.formats.deeplabcut.project import CONFIG_FILE, ProjectConfig, read_config, spelled_as
from jaxpose.formats.deeplabcut.tables import IMAGES_FOLDER
from jaxpose.formats.project import (
    COCO,
    CSV,
    DEEPLABCUT,
    LIGHTNING_POSE,
    SLEAP,
    label_files,
    recognise,
    without_config_file,
)
from jaxpose.labelling.coco_file import CocoFile, read_coco_file
from jaxpose.labelling.label_file import LabelFile, first_image, new_label_file, read_label_file, read_label_header
from jaxpose.labelling.project_labels import MODULES, plain_header, refuse_other_labels
from jaxpose.labelling.sleap_file import SleapFile, read_sleap_file

# A network with context sees this many frames on either side of a labelled one; see `jaxpose.data.context`.
_CONTEXT_FRAMES = 2
# deeplabcut.check_labels writes drawn copies of images to such folders.
_DRAWN = "_labeled"
_PREFIX = "CollectedData_"

AnyLabelFile = LabelFile | CocoFile | SleapFile


@dataclasses.dataclass(frozen=True)
class LabelProject:
    """A project with one camera, or several that recorded the same moments.

    Attributes:
      path: the project: its folder, or its file (SLEAP, COCO).
      folder: the base folder of image names.
      kind: the tool, as in `jaxpose.formats.project`.
      files: its label files; with several cameras, one for each of `views`.
      new_header: header rows of the label file of a folder that has none (DeepLabCut); () if there is one file.
      scorer: the person in the names of DeepLabCut's files.
      keypoint_names: all keypoints, in order.
      individuals: the animals that every image has a place for, one or more; () if images get animals one by one, as
        in SLEAP and COCO.
      edges: pairs of keypoints that are drawn with a line between them.
      partners: for each keypoint, the index of the one on the other side, or its own.
      opened: the label file of a project that is a file, as it was read to find all this.
      crops_px: {image folder: (x, y, width, height) of the frames that its images may show}.
      views: names of the cameras; () with only one.
    """

    path: Path
    folder: Path
    kind: str
    files: tuple[Path, ...]
    new_header: tuple[tuple[str, ...], ...]
    scorer: str
    keypoint_names: tuple[str, ...]
    individuals: tuple[str, ...]
    edges: tuple[tuple[str, str], ...]
    partners: tuple[int, ...]
    crops_px: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    opened: CocoFile | SleapFile | None = None
    views: tuple[str, ...] = ()

    @property
    def is_deeplabcut(self) -> bool:
        """Whether each folder of images has a label file (.csv), and an HDF5 file with the same rows."""
        return self.kind == DEEPLABCUT

    def file_of(self, image: str) -> Path:
        """Returns the label file of an image; it may be absent."""
        if self.views:
            return self.files[self.views.index(self.view_of(image))]
        if not self.is_deeplabcut:
            return self.files[0]
        return (self.folder / image).parent / f"CollectedData_{self.scorer}.csv"

    def view_of(self, image: str) -> str:
        """Returns the camera of an image, "" if there is only one or the image belongs to none."""
        return view_of_video(PurePosixPath(image).parent.name, self.views)

    def moment_of(self, image: str) -> str:
        """Returns the name that the images of one moment share."""
        return moment_of_image(image, self.view_of(image))

    @property
    def is_one_file(self) -> bool:
        """Whether the project is a file, which names its images."""
        return self.kind in (SLEAP, COCO)

    @property
    def journal_file(self) -> Path:
        """The journal of a session; it belongs to the label file, because a folder may hold those of several people."""
        return self._own_file(".jsonl")

    @property
    def flags_file(self) -> Path:
        """The flags of images, of the same label file as the journal."""
        return self._own_file(".flags.json")

    def _own_file(self, ending: str) -> Path:
        name = f".{self.files[0].name}" if len(self.files) == 1 and not self.is_deeplabcut else ""
        return self.folder / f".jaxpose_label{name}{ending}"

    def image_folder(self, video: str) -> PurePosixPath:
        """Returns the folder of the images of a video in their names."""
        return PurePosixPath(self.files[0].name if self.is_one_file else IMAGES_FOLDER, video)

    def first_read(self, file: Path) -> AnyLabelFile:
        """Returns a label file, which is read again only if it has changed since the project was opened."""
        is_same = self.opened is not None and self.opened.original == read_bytes(file, most_bytes=None)
        return self.opened if self.opened and is_same else self.read(file)

    def read(self, file: Path) -> AnyLabelFile:
        """Reads a label file; raises as its reader."""
        if self.is_one_file:
            return read_sleap_file(file) if self.kind == SLEAP else read_coco_file(file)
        if not is_regular(file) and self.new_header:
            return new_label_file(file, self.new_header)
        found = read_label_file(self.folder, file, self.is_deeplabcut)
        for image in found.images if self.views else ():
            view = self.views[self.files.index(file)]
            if self.view_of(image) != view:
                raise UserError(
                    f"{file} has {image}, which is not an image of the view {view}; its folder must be "
                    f"labeled-data/<session>_{view}"
                )
        return found

    def images(self, labelled: Iterable[str]) -> tuple[list[str], int]:
        """Returns the images to label, in order, and how many context frames are left out.

        Args:
          labelled: the images with rows, which are always in the result.
        """
        if self.is_one_file:
            return list(labelled), 0
        rows_of: dict[PurePosixPath, set[str]] = {}
        for path in map(PurePosixPath, labelled):
            rows_of.setdefault(path.parent, set()).add(path.name)
        found, context, folders = set[str](), 0, set(rows_of)
        root = self.folder / IMAGES_FOLDER
        if root.is_dir():
            # DeepLabCut has images only in a folder for each video.
            below = [*[root] * (not self.is_deeplabcut), *(entry for entry in root.iterdir() if entry.is_dir())]
            folders |= {PurePosixPath(entry.relative_to(self.folder).as_posix()) for entry in below}
        for folder in folders:
            if self.is_deeplabcut and folder.name.endswith(_DRAWN) and not self._has_labels(folder):
                continue
            rows = rows_of.get(folder, set())
            if self.views and not rows and not self._is_of_view(folder.name):
                continue
            rowless = self.image_names(folder) - rows
            if rows and rowless and _are_context(rowless, rows):
                context, rowless = context + len(rowless), set[str]()
            before = "" if folder == PurePosixPath() else f"{folder}/"
            found.update(before + name for name in rows | rowless)
        return sorted(found, key=self._in_order), context

    def _is_of_view(self, folder: str) -> bool:
        """Returns whether a folder is called <session>_<view>."""
        view = view_of_video(folder, self.views)
        return bool(view and without_view(folder, view))

    def _in_order(self, image: str) -> tuple[list, list, int]:
        """Returns what images are sorted by: the views of a moment follow each other."""
        folder, _, name = self.moment_of(image).rpartition("/")
        view = self.views.index(self.view_of(image)) if self.views else 0
        return natural_key(folder), natural_key(name), view

    def _has_labels(self, folder: PurePosixPath) -> bool:
        return any(file.parent == self.folder / folder for file in self.files)

    def image_names(self, folder: PurePosixPath) -> set[str]:
        """Returns the names of the images in a folder of the project."""
        place = self.folder / folder
        if not place.is_dir():
            return set()
        with os.scandir(place) as entries:
            return {entry.name for entry in entries if entry.name.lower().endswith(IMAGE_SUFFIXES) and entry.is_file()}


def _are_context(rowless: set[str], rows: set[str]) -> bool:
    """Returns whether all images without a row are next to labelled ones: the context of these, not frames to label."""
    names = FrameNames([*rowless, *rows])
    numbers = {names.number(name) for name in rows}
    near = {number + step for number in numbers if number is not None for step in range(-2, _CONTEXT_FRAMES + 1)}
    return all(names.number(name) in near for name in rowless)


def open_project(given: str, labels: str, views: tuple[str, ...] = ()) -> LabelProject:
    """Finds the label files of a project; undoes an interrupted change of them.

    Args:
      given: the folder of the project, its config.yaml, or a file of SLEAP or COCO.
      labels: the label file of a Lightning Pose project; with several cameras, as `data.labels`.
      views: names of the cameras; () for one, or for those that the files show.

    Raises:
      UserError: the project does not exist, or a file cannot be understood.
      OSError: the folder is not writable.
    """
    refuse_absent_project(given)
    data = without_config_file(DataConfig(project=given, labels=labels, views=views))
    path = Path(data.project).expanduser()
    with changing_labels(path if path.is_dir() else path.parent):
        pass
    kind = recognise(data)
    if found_views := data.views or (_find_views(path) if kind == CSV else ()):
        return _open_views(dataclasses.replace(data, views=found_views))
    if kind == DEEPLABCUT:
        return _open_deeplabcut(find_folder(data.project))
    if kind == CSV:
        found = ", ".join(file.name for file in label_files(path))
        raise UserError(
            f"{path} has several label files, or one with another name; choose the one to write with --labels: {found}"
        )
    folder = find_folder(data.project) if kind == LIGHTNING_POSE else path.parent
    file = find_labels(folder, data.labels, "", "--labels") if kind == LIGHTNING_POSE else path
    _refuse_link(file)
    if kind == LIGHTNING_POSE:
        header = read_label_header(file)
        names, individuals = header.keypoint_names, tuple(header.columns)
        # Only DeepLabCut's config.yaml has edges.
        return LabelProject(folder, folder, kind, (file,), (), "", names, individuals, (), _partners(names))
    return _open_file(kind, file)


def _find_views(folder: Path) -> tuple[str, ...]:
    """Returns the cameras of the label files CollectedData_<view>.csv, () if a folder also has others.

    The first image of each file shows whether it is of a camera; one file at least has rows.
    """
    views, firsts = [], []
    for file in label_files(folder):
        view, first = file.stem.removeprefix(_PREFIX), first_image(file)
        if view == file.stem or (first and not view_of_video(PurePosixPath(first).parent.name, [view])):
            return ()
        views.append(view)
        firsts.append(first)
    return tuple(views) if len(views) > 1 and any(firsts) else ()


def _open_views(data: DataConfig) -> LabelProject:
    folder = find_folder(data.project)
    for view in data.views:
        # In any Unicode form, as in the names of folders.
        if sum(normalize("NFC", other) == normalize("NFC", view) for other in data.views) > 1:
            raise UserError(f"data.views has {view!r} more than once")
    if data.labels != DataConfig().labels and not files_of_views(data.labels) and (folder / data.labels).is_file():
        raise UserError(
            f"--labels is {data.labels}, the file of one camera, but {data.project} names the cameras "
            f"{', '.join(data.views)}: to label one, give the folder: jaxpose label {folder} --labels {data.labels}"
        )
    files = tuple(find_labels(folder, data.labels, view) for view in data.views)
    for file in files:
        _refuse_link(file)
    first, *others = [read_label_header(file) for file in files]
    for file, header in zip(files[1:], others, strict=True):
        if header.keypoint_names != first.keypoint_names or list(header.columns) != list(first.columns):
            raise UserError(
                f"{files[0]} and {file} have other keypoints or individuals; they must be the same in all views, in "
                "one order"
            )
    if len(first.columns) > 1:
        raise UserError(
            f"{files[0]} has several animals, with which jaxpose trains one camera at a time; label one camera: "
            f"jaxpose label {folder} --labels {files[0].name}"
        )
    names, individuals = first.keypoint_names, tuple(first.columns)
    kind, partners = LIGHTNING_POSE, _partners(names)
    return LabelProject(folder, folder, kind, files, (), "", names, individuals, (), partners, views=data.views)


def _refuse_link(file: Path) -> None:
    if file.is_symlink():
        raise UserError(f"{file} is a link, which saving would replace by a file: give the project of that file")


def _open_file(kind: str, file: Path) -> LabelProject:
    with changing_labels(file.parent):
        found = read_sleap_file(file) if kind == SLEAP else read_coco_file(file)
    if found.problems and not found.points:
        image, reason = next(iter(found.problems.items()))
        raise UserError(f"{file} cannot be labelled: {image}: {reason}")
    if isinstance(found, SleapFile) and found.absent and not found.images:
        raise UserError(f"{file} has no image to show: {next(iter(found.absent.values()))[1]}")
    names = found.keypoint_names
    skeleton = found.skeleton
    pairs = tuple(":".join(pair) for pair in skeleton.symmetries)
    partners = _partners(names, pairs)
    return LabelProject(file, file.parent, kind, (file,), (), "", names, (), skeleton.edges, partners, opened=found)


def _open_deeplabcut(folder: Path) -> LabelProject:
    need("deeplabcut", f"labelling {folder}, whose labels DeepLabCut reads from HDF5 files", *MODULES)
    config = read_config(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else ProjectConfig()
    refuse_unique(folder / CONFIG_FILE, config.unique)
    found = sorted(folder.glob(f"{IMAGES_FOLDER}/*/CollectedData_*.csv"), key=lambda file: natural_key(str(file)))
    scorers = list(dict.fromkeys(file.stem.removeprefix("CollectedData_") for file in found))
    if not config.scorer and len(scorers) != 1:
        raise UserError(f"{folder} has labels of {', '.join(scorers) or 'nobody'}, and no {CONFIG_FILE} with a scorer")
    scorer = config.scorer or scorers[0]
    files = tuple(file for file in found if file.stem == f"CollectedData_{scorer}")
    for file in folder.glob(f"{IMAGES_FOLDER}/*/CollectedData_{scorer}.h5"):
        if not file.with_suffix(".csv").is_file():
            raise UserError(
                f"{file} has no CSV file next to it; write that first, with pandas: "
                f"read_hdf({file.name!r}).to_csv({file.with_suffix('.csv').name!r})"
            )
    for file in files:
        refuse_other_labels(folder, file)
    headers = [read_label_header(file) for file in files]
    labelled = [name for header in headers for name in header.keypoint_names]
    names = tuple(dict.fromkeys(spelled_as(part, labelled) or part for part in config.bodyparts) or labelled)
    if not names:
        raise UserError(f"{folder} names no keypoint: neither a label file nor {CONFIG_FILE}")
    edges = known_pairs([[spelled_as(name, names) for name in edge] for edge in config.skeleton], names)
    animals = [animal for header in headers for animal in header.columns]
    known = [spelled_as(one, animals) or one for one in config.individuals] if len(config.individuals) > 1 else []
    individuals = tuple(dict.fromkeys([*known, *animals])) or ("",)
    # The only individual of a project has no name in a session, but its column has one.
    header = plain_header(scorer, names, 3, individuals if len(individuals) > 1 else config.individuals)
    return LabelProject(
        folder, folder, DEEPLABCUT, files, header, scorer, names, individuals, edges, _partners(names), config.crops_px
    )


def _partners(names: tuple[str, ...], pairs: tuple[str, ...] = ()) -> tuple[int, ...]:
    try:
        return flip_permutation(names, pairs)
    except UserError:
        return tuple(range(len(names)))
