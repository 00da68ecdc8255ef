"""Comparisons of runs: which frames count, means and intervals as scipy has them, and the spread over seeds."""

import csv
import hashlib
import io
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from jaxpose import config as c
from jaxpose.checksums import write_csv
from jaxpose.compare.__main__ import main
from jaxpose.compare.comparison import bootstrap_means, compare, interval_px
from jaxpose.compare.listing import compare_with_parent, find_parent, format_comparison, parent_lines
from jaxpose.errors import UserError
from jaxpose.formats.lightning_pose.tables import write_errors
from jaxpose.formats.project import read_project
from jaxpose.report.facts import read_facts
from jaxpose.report.headline import parent_section
from jaxpose.run.identity import read_config, write_config
from jaxpose.run.status import write_evaluated
from tests.formats.other_projects import deeplabcut_project

NAMES = ("nose", "tail")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _run(
    folder: Path,
    errors: Mapping[str, tuple[float, ...]],
    sets: Mapping[str, str],
    labels: Mapping[str, str] | None = None,
    **options: object,
) -> Path:
    """A finished run: {frame: errors}, {frame: set}; the content of a frame's image is its name."""
    config = c.Config(data=c.DataConfig(project="/projects/mice", keypoint_names=NAMES))
    config.data.input_width_px = config.data.input_height_px = 64
    for name, value in options.items():
        section, _, option = name.partition("__")
        setattr(getattr(config, section), option, value)
    folder.mkdir()
    write_config(folder / "config.json", config)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("path", "bytes", "sha256", "set", "labels_sha256"))
    for frame, name in sets.items():
        of_labels = "" if name == "trained" else _digest((labels or {}).get(frame, f"labels of {frame}"))
        writer.writerow((frame, 1, _digest(frame.removeprefix("train.init_from/")), name, of_labels))
    write_csv(folder / "split.csv", text.getvalue())
    index = [frame for frame in errors]
    of_rows = [sets.get(frame, "unused") for frame in index]
    names = config.data.keypoint_names
    write_errors(folder / "predictions_pixel_error.csv", index, names, np.array(list(errors.values())), of_rows)
    _record(folder, {frame: frame for frame in index}, labels or {})
    return folder


def _record(run: Path, names: Mapping[str, str], labels: Mapping[str, str]) -> None:
    """Records the table of errors as that of an evaluation: {frame: the name that it had at first}."""
    images = [_digest(name) for name in names.values()]
    sums = [_digest(labels.get(name, f"labels of {name}")) for name in names.values()]
    write_evaluated(run, ["predictions_pixel_error.csv"], list(names), images, sums)


def _split(test: int, train: int = 3) -> dict[str, str]:
    return {f"t{i}.png": "train" for i in range(train)} | {f"x{i}.png": "test" for i in range(test)}


def _errors_of(sets: Mapping[str, str], seed: int, shift: float = 0.0) -> dict[str, tuple[float, float]]:
    rng, common = np.random.default_rng(seed), np.random.default_rng(9)
    rows = common.gamma(2.0, 3.0, (len(sets), 2)) + shift + 0.3 * rng.random((len(sets), 2))
    return {frame: (float(row[0]), float(row[1])) for frame, row in zip(sets, rows, strict=True)}


def test_intervals_are_those_of_scipy_and_differences_are_paired(tmp_path: Path) -> None:
    sets = _split(40)
    first, second = _errors_of(sets, 1), _errors_of(sets, 2, 0.5)
    found = compare([_run(tmp_path / "a", first, sets), _run(tmp_path / "b", second, sets, model__width=16)])
    a, b = (np.array([errors[f"x{i}.png"] for i in range(40)]) for errors in (first, second))
    theirs = scipy.stats.bootstrap((a[:, 0],), np.mean, method="percentile", rng=np.random.default_rng(0))
    spread = a[:, 0].std() / np.sqrt(40)
    np.testing.assert_allclose(found.measured[0].interval_px[:, 0], theirs.confidence_interval, atol=0.15 * spread)
    both = {"paired": True, "method": "percentile", "rng": np.random.default_rng(0)}
    theirs = scipy.stats.bootstrap((a[:, 1], b[:, 1]), lambda x, y, axis: (y - x).mean(axis), **both)
    one, other = found.measured
    np.testing.assert_allclose(one.means_px, [*a.mean(0), a.mean()])
    np.testing.assert_allclose(other.difference_px, other.means_px - one.means_px)
    spread = (b - a)[:, 1].std() / np.sqrt(40)
    np.testing.assert_allclose(other.difference_interval_px[:, 1], theirs.confidence_interval, atol=0.15 * spread)
    # Unpaired, the interval would be many times wider, as the frames differ more than the runs.
    assert np.ptp(other.difference_interval_px[:, 1]) < 0.2 * np.ptp(one.interval_px[:, 1])
    assert found.options == {"model.width": [c.ModelConfig().width, 16]}


