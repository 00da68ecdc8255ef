"""EXIF orientation: labels and pixels count the same picture, by the sizes in the label file or by the option."""

import csv
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from jaxpose.check.page import write_check
from jaxpose.config import Config, DataConfig, resolve
from jaxpose.conversion.label_files import Target, convert_labels
from jaxpose.data.image_file import (
    STORED,
    UPRIGHT,
    PixelRule,
    decode_image,
    image_facts,
    read_orientation,
    turn_back,
    turn_upright,
)
from jaxpose.data.images import load_frames
from jaxpose.data.project import Project, read_project
from jaxpose.errors import UserError
from jaxpose.formats.project import prepare
from jaxpose.formats.project import read_project as read_any
from jaxpose.prediction.index import row_of
from jaxpose.prediction.video_tables import Incomplete, predict_images
from tests.random_predictor import predictor_of

ORIENTATIONS = range(1, 9)
FORMATS = ("JPEG", "PNG", "TIFF", "WEBP")


def encoded(stored: np.ndarray, orientation: int, form: str = "PNG") -> bytes:
    """Returns an image file whose stored pixels are to be shown turned."""
    exif, stream = Image.Exif(), io.BytesIO()
    exif[0x010F], exif[0x0112] = "a maker of cameras", orientation
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(form, {})
    Image.fromarray(stored).save(stream, form, exif=exif, **options)
    return stream.getvalue()


def picture(size_px: tuple[int, int], number: int = 0) -> np.ndarray:
    """Returns a picture (h, w, 3) without any symmetry."""
    return np.random.default_rng(number).integers(0, 256, (size_px[1], size_px[0], 3), np.uint8)


@pytest.mark.parametrize("form", FORMATS)
def test_every_orientation_is_read_and_applied_as_pillow_does_it(form: str) -> None:
    stored = picture((7, 5))
    for orientation in ORIENTATIONS:
        shown = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded(stored, orientation))))
        upright = np.asarray(shown)
        np.testing.assert_array_equal(turn_upright(stored, orientation), upright)
        np.testing.assert_array_equal(turn_back(upright, orientation), stored)
        content = encoded(stored, orientation, form)
        assert read_orientation(content) == orientation
        facts = image_facts(content)
        assert facts.stored_px == (7, 5) and facts.size_px(UPRIGHT) == shown.size
        lossy = 60 if form == "JPEG" else 0
        for rule, expected in ((STORED, stored), (UPRIGHT, upright)):
            found = decode_image(content, PixelRule(rule)).astype(int)
            assert found.shape == expected.shape and np.abs(found - expected).max() <= lossy
        if orientation > 1:
            with pytest.raises(UserError, match=f"EXIF orientation {orientation} .*give data.orientation=upright or"):
                decode_image(content)


@pytest.mark.parametrize("form", FORMATS)
def test_a_damaged_header_states_no_orientation(form: str) -> None:
    content = encoded(picture((7, 5)), 6, form)
    for end in range(0, min(len(content), 200), 3):
        assert read_orientation(content[:end]) in (1, 6)
    for at in range(2, 60):
        read_orientation(content[:at] + b"\xff" + content[at + 1 :])


def coco(folder: Path, orientations: list[int], sizes: str, upright_px: tuple[int, int] = (20, 30)) -> DataConfig:
    """Writes a project whose labels count upright pixels, with the upright or the stored sizes in the label file."""
    (folder / "images").mkdir(parents=True)
    images, annotations = [], []
    for number, orientation in enumerate(orientations, 1):
        upright = picture(upright_px, number)
        stored = turn_back(upright, orientation)
        (folder / f"images/{number}.png").write_bytes(encoded(stored, orientation))
        height, width = (upright if sizes == UPRIGHT else stored).shape[:2]
        images.append({"id": number, "file_name": f"{number}.png", "width": width, "height": height})
        annotations.append({"id": number, "image_id": number, "category_id": 1, "keypoints": [3, 17, 2, 11, 4, 2]})
    category = {"id": 1, "name": "animal", "keypoints": ["nose", "tail"], "skeleton": []}
    tree = {"images": images, "annotations": annotations, "categories": [category]}
    (folder / "labels.json").write_text(json.dumps(tree))
    return DataConfig(project=str(folder / "labels.json"))


def frames_at_labels(project: Project, data: DataConfig) -> list[np.ndarray]:
    """Returns the pixels (k, 3) under the labels of each frame, which the network sees at its own size."""
    (size_px,) = {tuple(size) for size in project.sizes_px.tolist()}
    pixels = load_frames(project, data, size_px).pixels[:, 0]
    places = np.rint(project.keypoints_frame_px).astype(int)
    return [image[y, x] for image, (x, y) in zip(pixels, places.transpose(0, 2, 1), strict=True)]


def test_an_upright_size_in_the_label_file_decides(tmp_path: Path) -> None:
    """Also for turns that keep the size, and for images without an orientation."""
    config, found = prepare(resolve(Config(data=coco(tmp_path / "one", list(ORIENTATIONS), UPRIGHT))))
    assert found.orientation == config.data.orientation == UPRIGHT
    assert found.sizes_px.tolist() == [[20, 30]] * 8 and found.problems == ()
    note = "7 images with an EXIF orientation: labels and results are in upright pixels, because the label file gives"
    assert any(text.startswith(note) for text in found.notes)
    for number, colours in enumerate(frames_at_labels(found, config.data), 1):
        np.testing.assert_array_equal(colours, picture((20, 30), number)[[17, 4], [3, 11]])
    # The run keeps the decision: another label file that does not tell is read in the same way.
    other = dataclasses.replace(config.data, project=coco(tmp_path / "other", [6], STORED).project)
    assert read_any(other).sizes_px.tolist() == [[20, 30]]


