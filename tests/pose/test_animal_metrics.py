"""Figures about several animals a frame: AP against pycocotools, the others against a plain case."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from jaxpose.pose.metrics import animals_ap, summarize_animals

# Those of COCO's people.
COCO_SIGMAS = np.array(
    [0.26, 0.25, 0.25, 0.35, 0.35, 0.79, 0.79, 0.72, 0.72, 0.62, 0.62, 1.07, 1.07, 0.87, 0.87, 0.89, 0.89]
) / 10  # fmt: skip


def random_case(seed, frames=40, animals=4, places=6, keypoints=5):
    """Labels with absent points and animals; predictions that miss some, are false or twice, or lack points."""
    rng = np.random.default_rng(seed)
    labelled = rng.uniform(20, 180, (frames, animals, 1, 2)) + rng.normal(0, 15, (frames, animals, keypoints, 2))
    labelled[rng.random(labelled.shape[:3]) < 0.2] = np.nan
    labelled[rng.random(labelled.shape[:2]) < 0.3] = np.nan
    # More places than animals: some are predicted twice, some not at all.
    chosen = rng.integers(0, animals, (frames, places))
    predicted = np.take_along_axis(labelled, chosen[..., None, None], axis=1)
    predicted += rng.normal(size=predicted.shape) * rng.uniform(0.1, 4, (frames, places, 1, 1))
    is_false = rng.random((frames, places)) < 0.2
    predicted[is_false] = rng.uniform(0, 200, predicted.shape)[is_false]
    predicted[rng.random((frames, places)) < 0.2] = np.nan
    return predicted, rng.random((frames, places)), labelled


def coco_ap(predicted, score, labelled, sigmas):
    """AP of pycocotools over animals with at least two labelled points, area as DeepLabCut."""
    images, truths, found = [], [], []
    for i in range(len(labelled)):
        images.append({"id": i + 1, "width": 200, "height": 200})
        for wanted in labelled[i]:
            seen = np.isfinite(wanted).all(-1)
            if seen.sum() < 2:
                continue
            low, sides = wanted[seen].min(0), np.ptp(wanted[seen], axis=0)
            flat = np.column_stack([np.nan_to_num(wanted), 2 * seen]).ravel().tolist()
            truths.append({
                "id": len(truths) + 1, "image_id": i + 1, "category_id": 1, "keypoints": flat, "iscrowd": 0,
                "bbox": [*low.tolist(), *sides.tolist()], "num_keypoints": int(seen.sum()),
                "area": float(sides.prod()),
            })  # fmt: skip
        for points, of_animal in zip(predicted[i], score[i], strict=True):
            if np.isfinite(points).any():
                # pycocotools takes an OKS of NaN for a match: a point that is not predicted is far away instead.
                flat = np.column_stack([np.nan_to_num(points, nan=1e4), np.ones(len(points))]).ravel().tolist()
                found.append({"image_id": i + 1, "category_id": 1, "keypoints": flat, "score": float(of_animal)})
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        categories = [{"id": 1, "name": "animal"}]
        truth.dataset = {"images": images, "annotations": truths, "categories": categories, "info": {}}
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), "keypoints")
        evaluation.params.kpt_oks_sigmas = sigmas
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigmas", [np.full(5, 0.1), np.full(5, 0.025), COCO_SIGMAS], ids=["0.1", "0.025", "coco"])
def test_ap_is_that_of_pycocotools(sigmas, seed):
    predicted, score, labelled = random_case(seed, keypoints=len(sigmas))
    wanted = coco_ap(predicted, score, labelled, sigmas)
    assert 0.02 < wanted < 0.9
    np.testing.assert_allclose(animals_ap(predicted, score, labelled, sigmas.tolist()), wanted, rtol=0, atol=1e-12)
    if (sigmas == sigmas[0]).all():
        in_summary = summarize_animals(predicted, score, labelled, 0.5)["oks_ap"][f"{sigmas[0]:g}"]
        np.testing.assert_allclose(in_summary, wanted, rtol=0, atol=1e-12)


def test_missed_and_false_animals_are_counted_next_to_the_errors():
    pose = np.array([[0.0, 0], [30, 0], [0, 40]])
    labelled = np.full((3, 2, 3, 2), np.nan)
    labelled[0, 0], labelled[0, 1], labelled[1, 0] = pose, pose + 200, pose
    predicted, score = np.full((3, 3, 3, 2), np.nan), np.zeros((3, 3))
    # Frame 0: one animal 2 px off, one unsure and so missed. Frame 1: found, one point not predicted, and found twice.
    predicted[0, 0], score[0, 0] = pose + (0, 2), 0.9
    predicted[0, 1], score[0, 1] = pose + 200, 0.3
    predicted[1, 0], score[1, 0] = pose + (1, 0), 0.8
    predicted[1, 0, 2] = np.nan
    predicted[1, 1], score[1, 1] = pose + (5, 0), 0.7
    # Frame 2 is empty, with a false animal.
    predicted[2, 2], score[2, 2] = pose, 0.6
    found = summarize_animals(predicted, score, labelled, 0.5)
    assert {name: found[name] for name in ("frames", "animals", "missed", "false")} == {
        "frames": 3, "animals": 3, "missed": 1, "false": 2,
    }  # fmt: skip
    assert found["recall"] == 2 / 3 and found["false_per_frame"] == 2 / 3
    assert found["mean_px_error"] == pytest.approx((3 * 2 + 2 * 1) / 5) and found["median_px_error"] == 2
    # AP ranks all predictions, also unsure ones.
    surer = summarize_animals(predicted, score, labelled, 0.2)
    assert surer["oks_ap"] == found["oks_ap"] and surer["missed"] == 0
    for order in ([1, 0], [0, 1]):
        assert summarize_animals(predicted, score, labelled[:, order], 0.5) == found


def test_without_animals_or_predictions_there_are_no_figures():
    nothing, pose = np.full((2, 1, 3, 2), np.nan), np.random.default_rng(0).uniform(0, 9, (2, 1, 3, 2))
    without = summarize_animals(nothing, np.zeros((2, 1)), pose, 0.5)
    assert without["recall"] == 0 and without["mean_px_error"] is None and without["oks_ap"] == {"0.1": 0, "0.025": 0}
    empty = summarize_animals(pose, np.ones((2, 1)), nothing, 0.5)
    assert empty["recall"] is None and empty["false"] == 2 and empty["oks_ap"] == {"0.1": None, "0.025": None}
