"""Metrics: against plain numpy loops, scikit-learn and pycocotools."""

import contextlib
import io
import json

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from sklearn.metrics import accuracy_score, mean_squared_error

from jaxpose.pose.metrics import format_summary, pixel_errors, step_lengths_px, summarize

OPTIONS = dict(pck_px=(2.0, 5.0), pck_share=(0.05, 0.1), oks_sigma=0.1)


def random_case(frames=60, keypoints=4, seed=0, missing=0.3):
    rng = np.random.default_rng(seed)
    labelled = rng.uniform(0, 100, (frames, keypoints, 2))
    labelled[rng.random((frames, keypoints)) < missing] = np.nan
    spread = rng.uniform(0.5, 15, (frames, 1, 1))
    predicted = np.nan_to_num(labelled) + rng.normal(size=labelled.shape) * spread
    confidence = rng.random((frames, keypoints))
    return predicted, labelled, confidence


def names(keypoints):
    return [f"point_{i}" for i in range(keypoints)]


def summary_of(predicted, labelled, confidence=None, **options):
    given = {**OPTIONS, **options}
    return summarize(predicted, labelled, keypoint_names=names(labelled.shape[1]), confidence=confidence, **given)


def coco_ap(predicted, labelled, scores, sigma):
    """AP of pycocotools over the frames with at least two labelled points, area as DeepLabCut."""
    images, truths, found = [], [], []
    for i, (points, wanted) in enumerate(zip(predicted, labelled, strict=True)):
        seen = np.isfinite(wanted).all(-1)
        if seen.sum() < 2:
            continue
        sides = wanted[seen].max(0) - wanted[seen].min(0)
        flat = np.column_stack([np.nan_to_num(wanted), 2 * seen]).ravel().tolist()
        box = [*wanted[seen].min(0).tolist(), *sides.tolist()]
        images.append({"id": i + 1, "width": 200, "height": 200})
        truths.append({"id": i + 1, "image_id": i + 1, "category_id": 1, "keypoints": flat, "iscrowd": 0, "bbox": box,
                       "num_keypoints": int(seen.sum()), "area": float(sides.prod())})  # fmt: skip
        flat = np.column_stack([points, np.ones(len(points))]).ravel().tolist()
        found.append({"image_id": i + 1, "category_id": 1, "keypoints": flat, "score": float(scores[i])})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "images": images,
            "annotations": truths,
            "categories": [{"id": 1, "name": "animal"}],
            "info": {},
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), "keypoints")
        evaluation.params.kpt_oks_sigmas = np.full(labelled.shape[1], sigma)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[0]


@pytest.mark.parametrize("sigma", [0.025, 0.1, 0.25])
@pytest.mark.parametrize("seed", [0, 1])
def test_oks_ap_is_that_of_pycocotools(sigma, seed):
    predicted, labelled, confidence = random_case(seed=seed)
    summary = summary_of(predicted, labelled, confidence, oks_sigma=sigma)
    assert 0 < summary["oks_ap"] < 1
    wanted = coco_ap(predicted, labelled, confidence.mean(-1), sigma)
    np.testing.assert_allclose(summary["oks_ap"], wanted, rtol=0, atol=1e-12)
    assert summary["oks_frames"] == (np.isfinite(labelled).all(-1).sum(-1) >= 2).sum()
    assert summary["oks_sigma"] == sigma and "product of the ranges" in summary["oks_area"]


def test_oks_ap_of_points_on_one_line_is_that_of_pycocotools():
    predicted, labelled, confidence = random_case(keypoints=3)
    labelled[:20, :, 1] = 50.0
    predicted[:10] = np.nan_to_num(labelled[:10])
    wanted = coco_ap(predicted, labelled, confidence.mean(-1), 0.1)
    np.testing.assert_allclose(summary_of(predicted, labelled, confidence)["oks_ap"], wanted, rtol=0, atol=1e-12)


