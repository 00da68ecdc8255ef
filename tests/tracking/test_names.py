"""The names of labelled individuals for the tracks of other videos, where their looks tell them apart."""

import dataclasses
import json
from pathlib import Path

import av
import cv2
import numpy as np
import pandas as pd
import pytest

from jaxpose import track
from jaxpose.checksums import write_json
from jaxpose.config import Config, DataConfig
from jaxpose.conversion.prediction_tables import read_table
from jaxpose.data.dataset import prepare
from jaxpose.formats.project import read_project
from jaxpose.pose.individuals import Individuals, learn, read_individuals, write_individuals
from jaxpose.poses import Poses
from jaxpose.prediction.labelled_individuals import learn_individuals
from jaxpose.tracking.origin import read_origin
from jaxpose.tracking.review_file import read_tracks
from tests.predicted_runs import predicted_run

KEYPOINTS, SIZE_PX, FRAMES = ("nose", "back", "tail"), (96, 64), 60
BODY = np.array([[-8.0, 0.0], [0.0, 0.0], [8.0, 0.0]])
ALIKE = ((90, 90, 90), (90, 90, 90))
COLOURS = ((200, 40, 40), (40, 40, 200))


def walking(seed: int, frames: int = FRAMES) -> np.ndarray:
    """Two animals that stay apart (frames, 2, 3, 2), each on either side by turns of `seed`."""
    random = np.random.default_rng(seed)
    centres = np.array([[24.0, 20.0], [70.0, 44.0]])[:: 1 if seed % 2 else -1]
    steps = random.normal(0, 0.6, (frames, 2, 2)).cumsum(axis=0).clip(-6, 6)
    turns = random.uniform(0, 2 * np.pi, 2)[:, None, None]
    turned = np.concatenate([BODY[:, :1] * np.cos(turns), BODY[:, :1] * np.sin(turns)], axis=2)
    return (centres + steps)[:, :, None] + turned


def painted(points_px: np.ndarray, colours: tuple) -> np.ndarray:
    image = np.full((SIZE_PX[1], SIZE_PX[0], 3), 170, np.uint8)
    for animal, colour in zip(points_px, colours, strict=True):
        for x, y in animal:
            cv2.circle(image, (round(x), round(y)), 4, colour, -1)
    return image


