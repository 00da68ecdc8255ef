"""The figures of the report are those of numpy, scipy and scikit-learn on the same tables."""

import dataclasses
import json
import re
from pathlib import Path

import cv2
import numpy as np
import pytest
import scipy.stats
from sklearn.calibration import calibration_curve

from jaxpose.checksums import write_csv
from jaxpose.data.project import read_project
from jaxpose.data.split import split_text
from jaxpose.report.errors import calibrate, count_by_folder, count_confusions, errors_section, find_pairs, measure, pck
from jaxpose.report.facts import errors_of_frames, find_segments, least_evidence, read_facts
from jaxpose.report.headline import headline_section, result
from jaxpose.report.traces import traces_section
from jaxpose.report.training import learning_section, read_history, read_times
from jaxpose.report.writing import write_report
from jaxpose.run.identity import read_config, write_config
from tests.written_runs import write_run, write_video

TWINS = (("png", "train"), ("bmp", "test"), ("png", "test"))
NAMES = ("nose", "tail_left", "tail_right")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    sets = {f"labeled-data/v{i % 3}/img{i}.png": "test" if i % 3 == 2 else "train" for i in range(60)}
    errors_px = rng.gamma(2.0, 3.0, (60, 3))
    errors_px[rng.random((60, 3)) < 0.2] = np.nan
    return write_run(tmp_path / "run", NAMES, sets, errors_px, rng.random((60, 3)))


def test_the_errors_of_keypoints_are_the_means_of_the_table(run: Path) -> None:
    facts = read_facts(run)
    assert facts.frames is not None and facts.shown_set() == "test"
    errors_px = errors_of_frames(facts.frames)[np.arange(60) % 3 == 2]
    error, curves = errors_section(facts).figures
    expected = [*np.nanmean(errors_px, axis=0), np.nanmean(errors_px)]
    points = error.data[:4]
    np.testing.assert_allclose([point["x"][0] for point in points], expected)
    assert [(point["y"], point["meta"]) for point in points] == [
        (["nose"], 0), (["tail_left"], 1), (["tail_right"], 2), (["all keypoints"], None),
    ]  # fmt: skip
    means, intervals = measure(errors_px)
    below, above = ([point["error_x"][side][0] for point in points] for side in ("arrayminus", "array"))
    np.testing.assert_allclose([np.array(expected) - below, np.array(expected) + above], intervals)
    nose = errors_px[:, 0]
    theirs = scipy.stats.bootstrap(
        (nose[np.isfinite(nose)],), np.mean, method="percentile", rng=np.random.default_rng(1)
    )
    spread = np.nanstd(nose) / np.sqrt(np.isfinite(nose).sum())
    np.testing.assert_allclose(intervals[:, 0], theirs.confidence_interval, atol=0.4 * spread)
    for column, trace in enumerate(curves.data[:3]):
        known = errors_px[:, column][np.isfinite(errors_px[:, column])]
        shares = [(known < threshold).mean() for threshold in trace["x"]]
        np.testing.assert_allclose(trace["y"], shares)
    assert f"{means.means_px[-1]:.2f} px from the labels" in result(facts) and "20 test frames" in result(facts)


@pytest.mark.parametrize(("labelled", "said"), [(1, "on 1 test frame;"), (4, "on 4 test frames;")])
def test_few_frames_have_no_interval_in_the_report(labelled: int, said: str, tmp_path: Path) -> None:
    """Frames without a label do not count."""
    sets = {f"labeled-data/v/img{i}.png": "test" for i in range(6)}
    errors_px = np.random.default_rng(0).gamma(2, 3, (6, 3))
    errors_px[labelled:] = np.nan
    facts = read_facts(write_run(tmp_path / "run", NAMES, sets, errors_px, np.ones((6, 3))))
    assert said in result(facts) and "% interval" not in result(facts)
    assert "There is no interval below 5 labelled frames." in result(facts)
    body = errors_section(facts).body
    assert f'<th scope="row">all keypoints</th><td>{labelled}</td>' in body and ">- " not in body and " to " not in body


def test_the_sets_come_first_in_the_legend_of_the_pck_curves(run: Path) -> None:
    curves = errors_section(read_facts(run)).figures[1].data
    shown = sorted(curves, key=lambda trace: trace.get("legendrank", 1000))
    assert [trace["name"] for trace in shown] == ["all, train", "all, test", *NAMES]


@pytest.mark.parametrize(
    ("monitor", "said"),
    [("val_loss", "Validation frames chose the checkpoint, so"), ("none", "Validation frames neither trained the")],
)
def test_what_the_error_of_validation_frames_means_depends_on_the_monitor(
    monitor: str, said: str, tmp_path: Path
) -> None:
    sets = {f"labeled-data/v/img{i}.png": "validation" if i % 3 == 2 else "train" for i in range(9)}
    facts = read_facts(write_run(tmp_path / "run", NAMES, sets, np.ones((9, 3)), np.ones((9, 3))))
    facts.config.train.monitor = monitor
    assert said in result(facts)