def test_a_frame_with_missing_labels_counts_where_it_has_some(tmp_path: Path) -> None:
    errors = np.array([[1.0, np.nan], [3.0, 5.0], [np.nan, np.nan], [2.0, 9.0]])
    means = bootstrap_means(errors, seed=0, resamples=20_000)
    np.testing.assert_allclose(means.means_px, [2, 7, 4])
    assert means.frames.tolist() == [3, 2, 3]
    # The mean over the numbers of the drawn frames: first order of the variance of a ratio.
    sums, counts = np.nansum(errors, 1), np.isfinite(errors).sum(1)
    many = bootstrap_means(np.tile(errors, (50, 1)), seed=0)
    expected = np.sqrt(np.mean((sums - 4 * counts) ** 2) / 200) / counts.mean()
    np.testing.assert_allclose(many.resampled_px[:, -1].std(), expected, rtol=0.05)
    edges = interval_px(means.resampled_px, np.array([4, 0, 5]))
    assert np.isnan(edges[:, :2]).all() and np.isfinite(edges[:, 2]).all()


@pytest.mark.parametrize(("frames", "shown"), [(4, False), (5, True)])
def test_an_interval_needs_five_frames_whatever_the_number_of_their_points(
    tmp_path: Path, frames: int, shown: bool
) -> None:
    sets = _split(frames)
    found = compare([_run(tmp_path / "a", _errors_of(sets, 1), sets), _run(tmp_path / "b", _errors_of(sets, 2), sets)])
    assert all(one.frames.tolist() == [frames] * 3 for one in found.measured)
    for one in found.measured:
        edges = np.stack([one.interval_px, one.difference_interval_px])
        assert (np.isfinite(edges) == shown).all()
    text = format_comparison(found)
    assert "from 5 frames on" in text and bool(re.search(r"\(-?[\d.]+ to ", text)) == shown
    assert re.search(rf"^all +{frames} ", text, re.MULTILINE)


def test_frames_that_trained_one_of_the_runs_are_left_out(tmp_path: Path) -> None:
    sets = _split(10)
    # x0 trained the second run, x1 the run that it started from, x2 validated it; x3 has other labels, x4 is lacking.
    others = sets | {"x0.png": "train", "train.init_from/x1.png": "trained", "x2.png": "validation"}
    others.pop("x1.png"), others.pop("x4.png")
    one = _errors_of(sets, 1)
    other = {frame: (row[0] + 2, row[1] + 2) for frame, row in one.items() if frame in others}
    runs = [_run(tmp_path / "a", one, sets), _run(tmp_path / "b", other, others, labels={"x3.png": "moved"})]
    found = compare(runs)
    assert found.frames.is_paired and found.frames.compared == [6, 6] and found.frames.validated == 1
    assert (found.frames.trained, found.frames.not_shared, found.frames.other_labels) == (5, 2, 1)
    np.testing.assert_allclose(found.measured[1].difference_px, 2)
    np.testing.assert_allclose(found.measured[1].difference_interval_px, 2)
    expected = np.mean([one[f"x{i}.png"] for i in (2, 5, 6, 7, 8, 9)], axis=0)
    np.testing.assert_allclose(found.measured[0].means_px[:2], expected)
    assert compare(runs, test_only=True).frames.compared == [5, 5]


def test_runs_whose_held_out_labels_all_differ_are_refused_with_the_reason(tmp_path: Path) -> None:
    sets = _split(2)
    corrected = {frame: "corrected" for frame, name in sets.items() if name == "test"}
    runs = [
        _run(tmp_path / "a", _errors_of(sets, 1), sets),
        _run(tmp_path / "b", _errors_of(sets, 2), sets, labels=corrected),
    ]
    with pytest.raises(
        UserError, match="2 other images would count, but the runs measured them from different labels: "
    ):
        compare(runs)


