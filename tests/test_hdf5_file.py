"""An HDF5 file may name other files, whose values HDF5 then reads: no reader follows such names."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jaxpose import config as c
from jaxpose.cameras.calibration_files import read_cameras, write_cameras
from jaxpose.errors import UserError
from jaxpose.formats.project import prepare, read_project
from jaxpose.formats.sleap_files import read_analysis
from tests.cameras.test_calibration_files import RIG
from tests.formats.other_projects import deeplabcut_project
from tests.formats.test_sleap import make_labels, save


def as_link(opened: Any, name: str, other: Path) -> None:
    del opened[name]
    opened[name] = h5py.ExternalLink(str(other), name)


def as_storage(opened: Any, name: str, other: Path) -> None:
    values = opened[name][...]
    other.write_bytes(values.tobytes())
    del opened[name]
    opened.create_dataset(name, values.shape, values.dtype, external=[(str(other), 0, values.nbytes)])


def as_virtual(opened: Any, name: str, other: Path) -> None:
    values = opened[name][...]
    layout = h5py.VirtualLayout(values.shape, values.dtype)
    layout[...] = h5py.VirtualSource(str(other), name, values.shape)
    del opened[name]
    opened.create_virtual_dataset(name, layout)


def slp(folder: Path) -> tuple[Path, str, Callable[[], Any]]:
    file = save(make_labels(folder), folder / "labels.slp")
    return file, "points", lambda: read_project(c.DataConfig(project=str(file)))


def cameras(folder: Path) -> tuple[Path, str, Callable[[], Any]]:
    folder.mkdir()
    write_cameras(folder / "rig.slp", "sleap", RIG)
    return folder / "rig.slp", "sessions_json", lambda: read_cameras(folder / "rig.slp")


def analysis(folder: Path) -> tuple[Path, str, Callable[[], Any]]:
    folder.mkdir()
    file = folder / "day.analysis.h5"
    with h5py.File(file, "w") as opened:
        opened["tracks"], opened["point_scores"] = np.ones((1, 2, 3, 4)), np.ones((1, 3, 4))
        opened["node_names"], opened["track_names"] = [b"a", b"b", b"c"], [b"one"]
    return file, "tracks", lambda: read_analysis(file)


def deeplabcut(folder: Path) -> tuple[Path, str, Callable[[], Any]]:
    deeplabcut_project(folder, "h5")
    file = folder / "labeled-data" / "day1" / "CollectedData_me.h5"
    return file, "df_with_missing/block0_values", lambda: read_project(c.DataConfig(project=str(folder)))


@pytest.mark.parametrize("store", [as_link, as_storage, as_virtual])
@pytest.mark.parametrize("make", [slp, cameras, analysis, deeplabcut])
def test_values_in_another_file_are_refused_with_its_name(
    tmp_path: Path,
    make: Callable[[Path], tuple[Path, str, Callable[[], Any]]],
    store: Callable[[Any, str, Path], None],
) -> None:
    file, name, read = make(tmp_path / "made")
    read()
    secret = tmp_path / "secret.h5"
    secret.write_bytes(file.read_bytes())
    with h5py.File(file, "r+") as opened:
        values: Any = opened[name]
        if values.dtype.hasobject and store is not as_link:
            # HDF5 keeps no texts of any length outside.
            opened["more"], name = np.arange(3), "more"
        store(opened, name, secret)
    with pytest.raises(UserError) as refused:
        read()
    assert str(file) in str(refused.value) and f"is stored in another file, {str(secret)!r}" in str(refused.value)


@pytest.mark.parametrize("make", [slp, cameras, analysis, deeplabcut])
def test_a_dataset_that_announces_more_than_the_file_can_hold_is_refused(
    tmp_path: Path, make: Callable[[Path], tuple[Path, str, Callable[[], Any]]]
) -> None:
    file, name, read = make(tmp_path / "made")
    with h5py.File(file, "r+") as opened:
        kind = opened[name].dtype
        del opened[name]
        opened.create_dataset(name, (2**33,), kind, chunks=(1,))
    with pytest.raises(
        UserError, match=rf"{file.name}.* declares 8589934592 values .*; a table of this kind may have at most 2 GiB"
    ):
        read()


def test_chunks_that_were_never_written_are_read(tmp_path: Path) -> None:
    file, _, read = analysis(tmp_path / "made")
    with h5py.File(file, "r+") as opened:
        for name, shape in (("tracks", (1, 2, 3, 1_500_000)), ("point_scores", (1, 3, 1_500_000))):
            del opened[name]
            opened.create_dataset(name, shape, np.float64, chunks=(*shape[:-1], 1000), fillvalue=np.nan)
    assert file.stat().st_size * 1032 < 1_500_000 * 6 * 8
    read()


def test_axes_that_are_nested_deeply_are_refused(tmp_path: Path) -> None:
    file, _, read = analysis(tmp_path / "made")
    with h5py.File(file, "r+") as opened:
        opened["tracks"].attrs["dims"] = "[" * 20_000
    with pytest.raises(UserError, match="day.analysis.h5 is damaged .maximum recursion"):
        read()


def test_a_file_behind_a_block_of_the_user_is_no_way_round(tmp_path: Path) -> None:
    secret, images = tmp_path / "secret.h5", tmp_path / "images.h5"
    with h5py.File(secret, "w") as opened:
        opened["frames"] = np.zeros((40, 48, 64, 3), np.uint8)
    with h5py.File(images, "w", userblock_size=512) as opened:
        opened["frames"] = np.zeros((40, 48, 64, 3), np.uint8)
        as_virtual(opened, "frames", secret)
    labels = make_labels(tmp_path / "made")
    for video in labels.videos:
        video.replace_filename(str(images), open=False)
        video.backend_metadata = {"type": "HDF5Video", "dataset": "frames", "filename": str(images)}
    file = save(labels, tmp_path / "labels.slp")
    with pytest.raises(UserError, match="is stored in another file"):
        prepare(read_project(c.DataConfig(project=str(file))))


def test_a_damaged_file_is_the_users_mistake(tmp_path: Path) -> None:
    file, _, _ = analysis(tmp_path / "made")
    content, random = file.read_bytes(), np.random.default_rng(0)
    endings = set()
    for place in random.integers(0, len(content), 60).tolist():
        file.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            read_analysis(file)
        except UserError:
            endings.add("refused")
        else:
            endings.add("read")
    assert endings == {"refused", "read"}
