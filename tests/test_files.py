"""Files that a later command reads again: whatever happened to them, they are read as they were written or refused."""

import dataclasses
import io
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from jaxpose import config as c
from jaxpose.checksums import DamagedFile, parse_csv, read_csv, read_json, signed_csv, write_csv, write_json
from jaxpose.data.split import read_split
from jaxpose.files import NotRegularFile
from jaxpose.pose.pca import fit_multiview, fit_singleview, to_json
from jaxpose.prediction.index import Claims, PredictionIndex
from jaxpose.remote.watched import Watched
from jaxpose.run.folder import open_run
from jaxpose.run.identity import differences, read_config, write_config
from jaxpose.run.pca import load_subspaces, save_subspaces
from jaxpose.run.status import read_summary, refuse_stuck_requeue
from tests.index_row import row
from tests.logged import logged

NAMES = ("nose", "neck", "tail")
SPLIT = "path,bytes,sha256,set\n" + "".join(
    f"labeled-data/a/img{n}.png,{90 + n},{n:064x},{'train' if n % 2 else 'test'}\n" for n in range(9)
)
FILES = ("config.json", "split.csv", "pca.json", "index.csv", "finished.json")


def config_of(run: Path) -> c.Config:
    data = c.DataConfig(project="synthetic", keypoint_names=NAMES, input_height_px=64, input_width_px=64)
    return c.resolve(c.Config(out=str(run), data=data))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each of FILES, as a run has them."""
    folder = tmp_path_factory.mktemp("files") / "run"
    with open_run(config_of(folder), SPLIT) as opened:
        opened.finish({"steps": 30, "sets": {"test": {"mean_px_error": 3.25, "p95": float("nan")}}})
    labels = np.random.default_rng(0).normal(30, 9, (40, 3, 2))
    save_subspaces(
        folder,
        {
            "pca_singleview": fit_singleview(labels, (0, 1, 2), c.PcaSingleviewConfig(components=2)),
            "pca_multiview": fit_multiview(labels, ((0,), (2,)), c.PcaMultiviewConfig(components=2)),
        },
    )
    with Claims(folder, 30) as claims:
        index = PredictionIndex(folder, claims)
        for number in range(5):
            reason = 'a "b"\nc' if number == 4 else ""
            index.note(row(table=f"video_preds/{number}.csv", path=f"/in/ü {number},x.mp4", reason=reason))
    return folder


def read(run: Path, name: str) -> Any:
    """What the verbs understand of a file."""
    if name == "config.json":
        return dataclasses.asdict(read_config(run / name))
    if name == "split.csv":
        # A resume, evaluate and data.split=RUN, and watch.
        watched = Watched(str(run), silent_s=60)
        assert watched.missing() == ""
        progress = watched.look()
        return differences(run, config_of(run), SPLIT), read_split(run / name, is_of_run=True), progress.total_steps
    if name == "pca.json":
        return {key: to_json(pca) for key, pca in load_subspaces(run, config_of(run)).items()}
    if name == "index.csv":
        with Claims(run, 30) as claims:
            return PredictionIndex(run, claims).rows()
    return read_summary(run)


@pytest.mark.parametrize("name", FILES)
def test_no_flipped_bit_is_read_as_something_else(run: Path, name: str) -> None:
    file, bits = run / name, random.Random(name)
    written, meant = file.read_bytes(), read(run, name)
    refused = 0
    try:
        for _ in range(60):
            place = bits.randrange(8 * len(written))
            flipped = bytearray(written)
            flipped[place // 8] ^= 1 << place % 8
            file.write_bytes(flipped)
            try:
                assert read(run, name) == meant, (place, bytes(flipped))
            except DamagedFile as error:
                assert str(file) in str(error) and len(str(error).splitlines()) == 1
                refused += 1
    finally:
        file.write_bytes(written)
    # Most of what pretty JSON has is space between its values.
    assert refused > 20


@pytest.mark.parametrize("name", FILES)
def test_another_signed_file_under_its_name_is_refused(run: Path, name: str) -> None:
    file, others = run / name, [run / other for other in FILES if other != name]
    written, contents = file.read_bytes(), [other.read_bytes() for other in others if other.suffix == file.suffix]
    try:
        for content in contents:
            file.write_bytes(content)
            with pytest.raises(DamagedFile) as told:
                read(run, name)
            assert str(told.value).startswith(str(file)), told.value
    finally:
        file.write_bytes(written)


def test_a_count_of_restarts_with_another_content_is_begun_again(run: Path, tmp_path: Path) -> None:
    slurm = {"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"}
    for name in ("config.json", "pca.json", "finished.json"):
        shutil.copy(run / name, tmp_path / "restarts.json")
        with logged("jaxpose.run.status") as log:
            refuse_stuck_requeue(tmp_path, 0, slurm)
        assert f"{tmp_path}/restarts.json is a different jaxpose file under this name: it has no job" in log.lines[0]
        assert read_json(tmp_path / "restarts.json")["turns"] == 1


@pytest.mark.parametrize("name", ["split.csv", "index.csv"])
def test_rows_that_are_lost_added_moved_or_taken_from_another_file_are_refused(run: Path, name: str) -> None:
    written = (run / name).read_bytes()
    head, first, second, *rows = written.splitlines(keepends=True)
    other = signed_csv("path\nx\n").encode().splitlines(keepends=True)
    for changed in (
        [head],
        [head, first, second, *rows[:-1]],
        [head, second, *rows],
        [head, first, first, second, *rows],
        [head, second, first, *rows],
        [head.replace(b",", b";", 1), first, second, *rows],
        [*other, first],
        [head.replace(b",check", b""), first, second, *rows],
        [],
    ):
        with pytest.raises(DamagedFile, match=name):
            parse_csv(b"".join(changed), name)
    # As a spreadsheet program saves it: the same cells.
    saved = b"\xef\xbb\xbf" + signed_csv(SPLIT).encode().replace(b"\n", b"\r\n").replace(b"train", b'"train"')
    assert parse_csv(saved, name) == parse_csv(signed_csv(SPLIT).encode(), name)


def test_tables_are_read_by_pandas_without_options(run: Path) -> None:
    table = pd.read_csv(run / "split.csv")
    assert list(table.columns) == ["path", "bytes", "sha256", "set", "check"]
    assert table["bytes"].tolist() == list(range(90, 99))
    text = "n\n" + "".join(f"{n}\n" for n in range(3000))
    # Digits alone would make a column of numbers of some, and of infinities.
    assert not pd.to_numeric(pd.read_csv(io.StringIO(signed_csv(text)))["check"], errors="coerce").notna().any()
    with pytest.raises(ValueError, match="a table without rows has no checksum"):
        signed_csv("path,set\n")


def test_a_value_comes_back_as_it_was(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, 1e-300, "ü\ud800", None, True], "b": {"c": (1, 2)}, "d": float("nan")}
    write_json(tmp_path / "x.json", content)
    assert read_json(tmp_path / "x.json") == {"a": content["a"], "b": {"c": [1, 2]}, "d": None}
    text = 'a,b\n"x, ""y""\n",\n,\n'
    write_csv(tmp_path / "x.csv", text)
    assert read_csv(tmp_path / "x.csv") == [{"a": 'x, "y"\n', "b": ""}, {"a": "", "b": ""}]
    assert {file.name for file in tmp_path.iterdir()} == {"x.json", "x.csv"}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "cannot be read as JSON"),
        (b"{}", "has no checksum (key 'sha256'): another program or an earlier version of jaxpose wrote it"),
        (b'{"sha256": []}', "was damaged or changed by hand"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a": ' * 900 + b"1" + b"}" * 900, "has no checksum"),
        (b'{"a": ' + b"9" * 9999 + b"}", "cannot be read as JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": 1e999}', "has no checksum"),
        (b'{"a": "\xff"}', "cannot be read as JSON"),
    ],
)  # fmt: skip
def test_what_is_not_jaxposes_is_refused_in_a_line(
    run: Path, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(DamagedFile) as told:
        read_json(file, "do this") if name.endswith(".json") else read_csv(file, "do this")
    assert str(told.value).startswith(f"{file} ") and str(told.value).endswith("; do this")
    assert (reason in str(told.value) or name.endswith(".csv")) and len(str(told.value).splitlines()) == 1


def huge(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate(2**40)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "is a pipe or device, not a file"),
        (Path.mkdir, "is a folder, not a file"),
        (lambda file: file.symlink_to("/dev/zero"), "is a pipe or device, not a file"),
        (huge, "has 1,099,511,627,776 bytes; it must have at most"),
    ],
)
@pytest.mark.parametrize("name", FILES)
def test_what_is_not_a_file_is_refused_at_once(
    run: Path, tmp_path: Path, name: str, make: Callable[[Path], object], reason: str
) -> None:
    for other in FILES:
        (tmp_path / other).write_bytes((run / other).read_bytes())
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises((DamagedFile, NotRegularFile), match=reason) as told:
        read(tmp_path, name)
    assert f"{tmp_path / name}" in str(told.value)


def changed(values: dict, path: str, value: Any) -> dict:
    *folders, last = path.split(".")
    table = values
    for folder in folders:
        table = table[int(folder)] if isinstance(table, list) else table[folder]
    table[int(last) if isinstance(table, list) else last] = value
    return values


NONSENSE = [
    ("model", 3, "config.model must be a table of options, not int"),
    ("model.width", "64", "model.width is '64'; it must be a whole number"),
    ("model.width", 10**9, "model.width is 1000000000; it must be at most 1024"),
    ("model.width", -(10**400), "model.width is -1"),
    ("optim.lr", 10**400, "optim.lr is 1000"),
    ("model.backbone", "resnet", "model.backbone is 'resnet'; it must be one of"),
    ("data.keypoint_names", "nose", "data.keypoint_names is 'nose'"),
    ("data.keypoint_names", [["nose"]], "data.keypoint_names is"),
    ("data.keypoint_names", ["nose", "nose"], "data.keypoint_names has 'nose' more than once"),
    ("data.input_height_px", 33, "data.input_height_px is 33"),
    ("train", {"stepz": 3}, "config.train has no option 'stepz'"),
    ("out", None, "out is None; it must be a text"),
]
READ_ALL = """
import sys
from pathlib import Path
from jaxpose.run.identity import read_config
for file in sys.argv[1:]:
    try:
        print(read_config(Path(file)))
    except ValueError as error:
        print(type(error).__name__, error)