def test_pixel_errors_are_those_of_a_plain_loop():
    predicted, labelled, _ = random_case()
    errors = [
        float(np.linalg.norm(p - q)) for p, q in zip(predicted.reshape(-1, 2), labelled.reshape(-1, 2), strict=True)
    ]
    np.testing.assert_allclose(pixel_errors(predicted, labelled).ravel(), errors, rtol=1e-12)
    errors = np.array(errors)[np.isfinite(errors)]
    summary = summary_of(predicted, labelled)
    assert summary["labelled_points"] == len(errors) and summary["frames"] == 60
    assert summary["mean_px_error"] == pytest.approx(sum(errors) / len(errors))
    assert summary["median_px_error"] == pytest.approx(np.median(errors))
    for q in (75, 90, 95, 99):
        place = (len(errors) - 1) * q / 100
        below, above = np.sort(errors)[[int(place), min(int(place) + 1, len(errors) - 1)]]
        assert summary[f"p{q}_px_error"] == pytest.approx(below + (above - below) * (place - int(place)))
    seen = np.isfinite(labelled).all(-1)
    wanted = np.sqrt(2 * mean_squared_error(labelled[seen], predicted[seen]))
    assert summary["rms_px_error"] == pytest.approx(wanted)


def test_each_keypoint_has_its_own_figures():
    predicted, labelled, _ = random_case()
    labelled[:, 2] = np.nan
    for i, row in enumerate(summary_of(predicted, labelled)["keypoints"].values()):
        distance = np.linalg.norm(predicted[:, i] - labelled[:, i], axis=-1)
        distance = distance[~np.isnan(distance)]
        assert row["labelled_points"] == len(distance)
        assert row["mean_px_error"] == (pytest.approx(distance.mean()) if i != 2 else None)
        assert row["median_px_error"] == (pytest.approx(np.median(distance)) if i != 2 else None)


def test_pck_is_that_of_scikit_learn_per_keypoint():
    predicted, labelled, _ = random_case()
    labelled[:, 1] = np.nan
    labelled[:30, 0] = np.nan
    summary = summary_of(predicted, labelled)
    distance = np.linalg.norm(predicted - labelled, axis=-1)
    longest = np.array([np.ptp(f[np.isfinite(f[:, 0])], axis=0).max() if np.isfinite(f).any() else 0 for f in labelled])
    longest = np.where(longest > 0, longest, np.nan)[:, None]
    pairs = [(row, distance, row["threshold_px"]) for row in summary["pck_px"]]
    pairs += [(row, distance / longest, row["threshold_share"]) for row in summary["pck_share"]]
    assert len(pairs) == 4
    for row, values, threshold in pairs:
        known = ~np.isnan(values)
        truth = np.ones(known.sum(), bool)
        assert row["points"] == known.sum()
        assert row["micro"] == pytest.approx(accuracy_score(truth, values[known] < threshold))
        each = [accuracy_score(np.ones(known[:, i].sum(), bool), values[known[:, i], i] < threshold) for i in (0, 2, 3)]
        assert row["macro"] == pytest.approx(np.mean(each))
        assert row["macro"] != row["micro"]


def test_perfect_points_score_one_whatever_is_unlabelled_and_the_threshold_itself_is_too_far():
    _, labelled, _ = random_case()
    summary = summary_of(np.nan_to_num(labelled), labelled)
    assert summary["mean_px_error"] == 0 and summary["oks_ap"] == pytest.approx(1)
    assert all(row["micro"] == row["macro"] == 1 for row in summary["pck_px"] + summary["pck_share"])
    labelled = np.zeros((1, 2, 2)) + [[[0.0, 0.0]], [[0.0, 40.0]]][0]
    labelled[0, 1] = [0.0, 40.0]
    summary = summary_of(labelled + [2.0, 0.0], labelled)
    assert [row["micro"] for row in summary["pck_px"]] == [0.0, 1.0]
    assert [row["micro"] for row in summary["pck_share"]] == [0.0, 1.0]


def test_no_labels_at_all_gives_no_figures_and_no_warning():
    predicted, labelled, confidence = random_case(frames=3)
    for frames in (0, 3):
        summary = summary_of(predicted[:frames], np.full_like(labelled[:frames], np.nan), confidence[:frames])
        assert summary["labelled_points"] == summary["oks_frames"] == 0 and summary["frames"] == frames
        assert summary["mean_px_error"] is None and summary["oks_ap"] is None
        assert {row["micro"] for row in summary["pck_px"] + summary["pck_share"]} == {None}
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary
        assert "0 labelled points" in format_summary(summary)


