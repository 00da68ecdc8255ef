"""A damaged file of a run is refused by every verb that reads it: a line that names the file, exit code 2."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jaxpose import config as c
from jaxpose import evaluate, predict, watch
from jaxpose.checksums import read_json, write_json
from jaxpose.pose.pca import fit_singleview
from jaxpose.run.identity import read_config, write_config
from jaxpose.run.pca import save_subspaces
from tests.small_run import call

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def whole(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The finished run with a PCA and an index; its length is given in epochs, so that it depends on split.csv."""
    run = Path(shutil.copytree(trained_run, tmp_path_factory.mktemp("damaged") / "run"))
    labels = np.random.default_rng(2).normal(32, 9, (40, 7, 2))
    save_subspaces(run, {"pca_singleview": fit_singleview(labels, range(7), c.PcaSingleviewConfig(components=4))})
    config = read_config(run / "config.json")
    config.train.steps, config.train.epochs = 0, 40
    write_config(run / "config.json", config)
    assert predict.main(["--run", str(run), str(video_of(trained_run)), "--devices", "1"]) == 0
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def video_of(trained_run: Path) -> Path:
    return sorted((trained_run.parent / "project" / "videos").iterdir())[0]


@pytest.fixture
def verbs(trained_run: Path, whole: Path, run: Path, tmp_path: Path) -> dict[str, Callable[[], int]]:
    """Each verb on the run, which returns its exit code."""
    config = read_config(whole / "config.json")
    config.out = str(run)
    return {
        "train": lambda: call(config, tmp_path),
        "predict": lambda: predict.main(["--run", str(run), str(video_of(trained_run)), "--devices", "1"]),
        "evaluate": lambda: evaluate.main(["--run", str(run), "--out", str(tmp_path / "out"), "--devices", "1"]),
        "watch": lambda: watch.main([str(run)]),
    }


def refused(verb: str, work: Callable[[], int], file: Path, capsys: Capture) -> str:
    """What a verb says, which has to be one line that names the file, with exit code 2."""
    capsys.readouterr()
    assert work() == 2, verb
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"jaxpose.{verb}: ") and str(file) in line
    return line


def test_reversed_keypoint_names_in_the_config_are_refused_by_every_verb(
    run: Path, verbs: dict[str, Callable[[], int]], capsys: Capture
) -> None:
    file = run / "config.json"
    text, names = file.read_text(), read_config(file).data.keypoint_names
    for place, name in enumerate(names):
        text = text.replace(f'"{name}"', f'"#{place}"')
    for place, name in enumerate(reversed(names)):
        text = text.replace(f'"#{place}"', f'"{name}"')
    file.write_text(text)
    for verb, work in verbs.items():
        line = refused(verb, work, file, capsys)
        assert "was damaged or changed by hand: its checksum does not match its content; put the original" in line


@pytest.mark.parametrize(
    ("name", "readers"),
    [
        ("split.csv", ("train", "evaluate", "watch")),
        ("finished.json", ("train", "watch")),
        ("pca.json", ("predict", "evaluate")),
        ("index.csv", ("predict",)),
        ("best.safetensors", ("predict", "evaluate")),
    ],
)
def test_a_flipped_bit_is_refused_by_every_verb_that_reads_the_file(
    run: Path, verbs: dict[str, Callable[[], int]], capsys: Capture, name: str, readers: tuple[str, ...]
) -> None:
    file = run / name
    content = bytearray(file.read_bytes())
    # A digit of a value, of which another digit is made.
    content[[match.start() for match in re.finditer(rb"\d", content)][-30]] ^= 1
    file.write_bytes(content)
    for verb in readers:
        assert "damaged" in refused(verb, verbs[verb], file, capsys)


def test_a_pipe_a_folder_and_nonsense_in_the_place_of_a_file_are_a_line_each(
    run: Path, verbs: dict[str, Callable[[], int]], capsys: Capture
) -> None:
    pca = run / "pca.json"
    stored = read_json(pca)
    stored["pca_singleview"]["mean_px"] = ["far"] * 14
    write_json(pca, stored)
    assert "mean_px must hold 14 finite numbers" in refused("predict", verbs["predict"], pca, capsys)
    pca.write_text("[" * 100_000)
    assert "nested too deeply" in refused("evaluate", verbs["evaluate"], pca, capsys)
    pca.unlink()
    pca.mkdir()
    assert "pca.json is a folder, not a file" in refused("predict", verbs["predict"], pca, capsys)
    config = run / "config.json"
    config.unlink()
    os.mkfifo(config)
    for verb, work in verbs.items():
        assert "config.json is a pipe or device, not a file" in refused(verb, work, config, capsys)


@pytest.mark.faults
def test_random_bits_of_every_kind_of_file_are_never_read_as_something_else(tmp_path: Path) -> None:
    benchmark = Path(__file__).parents[2] / "benchmarks" / "faults.py"
    out = tmp_path / "flips.jsonl"
    command = [sys.executable, benchmark, "--files", "--times", "40", "--out", out, "--work", tmp_path / "work"]
    ended = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (line,) = map(json.loads, out.read_text().splitlines())
    assert line["is_safe"] and sum(sum(kind.values()) for kind in line["kinds"].values()) == 40
    assert len(line["kinds"]) == 10 and line["kinds"]["config.json"].get("refused", 0) >= 2