"""


def test_a_config_that_makes_no_sense_is_refused_although_its_checksum_is_right(run: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(len(NONSENSE))]
    for file, (path, value, _) in zip(files, NONSENSE, strict=True):
        write_json(file, changed(read_json(run / "config.json"), path, value))
    # A process of its own: the tests' check of types would find some of them first.
    ended = subprocess.run([sys.executable, "-c", READ_ALL, *files], capture_output=True, text=True, check=True)
    told = ended.stdout.splitlines()
    assert len(told) == len(NONSENSE)
    for file, line, (_, _, reason) in zip(files, told, NONSENSE, strict=True):
        assert line.startswith(f"DamagedFile {file} is not the config of a run ({reason}"), line
        assert line.endswith("another version of jaxpose wrote it: use that version, or another run folder"), line


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("pca_singleview", {}, "a PCA must be a table of columns, centering"),
        ("pca_singleview.columns", [], "columns must be lists of keypoints"),
        ("pca_singleview.columns", [[0, 1], [2]], "columns must be lists of keypoints"),
        ("pca_singleview.columns.0.1", True, "columns must be lists of keypoints"),
        ("pca_singleview.columns.0.1", -1, "columns must be lists of keypoints"),
        ("pca_singleview.columns.0.1", 3, "pca_singleview: a pose has keypoint 3 (counted from 0), and there are 3"),
        ("pca_singleview.centering", "mode", "centering is 'mode'; it must be none, mean or median"),
        ("pca_singleview.mean_px", [1.0], "mean_px must hold 6 finite numbers"),
        ("pca_singleview.mean_px.0", "1.0", "mean_px must hold 6 finite numbers"),
        ("pca_singleview.mean_px.0", 10**400, "mean_px must hold 6 finite numbers"),
        ("pca_singleview.components", [], "components must be a list of lists of 6 numbers"),
        ("pca_singleview.components.1", 4, "components must hold 6 finite numbers in each row"),
        ("pca_singleview.explained_variance", None, "explained_variance must hold 6 finite numbers"),
        ("pca_singleview.epsilon_px", -1, "epsilon_px is -1; it must be a number of at least 0"),
        ("pca_threeview", {}, "'pca_threeview' is not one of pca_singleview, pca_multiview"),
    ],
)
def test_pcas_that_make_no_sense_are_refused_although_their_checksum_is_right(
    run: Path, tmp_path: Path, path: str, value: Any, reason: str
) -> None:
    file = tmp_path / "pca.json"
    write_json(file, changed(read_json(run / "pca.json"), path, value))
    with pytest.raises(DamagedFile) as told:
        load_subspaces(tmp_path, config_of(run))
    assert f"{file} does not hold the PCAs of this run ({reason}" in str(told.value), told.value


def test_a_config_is_read_where_its_copy_is_out_of_reach(run: Path, tmp_path: Path) -> None:
    config = read_config(run / "config.json")
    config.log.remote_url = "no-such-store://bucket/runs"
    write_config(tmp_path / "config.json", config)
    assert read_config(tmp_path / "config.json") == config
    with pytest.raises(ValueError, match="fsspec does not know this protocol"):
        c.validate(config)


def test_a_users_list_of_sets_needs_no_checksums_and_a_runs_own_does(tmp_path: Path) -> None:
    (tmp_path / "split.csv").write_text("path,set\na.png,train\n")
    assert read_split(tmp_path / "split.csv").sets == {"a.png": "train"}
    with pytest.raises(DamagedFile, match="split.csv has no checksums .last column 'check'.: .* earlier version"):
        read_split(tmp_path / "split.csv", is_of_run=True)
    write_csv(tmp_path / "mine.csv", "path,set\na.png,train\nb.png,test\n")
    text = (tmp_path / "mine.csv").read_text()
    (tmp_path / "mine.csv").write_text(text.replace("b.png,test", "b.png,train"))
    with pytest.raises(DamagedFile, match="mine.csv:3: the row was damaged, changed by hand, added or moved"):
        read_split(tmp_path / "mine.csv")


def test_the_checksum_is_that_of_the_content_alone(run: Path) -> None:
    """What another program does that only lays the text out anew is allowed."""
    content = json.loads((run / "config.json").read_text())
    (run / "again.json").write_text(json.dumps(content))
    assert read_config(run / "again.json") == read_config(run / "config.json")