def test_the_result_says_how_many_frames_are_like_training_frames(run: Path, tmp_path: Path) -> None:
    assert "training frame of the same video" not in headline_section(read_facts(run), None).body
    sets = {f"labeled-data/v/img{i}.png": "test" if i % 3 == 2 else "train" for i in range(9)}
    facts = read_facts(write_run(tmp_path / "near", NAMES, sets, np.ones((9, 3)), np.ones((9, 3))))
    html = headline_section(facts, None).body
    assert "<p>3 of 3 test frames lie within 5 frames of a training frame of the same video, so the test error" in html


def test_the_result_counts_test_frames_that_are_training_frames_in_other_files(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "labeled-data" / "v").mkdir(parents=True)
    sets = {f"labeled-data/v/img{100 * i}.{form}": of for i, (form, of) in enumerate(TWINS)}
    for image in sets:
        picture = np.full((8, 8, 3), 0 if image.endswith("img200.png") else 90, np.uint8)
        assert cv2.imwrite(str(folder / image), picture)
    rows = "".join(f"{image},1,1\n" for image in sets)
    (folder / "CollectedData.csv").write_text("scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n" + rows)
    run = write_run(tmp_path / "run", ("nose",), sets, np.ones((3, 1)), np.ones((3, 1)))
    config = read_config(run / "config.json")
    config.data.project = str(folder)
    write_config(run / "config.json", config)
    write_csv(run / "split.csv", split_text(read_project(config.data), np.array(list(sets.values()))))
    assert "1 of 2 test frames has the same image as a training frame" in write_report(run).read_text()


def test_the_line_of_the_best_step_ends_at_the_axis_of_the_lowest_panel(run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0, "val_mean_px_error": 3.0}\n')
    facts = dataclasses.replace(read_facts(run), summary={"best_step": 1})
    (figure,) = learning_section(facts, read_history(run)).figures
    (line,) = figure.layout["shapes"]
    assert (line["x0"], line["y0"]) == (1, pytest.approx(figure.layout["yaxis2"]["domain"][0])) and line["y0"] > 0


def test_without_errors_there_is_no_share() -> None:
    assert np.isnan(pck(np.full((3, 1), np.nan), np.array([1.0, 2.0]))).all()


def test_the_calibration_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    confidence, errors_px = rng.random(500), rng.gamma(2.0, 3.0, 500)
    found = calibrate(confidence, errors_px, np.array([2.0, 5.0]))
    for threshold, shares in zip((2.0, 5.0), found.shares, strict=True):
        theirs, means = calibration_curve(errors_px < threshold, confidence, n_bins=10)
        np.testing.assert_allclose(shares, theirs)
        np.testing.assert_allclose(found.confidence, means)
    assert found.counts.sum() == 500
    assert calibrate(np.array([0.05, 1.0]), np.array([1.0, 9.0]), np.array([5.0])).shares.tolist() == [[1.0, 0.0]]


def test_an_exchange_of_sides_is_counted_and_a_common_error_is_not() -> None:
    assert find_pairs(NAMES, ()) == [(1, 2)] and find_pairs(("nose", "tail"), ()) == []
    labelled = np.tile(np.array([[0.0, 0.0], [10.0, 0.0], [20.0, 0.0]]), (5, 1, 1))
    predicted = labelled.copy()
    predicted[0, [1, 2]] = predicted[0, [2, 1]]
    predicted[1, 1] = [18.0, 0.0]
    predicted[2, [1, 2]] += [0.0, 40.0]
    labelled[4, 2] = np.nan
    (found,) = count_confusions(predicted, labelled, [(1, 2)])
    assert (found.frames, found.one, found.both) == (4, 1, 1)


def test_the_curves_are_the_lines_of_the_metrics_and_a_line_that_was_cut_off_is_left_out(run: Path) -> None:
    steps = np.arange(10, 9010, 10)
    losses = np.random.default_rng(0).random(len(steps))
    losses[450] = 40.0
    lines = [json.dumps({"step": int(s), "time_s": 1.0, "loss": float(v)}) for s, v in zip(steps, losses, strict=True)]
    lines += [json.dumps({"step": 9000, "time_s": 2.0, "val_loss": None}), '{"step": 9010, "loss": 0.']
    lines = [f'{{"step": 1, "loss": {10**400}}}', '{"step": 1e999, "loss": 1}', "[" * 100_000, *lines]
    (run / "metrics.jsonl").write_text("\n".join(lines))
    history = read_history(run)
    np.testing.assert_array_equal(history["loss"][0], steps)
    np.testing.assert_array_equal(history["loss"][1], losses)
    assert np.isnan(history["val_loss"][1]).all()
    (figure,) = learning_section(read_facts(run), history).figures
    curve = next(trace for trace in figure.data if trace["name"] == "loss")
    np.testing.assert_array_equal(curve["y"], losses)