def test_a_labelled_point_without_prediction_is_counted_and_wrong():
    predicted, labelled, confidence = random_case(missing=0)
    predicted[0, 0], predicted[1, 2] = np.nan, np.inf
    summary = summary_of(predicted, labelled, confidence)
    assert summary["points_not_predicted"] == 2 and summary["labelled_points"] == 240
    others = np.ones((60, 4), bool)
    others[0, 0] = others[1, 2] = False
    distance = np.linalg.norm(predicted[others] - labelled[others], axis=-1)
    assert summary["mean_px_error"] == pytest.approx(distance.mean())
    assert summary["pck_px"][1]["micro"] == pytest.approx((distance < 5).sum() / 240)
    far = np.where(others[..., None], predicted, 1e6)
    assert summary["oks_ap"] == summary_of(far, labelled, confidence)["oks_ap"]


@pytest.mark.parametrize("with_confidence", [True, False])
def test_the_order_of_the_frames_changes_no_bit(with_confidence):
    predicted, labelled, confidence = random_case()
    confidence = np.round(confidence, 1)[:, :1].repeat(4, axis=1)
    order = np.random.default_rng(5).permutation(len(predicted))
    given, shuffled = (confidence, confidence[order]) if with_confidence else (None, None)
    assert summary_of(predicted, labelled, given) == summary_of(predicted[order], labelled[order], shuffled)


def test_float32_is_read_as_float64():
    predicted, labelled, confidence = (a.astype(np.float32) for a in random_case())
    assert pixel_errors(predicted, labelled).dtype == np.float64
    single = summary_of(predicted, labelled, confidence)
    assert single == summary_of(*(np.float64(a) for a in (predicted, labelled, confidence)))


def test_a_wrong_number_of_names_is_refused():
    predicted, labelled, _ = random_case()
    with pytest.raises(ValueError, match="3 keypoint names for 4 keypoints"):
        summarize(predicted, labelled, keypoint_names=names(3), confidence=None, **OPTIONS)


def test_the_table_fits_80_columns_and_says_what_oks_means():
    predicted, labelled, confidence = random_case()
    keypoint_names = ["nose", "a_very_long_name_of_a_keypoint_in_the_top_mirror_view", "tail", "x"]
    summary = summarize(
        predicted * 100, labelled * 100, keypoint_names=keypoint_names, confidence=confidence, **OPTIONS
    )
    text = format_summary(summary)
    assert max(map(len, text.splitlines())) <= 80
    assert "sigma 0.1, area = product of the ranges of the labelled points" in text
    for wanted in ("nose", "a_very_long", "micro", "macro", "5 px", f"{summary['mean_px_error']:.3f}", "p99", "rms"):
        assert wanted in text


def test_the_reference_trainers_own_errors(real_data):
    run = real_data / "lightning-pose-run"
    table = np.genfromtxt(run / "predictions.csv", delimiter=",", skip_header=3, dtype=str)
    predicted = table[:, 1:-1].astype(np.float64).reshape(90, 17, 3)
    labels = np.genfromtxt(real_data / "mirror-mouse-example" / "CollectedData.csv", delimiter=",", skip_header=3)
    wanted = np.genfromtxt(run / "predictions_pixel_error.csv", delimiter=",", skip_header=1)[:, 1:18]
    np.testing.assert_allclose(pixel_errors(predicted[..., :2], labels[:, 1:].reshape(90, 17, 2)), wanted, atol=1e-3)


def test_step_lengths_are_those_of_lightning_pose():
    # tests/pose/test_metrics.py there: each row lies (sqrt 2, sqrt 2) px from the one before; the first has none.
    rows = np.arange(5.0)[:, None, None] * np.full((4, 2), np.sqrt(2))
    found = step_lengths_px(rows, None)
    assert found.shape == (5, 4) and np.isnan(found[0]).all()
    np.testing.assert_allclose(found[1:], 2, rtol=1e-12)
    np.testing.assert_array_equal(step_lengths_px(rows[2:], rows[1]), found[2:])
