"""Images of more than 8 bits: one value is white in all of them, the same in training and in prediction."""

import dataclasses
import io
import logging
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from jaxpose.config import Config, DataConfig, resolve
from jaxpose.data import dataset
from jaxpose.data.image_file import PixelRule, ValueRange, choose_white, decode_image, describe_white, image_facts
from jaxpose.errors import UserError
from jaxpose.formats.project import prepare, read_project
from jaxpose.prediction.video_tables import Incomplete, predict_images
from tests.random_predictor import predictor_of

GREY = np.random.default_rng(0).integers(0, 256, (20, 30), np.uint8)
GREY[0, 0] = 255


def tiff(values: np.ndarray, inverted: bool = False, planes: int = 1) -> bytes:
    """Returns an uncompressed TIFF file of values (h, w) or (h, w, channels)."""
    return tiff_stack([values], inverted, planes)


def tiff_stack(pages: list[np.ndarray], inverted: bool = False, planes: int = 1) -> bytes:
    """Returns a TIFF file with a page for each of several such values."""
    content, link = b"II*\0" + bytes(4), 4
    for values in pages:
        channels = values.shape[2] if values.ndim == 3 else 1
        bits = 8 * values.itemsize
        samples = struct.pack("<4H", bits, bits, bits, bits)
        data = np.ascontiguousarray(values.transpose(2, 0, 1) if planes == 2 else values).tobytes()
        start = len(content) + len(samples)
        directory = start + len(data)
        colours = 2 if channels > 2 else 0 if inverted else 1
        tags = {256: values.shape[1], 257: values.shape[0], 258: bits, 259: 1, 262: colours, 273: start,
                277: channels, 278: values.shape[0], 279: len(data), 284: planes,
                339: {"u": 1, "i": 2, "f": 3}[values.dtype.kind]}  # fmt: skip
        content = content[:link] + struct.pack("<I", directory) + content[link + 4 :]
        content += samples + data + struct.pack("<H", len(tags))
        for tag, value in tags.items():
            # The bits of each channel do not fit into an entry.
            is_apart = tag == 258 and channels > 2
            content += struct.pack("<HHII", *((tag, 3, channels, start - 8) if is_apart else (tag, 4, 1, value)))
        link = len(content)
        content += bytes(4)
    return content


def png(values: np.ndarray) -> bytes:
    return cv2.imencode(".png", values if values.ndim == 2 else values[..., ::-1])[1].tobytes()


def project(folder: Path, images: dict[str, bytes]) -> DataConfig:
    """Writes a project of Lightning Pose."""
    (folder / "labeled-data/a").mkdir(parents=True)
    rows = ["scorer,me,me", "bodyparts,nose,nose", "coords,x,y"]
    for name, content in images.items():
        (folder / "labeled-data/a" / name).write_bytes(content)
        rows.append(f"labeled-data/a/{name},5,5")
    (folder / "CollectedData.csv").write_text("\n".join(rows) + "\n")
    return DataConfig(project=str(folder), input_width_px=32, input_height_px=32)


DEEP = {
    "12 bits": (GREY.astype(np.uint16) << 4, 4095),
    "10 bits": (GREY.astype(np.uint16) << 2, 1023),
    "14 bits": (GREY.astype(np.uint16) << 6, 16383),
    "8 bits": (GREY.astype(np.uint16), 255),
    "signed": (GREY.astype(np.int16) << 6, 16383),
    "fractions": ((GREY / 255).astype(np.float32), 1),
    "float64": (GREY / 255, 1),
    "floats to 255": (GREY.astype(np.float32), 255),
    "colour": (np.dstack([GREY, GREY[::-1], GREY.T.reshape(20, 30)]).astype(np.uint16) << 4, 4095),
    "colour in fractions": ((np.dstack([GREY, GREY[::-1], GREY]) / 255).astype(np.float32), 1),
}