def test_a_run_is_compared_with_its_parent_and_the_frames_that_changed_most_are_named(tmp_path: Path) -> None:
    sets = _split(10)
    more = sets | {"t9.png": "train"}
    one = _errors_of(sets, 1)
    other = {frame: one.get(frame, (1.0, 1.0)) for frame in more} | {"x3.png": (90.0, 70.0), "x7.png": (0.0, 0.0)}
    parent = _run(tmp_path / "a", one, sets, labels={"x5.png": "corrected since"})
    run = _run(tmp_path / "b", other, more, train__init_from=str(parent), data__split=str(tmp_path / "other"))
    assert find_parent(read_config(run / "config.json")) == parent and find_parent(c.Config()) is None
    found, changed = compare_with_parent(parent, run)
    assert [frame.image for frame in changed] == ["x3.png", "x7.png"]
    assert (changed[0].before_px, changed[0].after_px) == (pytest.approx(np.mean(one["x3.png"])), 80.0)
    first, second, third = parent_lines(found, changed)
    kept = np.array([one[f"x{i}.png"] for i in range(10) if i != 5])
    assert first.startswith(
        f"compared with the parent run {parent} on 9 frames that neither run was trained on: mean error "
        f"{kept.mean():.2f} px "
        f"before, {found.measured[1].means_px[-1]:.2f} px now ("
    )
    assert "95 % interval" in first
    assert second.startswith("left out: 1 image whose labels changed since the parent was evaluated (jaxpose evaluate ")
    assert third.startswith(f"frames that changed most: x3.png ({changed[0].before_px:.2f} px, now 80.00 px), x7.png (")
    (section,) = parent_section(read_facts(run))
    assert "Frames whose mean error in px changed most" in section.body and "80.00" in section.body
    (parent / "predictions_pixel_error.csv").unlink()
    (section,) = parent_section(read_facts(run))
    assert "cannot be compared: " in section.body and not parent_section(read_facts(parent))


def test_a_renamed_image_is_the_same_frame(tmp_path: Path) -> None:
    sets = _split(4)
    first = _run(tmp_path / "a", _errors_of(sets, 1), sets)
    second = _run(tmp_path / "b", _errors_of(sets, 2), sets)
    rows, table = pd.read_csv(second / "split.csv").drop(columns="check"), second / "predictions_pixel_error.csv"
    write_csv(second / "split.csv", rows.assign(path="renamed/" + rows["path"]).to_csv(index=False))
    table.write_text(table.read_text().replace("\nx", "\nrenamed/x").replace("\nt", "\nrenamed/t"))
    _record(second, {f"renamed/{name}": name for name in sets}, {})
    assert compare([first, second]).frames.compared == [4, 4]


def test_runs_without_a_common_frame_are_not_paired(tmp_path: Path) -> None:
    sets = _split(30)
    others = {f"other{i}.png": name for i, name in enumerate(sets.values())}
    runs = [_run(tmp_path / "a", _errors_of(sets, 1), sets), _run(tmp_path / "b", _errors_of(others, 2), others)]
    found = compare(runs)
    assert not found.frames.is_paired and found.frames.compared == [30, 30]
    one, other = found.measured
    # The variances of independent means add up.
    widths = [np.ptp(interval[:, 0]) for interval in (one.interval_px, other.interval_px, other.difference_interval_px)]
    np.testing.assert_allclose(widths[2], np.hypot(widths[0], widths[1]), rtol=0.08)


def test_seeds_are_grouped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = _split(5)
    runs = [
        _run(
            tmp_path / f"r{seed}{width}", _errors_of(sets, seed, width / 8), sets, train__seed=seed, model__width=width
        )
        for seed, width in ((0, 8), (1, 8), (0, 16), (2, 8))
    ]
    found = compare(runs)
    (group,) = found.seeds
    assert group.runs == [0, 1, 3]
    of_runs = [found.measured[place].means_px for place in group.runs]
    np.testing.assert_allclose(group.means_px, np.mean(of_runs, axis=0))
    np.testing.assert_allclose(group.deviations_px, np.std(of_runs, axis=0, ddof=1))
    assert main([str(run) for run in runs]) == 0
    shown = capsys.readouterr().out
    assert "model.width  8  8  16  8" in shown and "A B D" in shown and "compared: the same 5 frames" in shown
    assert f"{group.means_px[2]:.2f} +- {group.deviations_px[2]:.2f}" in shown


@pytest.mark.parametrize(("second", "groups"), [("p", 1), ("q", 0)])
def test_runs_from_other_weights_are_no_group_of_seeds(tmp_path: Path, second: str, groups: int) -> None:
    sets = _split(3)
    runs = [
        _run(
            tmp_path / weights,
            _errors_of(sets, seed),
            sets | {f"train.init_from/{content}": "weights"},
            train__seed=seed,
            train__init_from=f"/runs/{weights}",
        )
        for seed, weights, content in ((0, "p", "p"), (1, "q", second))
    ]
    assert len(compare(runs).seeds) == groups