def test_a_long_curve_keeps_its_peaks_and_says_that_it_is_thinned(run: Path) -> None:
    values = np.random.default_rng(0).random(20_000)
    values[12_345] = 40.0
    lines = [json.dumps({"step": place + 1, "loss": value}) for place, value in enumerate(values.tolist())]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    section = learning_section(read_facts(run), read_history(run))
    curve = section.figures[0].data[0]
    assert len(curve["x"]) == len(curve["y"]) <= 4000 and max(curve["y"]) == 40.0 and min(curve["y"]) == values.min()
    assert abs(curve["x"][int(np.argmax(curve["y"]))] - 12_346) <= 10
    assert "the smallest and the largest of every 10 points" in section.body


def test_the_table_of_stretches_has_the_jump_also_if_the_worst_frame_lies_before_it(run: Path) -> None:
    points = np.zeros((200, 3, 2))
    points[100:, 0] = [30.0, 40.0]
    write_video(run, "v", NAMES, points, np.ones((200, 3)))
    section, _ = traces_section(read_facts(run))
    (row,) = re.findall(r'<tr><th scope="row">v</th>(.*?)</tr>', section.body)
    cells = re.findall("<td>(.*?)</td>", row)
    assert cells[2:5] == ["jump", NAMES[0], "50.0"], cells


def test_bins_of_steps_end_at_a_high_percentile_and_the_last_one_has_all_beyond(run: Path) -> None:
    rng = np.random.default_rng(0)
    points = np.zeros((4000, 3, 2))
    points[:, :, 0] = rng.uniform(2, 4, (4000, 3)).cumsum(axis=0)
    points[2000:, 0] += 5000
    write_video(run, "v", NAMES, points, np.ones((4000, 3)))
    section, _ = traces_section(read_facts(run))
    (figure,) = section.figures
    assert max(figure.data[0]["x"]) < 6 and all(sum(trace["y"]) == 3999 for trace in figure.data)
    assert re.search(r"The last bin has all steps above \d px, the first one all below 0\.06 px", figure.title)
    assert "There is no PCA error, because the run has neither of the losses" in section.body


def test_stretches_are_frames_with_evidence_close_together() -> None:
    evidence = np.zeros((100, 2, 3))
    evidence[[10, 12, 16], 0, 1] = 2.0
    evidence[12, 1, 2] = 3.0
    evidence[60, 0, 0] = 5.0
    evidence[80, 0, 0] = 1.0
    first, second = find_segments(evidence, ["jump", "low confidence"], 1.5)
    assert (first.first, first.last, first.signal, first.keypoint) == (60, 60, "jump", 0)
    assert (second.first, second.last, second.worst, second.signal, second.keypoint) == (
        10,
        16,
        12,
        "low confidence",
        2,
    )
    assert find_segments(evidence[:10], ["jump", "low confidence"], 1.5) == []


def test_at_most_one_frame_in_twenty_is_suspicious_and_none_of_a_quiet_video() -> None:
    rng = np.random.default_rng(0)
    loud, quiet = rng.random((1000, 1, 2)) + 5, rng.random((1000, 1, 2)) * 0.1
    least = least_evidence([loud, quiet])
    assert [int((found.max(axis=(1, 2)) > least).sum()) for found in (loud, quiet)] == [100, 0]
    assert least_evidence([quiet]) == pytest.approx(np.log(4))


def test_the_log_tells_starts_stops_and_waiting() -> None:
    text = """2026-01-01 10:00:00 jaxpose
  run folder  r1
  devices     1 x cpu: cpu:0
2026-01-01 10:00:30 step 2/10  20%  loss 1  0.7 steps/s, 11 images/s, 10% waiting for data, ETA 00:11
2026-01-01 10:01:00 stopped by a signal, saved at step 2; the same command resumes from there
2026-01-01 11:00:00 jaxpose
  run folder  r1
  devices     2 x gpu
2026-01-01 11:00:10 warning: the disk is slow
2026-01-01 11:01:00 step 9/10  90%  loss 1  0.7 steps/s, 13 images/s, 20% waiting for data, ETA 00:11
"""
    found = read_times(text)
    assert (found.starts, found.stops, found.wall_s) == (2, 1, 3660.0)
    assert found.images_per_s == 12.0 and abs(found.waiting_share - 0.15) < 1e-9
    assert found.block == {"run folder": "r1", "devices": "2 x gpu"} and found.warnings == ["the disk is slow"]


def test_sets_are_counted_by_folder() -> None:
    sets = {"labeled-data/a/1.png": "train", "labeled-data/a/2.png": "test", "labeled-data/b/1.png": "train"}
    assert count_by_folder(sets) == {"a": {"train": 1, "test": 1}, "b": {"train": 1}}