@pytest.mark.parametrize("name", DEEP)
def test_the_bits_that_count_become_the_pixels(tmp_path: Path, name: str) -> None:
    values, white = DEEP[name]
    whole = 255 if white == 1 else 1
    expected = np.rint(values.astype(float) * whole / ((white + 1) / 256 if white > 255 else 1)).astype(int)
    files = {"deep.tif": tiff(values)} | ({"deep.png": png(values)} if values.dtype == np.uint16 else {})
    config, found = prepare(resolve(Config(data=project(tmp_path, files | {"eight.png": png(GREY)}))))
    assert config.data.white == found.white == white
    assert any(f"{white} becomes white (data.white), the largest value is" in note for note in found.notes)
    for path in found.paths[:-1]:
        pixels = decode_image(path.read_bytes(), PixelRule(white=config.data.white))
        np.testing.assert_array_equal(
            pixels, expected if values.ndim == 3 else np.repeat(expected[..., None], 3, axis=2)
        )
    # The network sees the same, and the run keeps the value.
    seen = dataset.decode(found, config)[0].pixels[:, 0]
    if values.ndim == 2:
        np.testing.assert_array_equal(seen[0], seen[-1])
    darker = dataclasses.replace(config.data, project=str(tmp_path))
    assert read_project(darker).white == white


def test_one_value_is_white_in_all_images(tmp_path: Path) -> None:
    deep = GREY.astype(np.uint16)
    data = project(tmp_path, {"dark.png": png(deep), "bright.png": png(deep << 4)})
    config, found = prepare(resolve(Config(data=data)))
    assert config.data.white == 4095
    dark, bright = (decode_image(path.read_bytes(), found.pixel_rule(4095.0)).max() for path in found.paths)
    assert (dark, bright) == (15, 255)


