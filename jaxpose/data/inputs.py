"""Lists, in natural order, the images and videos that a user asks to predict, and a project's videos."""

import contextlib
import dataclasses
import difflib
import glob
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from jaxpose.config import DataConfig, VideoConfig, project_folder
from jaxpose.data.cells import one_name, refuse_unprintable, spelling_note
from jaxpose.data.label_files import view_of_video, without_view
from jaxpose.errors import UserError
from jaxpose.files import NotRegularFile, is_regular
from jaxpose.text_file import read_unicode

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")
VIDEO_SUFFIXES = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg", ".wmv")
# Endings of the tables next to a prediction table.
TABLES_BESIDE = ("_temporal_norm", "_pca_singleview_error", "_pca_multiview_error", "_smoothed")
_KINDS = f"images ({' '.join(IMAGE_SUFFIXES)}) nor videos ({' '.join(VIDEO_SUFFIXES)})"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Existing files to predict. A place is a relative path in the result tree.

    Attributes:
      videos: {place without suffix: video}.
      images: {place of a folder: its images}.
    """

    videos: dict[Path, Path]
    images: dict[Path, list[Path]]


def find_inputs(names: Sequence[str]) -> Inputs:
    """Returns the named images and videos; those of a folder in natural order.

    Places mirror the tree below each named folder (for a file, its own folder; for a glob, the folder before the first
    wildcard). If two inputs would have the same place, all places mirror the tree below their common folder.

    Args:
      names: files, folders (searched to any depth, except hidden folders and links), globs (** matches any depth), or
        @FILE, a list of these with one per line.

    Raises:
      UserError: a name does not exist, has an unknown type or is repeated; a file is a pipe, a device or a symbolic
        link loop, or has a line break in its name; a folder, list or glob has neither images nor videos; or two videos
        or folders of images would write the same table, or tables that are one on some file system.
    """
    videos: dict[Path, Path] = {}
    images: dict[Path, list[Path]] = {}
    # {absolute path of a video or image folder: the folder whose tree places mirror}
    video_bases: dict[Path, Path] = {}
    image_bases: dict[Path, Path] = {}
    seen: set[Path] = set()
    for name in _listed(names):
        for file, base in _files_of(name):
            real, path = file.resolve(), _absolute(file)
            if real in seen:
                raise UserError(f"{file} is given twice; name it once, by itself or by its folder")
            seen.add(real)
            try:
                # The path becomes a cell in tables and in the index.
                refuse_unprintable(str(path))
            except UserError as error:
                raise UserError(f"a file to predict cannot be used: {error}; rename it") from None
            if _kind(file) == "video":
                videos[path], video_bases[path] = file, base
            else:
                images.setdefault(path.parent, []).append(file)
                image_bases.setdefault(path.parent, base)
    return Inputs(
        {place: videos[path] for place, path in _places(video_bases, of_videos=True).items()},
        {place: images[path] for place, path in _places(image_bases, of_videos=False).items()},
    )


def natural_key(name: str) -> list[tuple[int, str]]:
    """Returns a sort key that puts img2 before img10."""
    # Every second part is digits. str.isdigit would accept a superscript two, which int refuses.
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts)]


def _listed(names: Sequence[str]) -> Iterator[str]:
    """Yields the names, with @FILE replaced by its lines, except empty lines and comments (#)."""
    for name in names:
        if not name.startswith("@"):
            yield name
            continue
        file = Path(name[1:]).expanduser()
        try:
            # splitlines would also split at characters that names may contain.
            lines = [line.strip() for line in read_unicode(file, "list of images and videos").split("\n")]
        except (OSError, NotRegularFile) as error:
            raise UserError(f"the list {file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        lines = [line for line in lines if line and not line.startswith("#")]
        if not lines:
            raise UserError(f"the list {file} is empty")
        yield from lines


def _files_of(name: str) -> list[tuple[Path, Path]]:
    """Returns the images and videos of a name, each with the folder whose tree places mirror."""
    path = Path(name).expanduser()
    if is_regular(path):
        if not _kind(path):
            raise UserError(f"{path} is neither an image ({' '.join(IMAGE_SUFFIXES)}) nor a video "
                             f"({' '.join(VIDEO_SUFFIXES)})")  # fmt: skip
        return [(path, _absolute(path).parent)]
    if path.is_dir():
        files = _files_below(path)
        if not files:
            raise UserError(f"the folder {path} has neither {_KINDS}")
        return [(file, _absolute(path)) for file in files]
    if glob.has_magic(name):
        return _matches(path)
    entries = [str(entry) for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(str(path), entries, 1)
    raise UserError(f"{path} does not exist" + (f"; did you mean {near[0]}?" if near else ""))


def _files_below(folder: Path) -> list[Path]:
    found = []
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if not name.startswith(".")]
        found += [Path(place, name) for name in names if not name.startswith(".") and _kind(Path(name))]
    return sorted((file for file in found if is_regular(file)), key=lambda file: _in_order(file.relative_to(folder)))


def _matches(pattern: Path) -> list[tuple[Path, Path]]:
    parts = pattern.parts
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    base = _absolute(Path(*parts[:fixed]))
    found: dict[Path, None] = {}
    for match in sorted(map(Path, _expand(pattern)), key=_in_order):
        files = _files_below(match) if match.is_dir() else [match] if _kind(match) and is_regular(match) else []
        found |= dict.fromkeys(files)
    if not found:
        raise UserError(f"{pattern} matches neither {_KINDS}")
    return [(file, base) for file in found]


def _expand(pattern: Path) -> list[str]:
    """Returns the matches of a glob; ** follows links, but not loops, in which glob.glob would never end."""
    if "**" not in pattern.parts:
        return glob.glob(str(pattern))
    at = pattern.parts.index("**")
    matches = []
    for base in glob.glob(str(Path(*pattern.parts[:at]))):
        for folder in _folders(base, ()):
            matches += _expand(Path(glob.escape(folder), *pattern.parts[at + 1 :]))
    return matches


def _folders(folder: str, above: tuple[str, ...]) -> Iterator[str]:
    """Yields a folder and its subfolders, except hidden ones and links back to `above`."""
    real = os.path.realpath(folder)
    if real in above or not os.path.isdir(folder):
        return
    yield folder
    with contextlib.suppress(PermissionError):
        for name in sorted(os.listdir(folder)):
            if not name.startswith("."):
                yield from _folders(os.path.join(folder, name), (*above, real))


def _places(bases: dict[Path, Path], of_videos: bool) -> dict[Path, Path]:
    """Returns {place: path}: relative to each base, or to the common folder if two places would be the same."""

    def place(path: Path, base: Path) -> Path:
        # Images are placed by folder, so the named folder keeps its name.
        return path.relative_to(base).with_name(path.stem) if of_videos else base.name / path.relative_to(base)

    if len({one_name(str(place(path, base))) for path, base in bases.items()}) < len(bases):
        common = Path(os.path.commonpath(list(bases.values())))
        bases = dict.fromkeys(bases, common)
    placed: dict[str, tuple[Path, Path]] = {}
    for path, base in bases.items():
        at = place(path, base)
        other_at, other = placed.setdefault(one_name(str(at)), (at, path))
        if other != path:
            raise UserError(_both_write(other, path, _table(other_at, of_videos), _table(at, of_videos)))
    for at, path in placed.values() if of_videos else ():
        for more in TABLES_BESIDE:
            if found := placed.get(one_name(f"{at}{more}")):
                raise UserError(_both_write(path, found[1], f"{at}{more}.csv", f"{found[0]}.csv"))
    return dict(placed.values())


def _table(place: Path, of_videos: bool) -> str:
    return f"{place}.csv" if of_videos else f"{place}/predictions.csv"


def _both_write(one: Path, other: Path, table: str, other_table: str) -> str:
    advice = "give one of them another name, or predict them with different --out"
    if table != other_table:
        note = spelling_note(table, other_table)
        return f"{one} and {other} would write tables that are the same file on some systems{note}; {advice}"
    return f"{one} and {other} would both write {table}; {advice}"


def _kind(file: Path) -> str:
    suffix = file.suffix.lower()
    return "image" if suffix in IMAGE_SUFFIXES else "video" if suffix in VIDEO_SUFFIXES else ""


def _in_order(path: Path) -> tuple[list, str]:
    return [natural_key(part) for part in path.parts], str(path)


def _absolute(path: Path) -> Path:
    # Links are not resolved: results mirror the tree that the user sees.
    return Path(os.path.abspath(path))


# The videos of a project: one per session or, with several cameras, one per session and view.


def sessions(data: DataConfig, video: VideoConfig) -> list[tuple[Path, ...]]:
    """Returns the videos of each session: one per view in the order of `data.views`; one without views.

    Sessions are in natural order (2 before 10). A project without videos has none.

    Raises:
      UserError: as `video_files`; or, with several cameras, a video belongs to no view or a session lacks a video.
    """
    files = video_files(data, video)
    if not data.views:
        return [(file,) for file in files.values()]
    found: dict[str, dict[str, Path]] = {}
    for stem, file in files.items():
        view = view_of_video(stem, data.views)
        if not view:
            raise UserError(
                f"{file} belongs to none of the views {', '.join(data.views)}; it must be called "
                "<session>_<view>, or lie "
                "in another folder"
            )
        found.setdefault(without_view(stem, view), {})[view] = file
    for session, of_view in found.items():
        absent = [view for view in data.views if view not in of_view]
        if absent:
            there = next(iter(of_view.values()))
            raise UserError(
                f"the session {session} has no video of the view {', '.join(absent)}: {session}_{absent[0]} must be "
                f"next to {there}"
            )
    return [tuple(found[session][view] for view in data.views) for session in found]


def clip_sessions(
    data: DataConfig, video: VideoConfig, why: str = "a loss on unlabelled video is on"
) -> list[tuple[Path, ...]]:
    """Returns `sessions` for training on clips.

    Args:
      data: the project.
      video: the folder of its videos.
      why: why videos are needed, for the message.

    Raises:
      UserError: as `sessions`, or there are none.
    """
    found = sessions(data, video)
    if not found:
        folder = _folder(data, video)
        lacks = f"{folder} has no file that ends in {', '.join(VIDEO_SUFFIXES)}"
        raise UserError(
            f"{why}, but there are no videos: "
            f"{lacks if folder.is_dir() else f'there is no folder {folder}'}; put videos there, or "
            "name their folder in video.folder"
        )
    return found


def named_videos(data: DataConfig, video: VideoConfig, named: Mapping[str, Path]) -> VideoConfig:
    """Returns the options with the videos that the label file names, if the project has no other videos.

    Args:
      data: the project.
      video: its videos; a given folder or given files are not replaced.
      named: {name: file} of the existing videos that the label file names.

    Raises:
      UserError: as `video_files`.
    """
    default = VideoConfig()
    if (video.folder, video.files) != (default.folder, default.files) or video_files(data, video):
        return video
    folder = Path(os.path.realpath(project_folder(data.project)))
    files = [file for file in dict.fromkeys(named.values()) if file.suffix.lower() in VIDEO_SUFFIXES]
    places = [file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file) for file in files]
    return dataclasses.replace(video, files=tuple(sorted(places, key=natural_key)))


def video_files(data: DataConfig, video: VideoConfig) -> dict[str, Path]:
    """Returns {name: file} of the project's videos, in natural order: `video.files`, or those in `video.folder`.

    The name is the file name without suffix; if `video.files` has two of one name, their folders precede it.

    Raises:
      UserError: `video.folder` is not the default and does not exist, two videos in it differ only in suffix, the names
        of two different videos only in case or Unicode form, a file of `video.files` does not exist, or a video is a
        FIFO, a device or a symbolic link loop, or has a line break in its name.
    """
    if video.files:
        return _given_files(project_folder(data.project), video.files)
    folder = _folder(data, video)
    if not folder.is_dir():
        if video.folder == VideoConfig().folder:
            return {}
        there = [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] if folder.parent.is_dir() else []
        near = difflib.get_close_matches(folder.name, there, 1)
        hint = f"; did you mean {folder.with_name(near[0])}?" if near else ""
        raise UserError(f"video.folder is {video.folder!r}, but there is no folder {folder}{hint}")
    files: dict[str, Path] = {}
    seen: dict[str, tuple[str, Path]] = {}
    for file in sorted(folder.iterdir(), key=lambda file: (natural_key(file.name), file.name)):
        if file.suffix.lower() not in VIDEO_SUFFIXES or file.name.startswith(".") or not is_regular(file):
            continue
        _refuse_name(file, file.name)
        _refuse_other_spelling(file.stem, file, seen)
        if file.stem in files:
            raise UserError(f"{files[file.stem]} and {file} differ only in their suffix; keep one of them")
        files[file.stem] = file
    return files


def _refuse_other_spelling(name: str, file: Path, seen: dict[str, tuple[str, Path]]) -> None:
    """Raises UserError if another spelling of a video's name was seen: their tables would be one on some systems.

    A link to the same video is another name of it.
    """
    other_name, other = seen.setdefault(one_name(name), (name, file))
    if other_name != name and os.path.realpath(other) != os.path.realpath(file):
        # The name may begin with many folders.
        parts = zip(other.with_suffix("").parts, file.with_suffix("").parts, strict=False)
        differ = ((a, b) for a, b in parts if a != b and one_name(a) == one_name(b))
        note = spelling_note(*next(differ, (other_name, name)))
        raise UserError(f"{other} and {file} have names that are the same on some systems{note}; rename one of them")


def _given_files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    files = [folder / Path(name).expanduser() for name in names]
    for file in files:
        if not is_regular(file):
            raise UserError(f"video.files has {file}, which does not exist; put it there, or leave it out")
        _refuse_name(file, str(file))
    found, real = [file.stem for file in files], [os.path.realpath(file) for file in files]
    for depth in range(1, max(len(file.parts) for file in files)):
        counts, spelled = Counter(found), defaultdict[str, set[str]](set)
        for name, place in zip(found, real, strict=True):
            spelled[one_name(name)].add(place)
        found = [
            "_".join([*file.parts[-depth - 1 : -1], file.stem])
            if counts[name] > 1 or len(spelled[one_name(name)]) > 1
            else name
            for name, file in zip(found, files, strict=True)
        ]
    first: dict[str, Path] = {}
    seen: dict[str, tuple[str, Path]] = {}
    for name, file in zip(found, files, strict=True):
        if name in first:
            both = (
                f"{file} twice" if file == first[name] else f"{first[name]} and {file}, which would have the same name"
            )
            raise UserError(f"video.files has {both}; keep one of them")
        first[name] = file
        _refuse_other_spelling(name, file, seen)
    return first


def _refuse_name(file: Path, name: str) -> None:
    try:
        refuse_unprintable(name)
    except UserError as error:
        raise UserError(f"a video in {file.parent} cannot be used: {error}; rename it") from None


def _folder(data: DataConfig, video: VideoConfig) -> Path:
    return project_folder(data.project) / Path(video.folder).expanduser()