def video(file: Path, points_px: np.ndarray, colours: tuple) -> Path:
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": "10"})
        stream.width, stream.height, stream.pix_fmt = *SIZE_PX, "yuv420p"
        for animals in points_px:
            frame = av.VideoFrame.from_ndarray(painted(animals, colours), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file


def learned(folder: Path, colours: tuple, names: tuple[str, str] = ("Red one", "swap")) -> Individuals:
    """What is learnt from 24 labelled images, in which two animals have these colours."""
    points = np.concatenate([walking(seed, 6) for seed in range(4)])
    (images := folder / "labeled-data" / "day0").mkdir(parents=True)
    files = [f"labeled-data/day0/img{number:03d}.png" for number in range(len(points))]
    for file, animals in zip(files, points, strict=True):
        cv2.imwrite(str(images / Path(file).name), painted(animals, colours)[..., ::-1])
    columns = pd.MultiIndex.from_product(
        [["person"], names, KEYPOINTS, ["x", "y"]], names=["scorer", "individuals", "bodyparts", "coords"]
    )
    pd.DataFrame(points.reshape(len(points), 12), files, columns).to_csv(folder / "CollectedData.csv")
    data = DataConfig(project=str(folder))
    config, found = prepare(Config(data=data), read_project(data))
    result = learn_individuals(found, np.arange(len(found.poses.frames)), config.data)
    assert result is not None and result.names == tuple(sorted(names)) and result.checked.tolist() == [24, 24]
    return result


def detections_of(folder: Path, individuals: Individuals, seed: int, colours: tuple) -> Path:
    """The detections of a run that knows individuals; the animals of a frame are in no order."""
    truth = walking(seed)
    file = video(folder / f"day{seed}.mp4", truth, colours)
    points = truth.copy()
    points[::2] = points[::2, ::-1]
    tables = {file: (points, np.full(points.shape[:3], 0.9))}
    run = predicted_run(folder / f"run{seed}", folder, tables, animals=2, body_size_px=16.0, keypoint_names=KEYPOINTS)
    write_individuals(run / "individuals.json", individuals)
    return run / "video_preds" / f"day{seed}_detections.csv"


def tracked(detections: Path, *flags: str) -> Poses:
    out = detections.with_name("tracks.csv")
    assert track.main([str(detections), "--animals", "2", "--out", str(out), "--overwrite", *flags]) == 0
    return read_table(out, several=True).poses.by_identity()


@pytest.mark.parametrize(
    ("seed", "names", "shown_as"),
    # An answer could not name a track with a space, or one that is called as an answer; formulas, and DeepLabCut's name
    # of body parts of no animal, mean something else in tables.
    [(10, ("Red one", "swap"), ("Red_one", "swap_")), (11, ("=cmd", "single"), ("_", "single_"))],
)
def test_tracks_get_the_names_of_the_individuals_that_they_look_like(
    tmp_path: Path, seed: int, names: tuple[str, str], shown_as: tuple[str, str]
) -> None:
    """Whichever of them is seen first, and wherever it is."""
    known = learned(tmp_path / "labels", COLOURS, ("Ann", "Bob"))
    assert known.right.tolist() == known.checked.tolist() and known.is_reliable
    detections = detections_of(tmp_path, dataclasses.replace(known, names=names), seed, COLOURS)
    found = tracked(detections)
    assert set(found.individuals) == set(shown_as)
    for place, name in enumerate(shown_as):
        shown = found.points_px[:, found.individuals.index(name)]
        np.testing.assert_allclose(shown, walking(seed)[:, place], atol=1e-3)


def test_answers_name_the_individuals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    detections = detections_of(tmp_path, learned(tmp_path / "labels", COLOURS, ("Ann", "Bob")), 10, COLOURS)
    first = tracked(detections)
    header = "answer,round,frame_from,frame_to,track_a,track_b"
    (answers := tmp_path / "answers.csv").write_text(f"{header}\nBob Ann,0,48,52,Ann,Bob\n")
    second = tracked(detections, "--corrections", str(answers))
    # The names follow the looks of most frames, and the exchange is where the person said.
    order = [second.individuals.index(name) for name in first.individuals]
    same = np.isclose(second.points_px[:, order], first.points_px).all(axis=(1, 2, 3))
    assert {True, False} == set(same.tolist()) and len(np.flatnonzero(np.diff(same))) == 1
    # What is learnt later changes the names, but not what the answer says.
    other = learned(tmp_path / "other", COLOURS, ("Bob", "Ann"))
    write_individuals(detections.parents[1] / "individuals.json", other)
    third = tracked(detections, "--corrections", str(answers))
    order = [third.individuals.index(name) for name in ("Bob", "Ann")]
    expected = second.points_px[:, [second.individuals.index(name) for name in ("Ann", "Bob")]]
    np.testing.assert_array_equal(third.points_px[:, order], expected)
    # A track may also be called by its number, whether it has a name or not.
    numbers = {name: f"animal{first.individuals.index(name) + 1}" for name in ("Ann", "Bob")}
    named = tracked(detections)
    (answers := tmp_path / "numbers.csv").write_text(f"{header}\nswap,0,48,52,{numbers['Ann']},{numbers['Bob']}\n")
    by_number = tracked(detections, "--corrections", str(answers))
    (detections.parents[1] / "individuals.json").unlink()
    tracked(detections)
    without = tracked(detections, "--corrections", str(answers))
    assert set(without.individuals) == {"animal1", "animal2"} and len(named.individuals) == 2
    np.testing.assert_array_equal(np.sort(without.points_px, axis=1), np.sort(by_number.points_px, axis=1))
    answers.write_text(f"{header}\nBob Eve,0,48,52,animal1,animal2\n")
    capsys.readouterr()
    out = detections.with_name("tracks.csv")
    assert track.main([str(detections), "--animals", "2", "--out", str(out), "--corrections", str(answers)]) == 2
    assert "there is no track Bob in round 0; it has animal1, animal2" in capsys.readouterr().err


def test_animals_that_look_alike_keep_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Labels of animals that nothing tells apart.
    alike = learned(tmp_path / "alike", ALIKE)
    assert not alike.is_reliable
    assert set(tracked(detections_of(tmp_path, alike, 10, COLOURS)).individuals) == {"animal1", "animal2"}
    # A video of other animals: both look the same.
    known = learned(tmp_path / "labels", COLOURS)
    assert set(tracked(detections_of(tmp_path, known, 11, ALIKE)).individuals) == {"animal1", "animal2"}
    # Without the video, a line says so.
    detections = detections_of(tmp_path, known, 12, COLOURS)
    (tmp_path / "day12.mp4").unlink()
    assert set(tracked(detections).individuals) == {"animal1", "animal2"}
    assert "tracks have numbers instead of the names Red one, swap: there is no video" in capsys.readouterr().out
    video(tmp_path / "day12.mp4", walking(12, 20), COLOURS)
    assert set(tracked(detections).individuals) == {"animal1", "animal2"}
    assert "day12.mp4 has 20 frames, but the detections have 60" in capsys.readouterr().out


def test_what_nothing_tells_apart_is_not_taken_for_known() -> None:
    """Neither features that are all equal or unknown, nor looks that belong to a video and not to an animal."""
    images = np.repeat(np.arange(40), 2)
    identity = np.tile([0, 1], 40)
    poses = Poses(
        KEYPOINTS, images.tolist(), np.zeros((80, 1, 3, 2)), identity=identity[:, None], individuals=("Ann", "Bob")
    )
    random = np.random.default_rng(0)
    for features in (np.full((80, 12), 0.5), np.full((80, 12), np.nan)):
        assert learn(features, poses, images, images // 10, 1).right.sum() == 0
    # In each of 20 videos, both animals have a look of their own that no other video has.
    videos = images // 2
    looks = random.normal(size=(20, 2, 12))[videos, identity]
    found = learn(looks + random.normal(0, 0.1, looks.shape), poses, images, videos, 1)
    assert found.checked.sum() == 80 and not found.is_reliable
    # In one image, nothing can be held out.
    assert learn(looks[:2], poses.at([0, 1]), images[:2], videos[:2], 1).checked.sum() == 0


@pytest.mark.parametrize(
    "change",
    [{"mean": [0.5]}, {"names": "AB"}, {"weights": [[1.0], [2.0, 3.0]]}, {"radius_px": None}, {"checked": ["many"]}],
)
def test_a_file_that_jaxpose_did_not_write_is_refused(
    tmp_path: Path, change: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    detections = detections_of(tmp_path, learned(tmp_path / "labels", COLOURS), 10, COLOURS)
    file = detections.parents[1] / "individuals.json"
    content = json.loads(file.read_text())
    write_json(file, {name: value for name, value in content.items() if name != "sha256"} | change)
    assert track.main([str(detections), "--animals", "2", "--out", str(detections.with_name("tracks.csv"))]) == 2
    error = capsys.readouterr().err
    assert "individuals.json is not as jaxpose wrote it; write it again with jaxpose evaluate" in error


def test_the_classifier_comes_back_from_its_file(tmp_path: Path) -> None:
    known = learned(tmp_path / "labels", COLOURS)
    write_individuals(tmp_path / "a.json", known)
    again = read_individuals(tmp_path / "a.json")
    features = np.random.default_rng(0).normal(size=(5, known.mean.size))
    np.testing.assert_array_equal(again.log_probabilities(features), known.log_probabilities(features))
    assert (again.names, again.keypoint_names) == (known.names, known.keypoint_names)
    assert again.right.tolist() == known.right.tolist()
    np.testing.assert_allclose(np.exp(known.log_probabilities(features)).sum(axis=1), 1)


def test_a_single_track_has_its_name_in_the_review(tmp_path: Path) -> None:
    detections = detections_of(tmp_path, learned(tmp_path / "labels", COLOURS, ("Ann", "Bob")), 10, COLOURS)
    out = detections.with_name("tracks.csv")
    assert track.main([str(detections), "--animals", "1", "--out", str(out)]) == 0
    origin = read_origin(out.with_name("tracks_review.csv"))
    assert read_tracks(out, origin).poses.individuals == tuple(origin.names[-1]) != ("animal1",)