def test_a_real_run_is_read(trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = shutil.copytree(trained_run, tmp_path / "copy")
    found = compare([trained_run, copy])
    table = pd.read_csv(trained_run / "predictions_pixel_error.csv", index_col=0)
    held_out = table[table["set"] != "train"].drop(columns="set")
    np.testing.assert_allclose(found.measured[0].means_px[:-1], held_out.mean().to_numpy())
    assert found.frames.compared == [12, 12] and (found.frames.trained, found.frames.validated) == (6, 6)
    assert not found.options and (found.measured[1].difference_px == 0).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "no table",
            "b has no predictions_pixel_error.csv: finish the training, or write it with jaxpose evaluate ",
        ),
        ("other table", "t0.png is in the set test, but "),
        ("damaged table", "predictions_pixel_error.csv was damaged or changed by hand: its SHA-256 is not that in "),
        (
            "no record",
            "b/evaluated.json cannot be read: No such file or directory; write it again with jaxpose evaluate ",
        ),
        ("damaged split", "split.csv:2: the row was damaged"),
        ("no run", "b is not a run folder: it has no config.json; there are "),
        ("a cell", "predictions_pixel_error.csv:2: 'many' is not a number"),
        ("the same", "a is given twice; give each run once"),
        (
            "no split",
            "b has no split.csv, so its training frames are unknown, and it cannot be compared; ",
        ),
        (
            "all trained",
            "the runs share no validation or test frame: 5 of 5 frames were used to train one of the runs. Train with ",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str, message: str) -> None:
    sets = _split(2)
    everywhere = dict.fromkeys(sets, "train") if change == "all trained" else sets
    first = _run(tmp_path / "a", _errors_of(sets, 1), sets)
    second = _run(tmp_path / "b", _errors_of(sets, 2), everywhere)
    table, split = second / "predictions_pixel_error.csv", second / "split.csv"
    if change == "no table":
        table.unlink()
    elif change == "other table":
        table.write_text(table.read_text().replace("train", "test", 1))
        _record(second, {name: name for name in sets}, {})
    elif change == "damaged table":
        table.write_text(table.read_text().replace("train", "test", 1))
    elif change == "damaged split":
        split.write_text(split.read_text().replace("train", "test", 1))
    elif change == "no split":
        split.unlink()
    elif change == "no run":
        (second / "config.json").unlink()
    elif change == "a cell":
        lines = table.read_text().splitlines()
        lines[1] = "t0.png,many,1,train"
        table.write_text("\n".join(lines))
        _record(second, {name: name for name in sets}, {})
    elif change == "no record":
        (second / "evaluated.json").unlink()
    runs = [first, first] if change == "the same" else [first, second]
    assert main([str(run) for run in runs]) == 2
    shown = capsys.readouterr()
    assert message in shown.err and len(shown.err.splitlines()) == 1 and not shown.out


def test_the_reader_refuses_a_run_twice_by_another_path(tmp_path: Path) -> None:
    run = _run(tmp_path / "a", _errors_of(_split(2), 1), _split(2))
    with pytest.raises(UserError, match=r"a/\.\./a is given twice, also as .*a; give each run once"):
        compare([run, tmp_path / "a" / ".." / "a"])
    with pytest.raises(UserError, match="a is the only run; give two or more"):
        compare([run])


def test_all_runs_beside_a_wrong_folder_are_counted(tmp_path: Path) -> None:
    for name in "abcdefg":
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    with pytest.raises(UserError, match=r"there are .*/a, .*/e and 2 more$"):
        compare([tmp_path / "x", tmp_path / "a"])


def test_columns_that_do_not_fit_a_terminal_follow_below(tmp_path: Path) -> None:
    runs = [_run(tmp_path / f"r{place}", _errors_of(_split(9), place + 1), _split(9)) for place in range(4)]
    found = compare(runs)
    assert format_comparison(found) == format_comparison(found, 1000)
    whole, narrow = format_comparison(found).split(), format_comparison(found, 60)
    assert max(map(len, narrow.splitlines()[6:])) <= 60
    for cell in ("B - A", "C - A", "D - A"):
        assert narrow.count(cell) == 1
    assert {word for word in whole if "px" not in word} - set(narrow.split()) <= {str(run) for run in runs}