def test_the_whole_range_of_16_bits_keeps_its_pixels_and_its_run(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    grey, colour = rng.integers(0, 65536, (20, 30), np.uint16), rng.integers(0, 65536, (20, 30, 3), np.uint16)
    files = {"a.png": png(grey), "b.tif": tiff(grey), "c.tif": tiff(colour), "d.png": png(colour)}
    config, found = prepare(resolve(Config(data=project(tmp_path, files))))
    assert config.data.white == found.white == 65535
    for path in found.paths:
        content = path.read_bytes()
        before = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        for white in (0, 65535):
            np.testing.assert_array_equal(decode_image(content, PixelRule(white=float(white))), before[..., ::-1])


def test_an_inverted_file_is_not_a_negative() -> None:
    values = GREY.astype(np.uint16) << 4
    content = tiff(4095 - values, inverted=True)
    np.testing.assert_array_equal(decode_image(content, PixelRule(white=4095.0))[..., 0], GREY)


@pytest.mark.parametrize(
    "values, white, reason",
    [
        (GREY.astype(np.float32) - 3, 255, "values from -3 to 252; they must be finite and at least 0"),
        (np.where(GREY == 255, np.nan, GREY / 255).astype(np.float32), 1, "pixels that are NaN; they must be"),
        ((GREY / 255).astype(np.float16), 1, "TIFF file of 16-bit floating-point numbers; save it with 32-bit"),
        (np.dstack([GREY / 255] * 3).astype(np.float16), 1, "TIFF file of 16-bit floating-point numbers"),
        (GREY.astype(np.int8), 0, "TIFF file of signed 8-bit numbers, -128 to 127"),
        (GREY.astype(np.uint32) * 300, 0, "values up to 76500, and the run has no labelled image of more than 8"),
        (GREY.astype(np.int16) - 5, 255, "values from -5 to 250"),
        ((GREY / 255).astype(np.float32), 0, "floating-point values up to 1, and the run has no labelled image"),
        (GREY.astype(np.uint16) << 4, 0, "holds values up to 4080, and the run has no .*save it with 8 bits"),
        ((GREY / 255).astype(np.float32), 4095, "fractions up to 1, but data.white is 4095"),
        (GREY.astype(np.uint16), 1, "values up to 255, but data.white is 1"),
        (np.dstack([GREY] * 2).astype(np.uint16), 0, "a TIFF file of 16 bits with 2 channels; save it in grey"),
    ],
)  # fmt: skip
def test_values_without_a_meaning_are_refused(values: np.ndarray, white: float, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        decode_image(tiff(values), PixelRule(white=float(white)))


def test_colours_in_planes_are_refused() -> None:
    with pytest.raises(UserError, match="16 bits with 3 channels, each in a plane of its own"):
        image_facts(tiff(np.dstack([GREY] * 3).astype(np.uint16), planes=2))


def test_no_value_suits_fractions_and_whole_numbers() -> None:
    fractions, whole = ValueRange(0.9, True), ValueRange(4000, False)
    with pytest.raises(UserError, match="1 image with fractions and others with values up to 4000: no"):
        choose_white([fractions, whole])
    with pytest.raises(UserError, match="values up to 70000, more than 16 bits; give the value that becomes white"):
        choose_white([whole, ValueRange(70000, True)])
    assert choose_white([ValueRange(0, True), whole]) == 4095
    assert choose_white([ValueRange(65535, True)]) == 65535
    assert describe_white([whole], 1023.0)[0].endswith("; all larger values, in 1 image, also become white")


def test_predicted_images_have_the_white_of_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    predictor = predictor_of("heatmap")
    deep = GREY.astype(np.uint16)
    files = {"a.png": png(GREY), "b.png": png(deep << 4), "c.tif": tiff(deep << 4), "d.tif": tiff(deep << 8)}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in files]

    def predict(white: float) -> np.ndarray:
        caplog.clear()
        predictor.config.data.white = white
        used = paths[:3] if white else paths
        predict_images(predictor, used, tmp_path / "p.csv", lambda: False, lambda rows: None)
        return np.genfromtxt(tmp_path / "p.csv", delimiter=",", skip_header=3)[:, 1:]

    with caplog.at_level(logging.INFO, "jaxpose"):
        found = predict(4095.0)
        # Rows of a batch may take another path through the code of XLA on a processor with AVX2.
        np.testing.assert_allclose(found, np.repeat(found[:1], 3, axis=0), rtol=0, atol=1e-4)
        assert "2 images of more than 8 bits: 4095 becomes white" in caplog.text
        predict(1023.0)
        assert (
            caplog.records[-1].levelname == "WARNING" and "larger values, in 2 images, also become white" in caplog.text
        )
        # A run without such labelled images, or of before the option.
        paths[:] = [paths[0], paths[3], paths[1], paths[2]]
        with pytest.raises(Incomplete, match="b.png: the image holds values up to 4080, and the run has no labelled"):
            predict(0.0)
        del paths[2:]
        whole = predict(0.0)
        np.testing.assert_allclose(whole, found[:2], rtol=0, atol=1e-4)
        assert "65535 becomes white" in caplog.text and caplog.records[-1].levelname == "INFO"
        paths[:] = [tmp_path / "b.png", tmp_path / "c.tif"]
        predict(65535.0)
        assert caplog.records[-1].levelname == "WARNING" and "all of them are nearly black" in caplog.text
    paths[0].write_bytes(tiff((GREY / 255).astype(np.float32)))
    with pytest.raises(
        Incomplete, match="b.png: .* floating-point values up to 1, and(.|\n)*c.tif: .* up to 4080, and"
    ):
        predict(0.0)


def test_an_image_of_8_bits_has_no_white() -> None:
    stream = io.BytesIO()
    Image.fromarray(GREY).save(stream, "JPEG")
    for content in (stream.getvalue(), png(GREY)):
        assert image_facts(content).values is None
        plain = decode_image(content)
        np.testing.assert_array_equal(decode_image(content, PixelRule(white=4095.0)), plain)