@pytest.mark.parametrize(
    "orientation, sizes, upright_px",
    [
        (6, STORED, (20, 30)),
        (8, STORED, (20, 30)),
        (3, UPRIGHT, (20, 30)),
        (2, STORED, (20, 30)),
        (7, UPRIGHT, (25, 25)),
    ],
)
def test_what_no_size_tells_is_asked(tmp_path: Path, orientation: int, sizes: str, upright_px: tuple[int, int]) -> None:
    data = coco(tmp_path, [1, orientation], sizes, upright_px)
    with pytest.raises(UserError, match=f"1 of 2 rows(.|\n)*2.png has EXIF orientation {orientation} (.|\n)*=stored"):
        read_any(data)
    data = dataclasses.replace(data, orientation=UPRIGHT)
    for number, colours in enumerate(frames_at_labels(read_any(data), data), 1):
        np.testing.assert_array_equal(colours, picture(upright_px, number)[[17, 4], [3, 11]])
    stored = read_any(dataclasses.replace(data, orientation=STORED, on_bad_frame="skip"))
    assert stored.sizes_px[-1].tolist() == list(image_facts(stored.paths[-1].read_bytes()).stored_px)


def label_csv(folder: Path, orientation: int) -> DataConfig:
    """Writes a project of Lightning Pose whose labels count stored pixels of 30 x 20 px."""
    (folder / "labeled-data/a").mkdir(parents=True)
    for number in range(2):
        (folder / f"labeled-data/a/img{number}.jpg").write_bytes(encoded(picture((30, 20)), orientation, "JPEG"))
    header = [["scorer", "me", "me"], ["bodyparts", "nose", "nose"], ["coords", "x", "y"]]
    with open(folder / "CollectedData.csv", "w", newline="") as stream:
        csv.writer(stream).writerows([*header, *([f"labeled-data/a/img{number}.jpg", 25, 15] for number in range(2))])
    return DataConfig(project=str(folder))


def test_a_label_csv_gives_no_sizes(tmp_path: Path) -> None:
    data = label_csv(tmp_path, 8)
    with pytest.raises(UserError, match="CollectedData.csv:4: labeled-data/a/img0.jpg has EXIF orientation 8"):
        read_project(data)
    stored = read_project(dataclasses.replace(data, orientation=STORED))
    assert stored.sizes_px.tolist() == [[30, 20]] * 2
    with pytest.raises(UserError, match="has 20 x 30 pixels; outside of it: nose"):
        read_project(dataclasses.replace(data, orientation=UPRIGHT))


def test_checks_and_conversions_follow_the_decision(tmp_path: Path) -> None:
    data = coco(tmp_path / "project", [6, 3], UPRIGHT)
    assert write_check(Config(data=data), tmp_path / "check.html")[1] == []
    assert "no picture" not in (tmp_path / "check.html").read_text()
    lines = convert_labels(data, Target("coco", tmp_path / "out/labels.json"))
    assert any("are in upright pixels" in line for line in lines)
    again = read_any(DataConfig(project=str(tmp_path / "out/labels.json")))
    assert again.orientation == UPRIGHT and again.sizes_px.tolist() == [[20, 30]] * 2


def test_predictions_of_images_are_of_the_upright_or_the_stored_picture(tmp_path: Path) -> None:
    predictor = predictor_of("heatmap")
    upright, paths = picture((24, 40)), []
    for orientation in ORIENTATIONS:
        paths.append(tmp_path / f"{orientation}.png")
        paths[-1].write_bytes(encoded(turn_back(upright, orientation), orientation))

    def predict(rule: str, kept: str = "auto") -> np.ndarray:
        predictor.config.data.orientation, predictor.config.predict.orientation = kept, rule
        assert predict_images(predictor, paths, tmp_path / "predictions.csv", lambda: False, lambda rows: None) == 8
        return np.genfromtxt(tmp_path / "predictions.csv", delimiter=",", skip_header=3)[:, 1:]

    same = predict(UPRIGHT)
    # Rows of a batch may take another path through XLA's code on a processor with AVX2.
    np.testing.assert_allclose(same, np.repeat(same[:1], 8, axis=0), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(predict("run", kept=UPRIGHT), same)
    assert len(np.unique(predict(STORED, kept=UPRIGHT).round(2), axis=0)) == 8
    # A folder whose images were refused is predicted again with the flag.
    models = set()
    for predictor.config.predict.orientation in (UPRIGHT, STORED, "run"):
        models.add(row_of(tmp_path, tmp_path / "predictions.csv", tmp_path, paths, predictor).model)
    assert len(models) == 3
    predictor.config.data.orientation = "auto"
    with pytest.raises(Incomplete, match="2.png: the image has EXIF orientation 2 .*give --orientation upright or"):
        predict_images(predictor, paths, tmp_path / "predictions.csv", lambda: False, lambda rows: None)