def test_start_weights_and_new_frames_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of labelling: their starts and splits differ only by the absolute path of a run."""
    monkeypatch.chdir(tmp_path)
    sets, crops = _split(5), tuple(f"videos/m{i}:0,0,640,480" for i in range(9))
    for i, added in ((1, {}), (2, {"t8.png": "train", "v8.png": "validation", "u8.png": "unused"})):
        _run(
            tmp_path / f"r{i}",
            _errors_of(sets | added, i),
            sets | added,
            train__init_from=str(tmp_path / f"r{i - 1}"),
            data__split=str(tmp_path / f"r{i - 1}"),
            data__video_crops_px=crops if i == 1 else (),
        )
    assert main(["r1", "r2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = [re.split("  +", line) for line in lines]
    assert cells[0] == ["", "run", "starts from", "frames: train", "validation", "test"]
    assert cells[1:3] == [["A", "r1", "r0", "3", "0", "5"], ["B", "r2", "run A", "4", "1", "5"]]
    assert ["train.init_from", "r0", "r1"] in cells and ["data.split", "r0", "r1"] in cells
    # A long value is whole in a pipe; a terminal wraps it, and none of it is lost.
    assert ["data.video_crops_px", str(crops), "()"] in [re.split("   *", line) for line in lines]
    lines = format_comparison(compare([Path("r1"), Path("r2")]), 80).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("data.video_crops_px"))
    assert max(map(len, lines)) <= 80
    shown = "".join("".join(lines[start : start + 9]).replace("data.video_crops_px", "").replace("()", "", 1).split())
    assert shown.startswith("".join(repr(crops).split()))


def test_the_labels_of_crops_are_those_that_were_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second video of the DeepLabCut project has crops, so its labels count from other pixels than its frames."""
    deeplabcut_project(tmp_path / "dlc")
    found = read_project(c.DataConfig(project=str(tmp_path / "dlc")))
    images, sums = found.poses.frames, found.labels_checksums()
    runs = []
    for name in "ab":
        errors = {image: (1.0, 2.0, 3.0, 4.0) for image in images}
        options = {"data__project": str(tmp_path / "dlc"), "data__keypoint_names": found.poses.keypoint_names}
        runs.append(_run(tmp_path / name, errors, dict.fromkeys(images, "test"), **options))
        write_evaluated(runs[-1], ["predictions_pixel_error.csv"], images, [_digest(image) for image in images], sums)
    assert main(list(map(str, runs))) == 0
    assert "today" not in capsys.readouterr().out
    file = tmp_path / "dlc" / "labeled-data" / "day2" / "CollectedData_me.csv"
    table = pd.read_csv(file, header=[0, 1, 2], index_col=[0, 1, 2])
    (table + 1).to_csv(file)
    assert main(list(map(str, runs))) == 0
    assert "A, B: 3 of 6 frames have labels that changed since they were measured\n" in capsys.readouterr().out


def test_labels_that_changed_since_both_runs_were_measured_are_counted(
    trained_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = shutil.copytree(Path(read_config(trained_run / "config.json").data.project), tmp_path / "project")
    runs = [
        shutil.copytree(trained_run, tmp_path / name, ignore=shutil.ignore_patterns("checkpoints")) for name in "ab"
    ]
    for run in runs:
        config = read_config(run / "config.json")
        config.data.project = str(project)
        write_config(run / "config.json", config)

    def shown() -> str:
        assert main(list(map(str, runs))) == 0
        return capsys.readouterr().out

    assert "today" not in shown()
    table = pd.read_csv(runs[0] / "predictions_pixel_error.csv", index_col=0)
    held_out = [str(image) for image in table.index[table["set"] != "train"]]
    labels = project / "CollectedData.csv"
    before = labels.read_text()
    moved = {image: row for row in before.splitlines() if (image := row.partition(",")[0]) in held_out[:2]}
    after = before
    for image, row in moved.items():
        _, x, rest = row.split(",", 2)
        after = after.replace(row, f"{image},{float(x) + 1},{rest}")
    # One frame is not labelled any more; the images are not opened.
    gone = next(row for row in before.splitlines() if row.startswith(f"{held_out[2]},"))
    labels.write_text(after.replace(f"{gone}\n", ""))
    shutil.rmtree(project / "labeled-data")
    text = shown()
    assert "A, B: 3 of 12 frames have labels that changed since they were measured\n" in text
    assert "(jaxpose evaluate --run RUN measures a run again)" in text and "compared: the same 12 frames" in text
    for change, reason in (
        (lambda: labels.write_text("no labels\n"), f"the project {project} cannot be read ("),
        (lambda: shutil.rmtree(project), f"the project {project} does not exist"),
    ):
        change()
        assert f"A, B: not compared with the current labels: {reason}" in shown()
