"""Frames land in the input exactly where their affine says, without aliasing, and are decoded once."""

import io
import os
import shutil
import struct
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jaxpose import cache, geometry
from jaxpose.config import DataConfig
from jaxpose.data.image_file import decode_image, image_facts
from jaxpose.data.images import input_size_px, load_frames
from jaxpose.data.project import read_project
from jaxpose.errors import UserError
from jaxpose.geometry import fit_image, fit_still

HEADER = "scorer,me,me\nbodyparts,nose,nose\ncoords,x,y\n"
# (frame size, input size, resize, crop): shrunk a little, a lot, anisotropically, enlarged, and by odd amounts.
FITS = [
    ((396, 406), (256, 256), "pad", ()),
    ((396, 406), (256, 256), "stretch", ()),
    ((397, 406), (128, 128), "pad", ()),
    ((641, 479), (256, 256), "pad", ()),
    ((1283, 1021), (256, 192), "pad", ()),
    ((1283, 1021), (128, 384), "stretch", ()),
    ((100, 70), (256, 256), "pad", ()),
    ((100, 300), (256, 128), "stretch", ()),
    ((64, 64), (64, 64), "pad", ()),
    ((500, 300), (128, 128), "pad", (41, 22, 301, 200)),
    ((500, 300), (128, 128), "stretch", (41, 22, 101, 200)),
]


def make_project(folder: Path, sizes_px: list[tuple[int, int]], **options) -> DataConfig:
    rng = np.random.default_rng(0)
    (folder / "labeled-data").mkdir(parents=True, exist_ok=True)
    rows = []
    for number, (width, height) in enumerate(sizes_px):
        name = f"labeled-data/img{number}.png"
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(folder / name)
        rows.append(f"{name},5,5\n")
    (folder / "CollectedData.csv").write_text(HEADER + "".join(rows))
    return DataConfig(project=str(folder), **options)


def draw_dot(size_px: tuple[int, int], centre_px: np.ndarray, sigma_px: np.ndarray) -> np.ndarray:
    x, y = np.arange(size_px[0]), np.arange(size_px[1])[:, None]
    dot = np.exp(-0.5 * (((x - centre_px[0]) / sigma_px[0]) ** 2 + ((y - centre_px[1]) / sigma_px[1]) ** 2))
    return np.repeat(np.rint(255 * dot).astype(np.uint8)[..., None], 3, axis=-1)


@pytest.mark.parametrize("fit", FITS, ids=str)
def test_a_dot_lands_where_the_affine_says(fit: tuple) -> None:
    frame_size, size, resize, crop = fit
    affine = geometry.input_from_frame(frame_size, size, resize, crop)
    scale = np.diag(affine[:, :2])
    rng = np.random.default_rng(1)
    x, y, width, height = crop or (0, 0, *frame_size)
    sigma = np.maximum(1.5, 1.0 / scale)
    for share in rng.uniform(0.0, 1.0, (4, 2)):
        margin = 6 * sigma
        centre = np.array([x, y]) + margin + share * (np.array([width, height]) - 1 - 2 * margin)
        result = fit_image(draw_dot(frame_size, centre, sigma), affine, size, crop)
        assert result.shape == (size[1], size[0], 3) and result.dtype == np.uint8
        mass = result[..., 0].astype(np.float64)
        total = mass.sum()
        found = [(mass * np.arange(size[0])).sum() / total, (mass * np.arange(size[1])[:, None]).sum() / total]
        np.testing.assert_allclose(found, geometry.apply(affine, centre[None])[0], atol=0.05)


@pytest.mark.parametrize("fit", FITS, ids=str)
def test_a_ramp_keeps_its_values_and_the_rest_is_black(fit: tuple) -> None:
    frame_size, size, resize, crop = fit
    affine = geometry.input_from_frame(frame_size, size, resize, crop)
    ramp = 20 + 200 * np.linspace(0, 1, frame_size[0])
    image = np.repeat(np.tile(np.rint(ramp), (frame_size[1], 1)).astype(np.uint8)[..., None], 3, axis=-1)
    result = fit_image(image, affine, size, crop)
    grid = np.stack(np.meshgrid(np.arange(size[0]), np.arange(size[1])), axis=-1).astype(np.float64)
    place = geometry.apply(geometry.invert(affine), grid)
    x, y, width, height = crop or (0, 0, *frame_size)
    low, high = np.array([x, y]) - 0.5, np.array([x + width, y + height]) - 0.5
    inside = ((place >= low - 1e-6) & (place <= high + 1e-6)).all(axis=-1)
    np.testing.assert_array_equal(result.any(axis=-1), inside)
    expected = np.interp(place[..., 0], np.arange(frame_size[0]), ramp)
    # At the rim the blurred, repeated border departs from the ramp by a share of one input pixel.
    slope = 200 / frame_size[0] / affine[0, 0]
    assert np.abs(result[..., 0] - expected)[inside].max() <= 1.6 + slope
    rim_px = 4 / affine[0, 0]
    deep = ((place >= low + 0.5 + rim_px) & (place <= high - 0.5 - rim_px)).all(axis=-1) & inside
    assert not deep.any() or np.abs(result[..., 0] - expected)[deep].max() <= 1.6


def test_the_same_size_changes_nothing() -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 96, 3), np.uint8)
    for resize in ("pad", "stretch"):
        affine = geometry.input_from_frame((96, 64), (96, 64), resize)
        np.testing.assert_array_equal(fit_image(image, affine, (96, 64)), image)


@pytest.mark.parametrize("side_px", [200, 300, 500, 1000])
def test_fine_patterns_do_not_alias(side_px: int) -> None:
    board = (np.indices((side_px, side_px)).sum(axis=0) % 2 * 255).astype(np.uint8)
    image = np.repeat(board[..., None], 3, axis=-1)
    affine = geometry.input_from_frame((side_px, side_px), (128, 128), "pad")
    result = fit_image(image, affine, (128, 128))[2:-2, 2:-2].astype(np.float64)
    assert abs(result.mean() - 127.5) < 2 and result.std() < 20


@pytest.mark.parametrize(
    ("size_px", "count", "expected"),
    [
        ((396, 406), 3, 256),
        ((396, 191), 3, 128),
        ((396, 192), 3, 256),
        ((1280, 1024), 500, 256),
        ((1280, 1024), 501, 384),
        ((1024, 1024), 501, 256),
    ],
)
def test_the_size_of_the_input_by_the_frames(
    tmp_path: Path, size_px: tuple[int, int], count: int, expected: int
) -> None:
    folder = tmp_path / "labeled-data"
    folder.mkdir()
    Image.new("L", size_px).save(folder / "0.png")
    for number in range(1, count):
        os.link(folder / "0.png", folder / f"{number}.png")
    rows = "".join(f"labeled-data/{number}.png,1,1\n" for number in range(count))
    (tmp_path / "CollectedData.csv").write_text(HEADER + rows)
    data = DataConfig(project=str(tmp_path))
    assert input_size_px(read_project(data), data) == (expected, expected)
    data.input_width_px, data.input_height_px = 320, 64
    assert input_size_px(read_project(data), data) == (320, 64)


def test_the_crop_decides_the_size_of_the_input(tmp_path: Path) -> None:
    data = make_project(tmp_path, [(396, 406)], crop_px=(0, 0, 396, 168))
    assert input_size_px(read_project(data), data) == (128, 128)


def test_the_real_frames_agree_with_another_resizer(real_data: Path) -> None:
    data = DataConfig(project=str(real_data / "mirror-mouse-example"), resize="stretch")
    project = read_project(data)
    frames = load_frames(project, data, (256, 256))
    assert frames.pixels.shape == (90, 1, 256, 256, 3) and frames.pixels.dtype == np.uint8
    for row in (0, 44, 89):
        image = Image.open(project.paths[row]).convert("RGB")
        reference = np.asarray(image.resize((256, 256), Image.Resampling.BILINEAR)).astype(np.float64)
        assert np.abs(frames.pixels[row, 0] - reference).mean() < 1.5
    points = geometry.apply(frames.input_from_frame, project.keypoints_frame_px)
    back = geometry.apply(frames.frame_from_input.astype(np.float64), points)
    np.testing.assert_allclose(back, project.keypoints_frame_px, atol=1e-3)


def test_the_real_frames_are_the_input_that_lightning_pose_made_of_them(real_data: Path) -> None:
    """Its input is scaled by ImageNet's mean and deviation; a crop is resized as a frame of its own."""
    with np.load(real_data / "lightning-pose-run" / "forward.npz") as arrays:
        rows, scaled = arrays["rows"], arrays["input"]
    grey = 255 * (scaled.transpose(0, 2, 3, 1) * [0.229, 0.224, 0.225] + [0.485, 0.456, 0.406])
    data = DataConfig(project=str(real_data / "mirror-mouse-example"), resize="lightning_pose")
    project = read_project(data)
    np.testing.assert_allclose(load_frames(project, data, (128, 128)).pixels[rows, 0], grey, rtol=0, atol=1e-3)
    image = np.asarray(Image.open(project.paths[0]).convert("RGB"))
    affine = geometry.input_from_frame((396, 406), (64, 32), "lightning_pose", (10, 20, 300, 200))
    cropped = fit_still(image, affine, (64, 32), "lightning_pose", (10, 20, 300, 200))
    whole = geometry.input_from_frame((300, 200), (64, 32), "lightning_pose")
    np.testing.assert_array_equal(cropped, fit_still(image[20:220, 10:310], whole, (64, 32), "lightning_pose"))


def test_each_size_has_its_own_affine(tmp_path: Path) -> None:
    data = make_project(tmp_path, [(64, 48), (128, 128), (50, 100)])
    project = read_project(data)
    frames = load_frames(project, data, (64, 64))
    for row, size_px in enumerate([(64, 48), (128, 128), (50, 100)]):
        affine = geometry.input_from_frame(size_px, (64, 64), "pad")
        np.testing.assert_array_equal(frames.input_from_frame[row], affine)
        np.testing.assert_allclose(frames.frame_from_input[row], geometry.invert(affine), rtol=1e-6)
        image = np.asarray(Image.open(project.paths[row]))
        np.testing.assert_array_equal(frames.pixels[row, 0], fit_image(image, affine, (64, 64)))


def test_every_kind_of_image_becomes_8_bit_rgb(tmp_path: Path) -> None:
    image = Image.new("RGB", (52, 34), (200, 100, 50))
    images = {
        "rgb.png": (image, (200, 100, 50)),
        "rgba.png": (image.convert("RGBA"), (200, 100, 50)),
        "palette.png": (image.convert("P", palette=Image.Palette.ADAPTIVE), (200, 100, 50)),
        "grey.png": (Image.new("L", (52, 34), 77), (77, 77, 77)),
        "deep.png": (Image.fromarray(np.full((34, 52), 51400, np.uint16)), (200, 200, 200)),
        "cmyk.jpg": (image.convert("CMYK"), (200, 100, 50)),
        "rgb.jpg": (image, (200, 100, 50)),
    }
    for name, (picture, colour) in images.items():
        picture.save(tmp_path / name)
        pixels = decode_image((tmp_path / name).read_bytes())
        assert pixels.shape == (34, 52, 3) and pixels.dtype == np.uint8
        assert np.abs(pixels.astype(int) - colour).max() <= 3, name


def test_large_sets_are_mapped_from_the_cache_and_reused(tmp_path: Path, cache_folder: Path) -> None:
    data = make_project(tmp_path, [(64, 48)] * 5)
    project = read_project(data)
    in_memory = load_frames(project, data, (64, 64))
    assert not isinstance(in_memory.pixels, np.memmap)
    shutil.rmtree(cache_folder)
    data.memory_limit_gib = 0.0
    mapped = load_frames(project, data, (64, 64))
    assert isinstance(mapped.pixels, np.memmap) and not mapped.pixels.flags.writeable
    np.testing.assert_array_equal(mapped.pixels, in_memory.pixels)

    # A second run reads no image: there is none.
    for path in project.paths:
        path.unlink()
    again = load_frames(project, data, (64, 64))
    np.testing.assert_array_equal(again.pixels, in_memory.pixels)
    with pytest.raises(FileNotFoundError):
        load_frames(project, data, (32, 32))
    assert len(list((cache_folder / "frames").iterdir())) == 1


def test_small_sets_are_decoded_once_and_later_starts_read_no_image(tmp_path: Path, cache_folder: Path) -> None:
    data = make_project(tmp_path, [(64, 48)] * 5)
    project = read_project(data)
    decoded = load_frames(project, data, (64, 64))
    for path in project.paths:
        path.unlink()
    kept = load_frames(project, data, (64, 64))
    np.testing.assert_array_equal(kept.pixels, decoded.pixels)
    # Nothing of the cache folder is used later.
    shutil.rmtree(cache_folder)
    np.testing.assert_array_equal(kept.pixels, decoded.pixels)


@pytest.mark.parametrize("change", ["no folder", "no room"])
def test_small_sets_need_no_cache(tmp_path: Path, cache_folder: Path, change: str) -> None:
    data = make_project(tmp_path, [(64, 48)] * 3, cache_limit_gib=0.0 if change == "no room" else 1.0)
    project = read_project(data)
    if change == "no folder":
        (cache_folder / "frames").write_text("a file")
    first, second = (load_frames(project, data, (64, 64)).pixels for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not list(cache_folder.rglob("*.npy"))


def test_large_sets_name_a_cache_that_cannot_be_written(tmp_path: Path, cache_folder: Path) -> None:
    data = make_project(tmp_path, [(64, 48)] * 3, memory_limit_gib=0.0)
    (cache_folder / "frames").write_text("a file")
    with pytest.raises(UserError, match=f"cannot be written to {cache_folder} .*JAXPOSE_CACHE"):
        load_frames(read_project(data), data, (64, 64))


@pytest.mark.parametrize("memory_limit_gib", [0.0, 1.0])
def test_a_damaged_entry_is_made_again(tmp_path: Path, cache_folder: Path, memory_limit_gib: float) -> None:
    data = make_project(tmp_path, [(64, 48)] * 3, memory_limit_gib=memory_limit_gib)
    project = read_project(data)
    expected = np.array(load_frames(project, data, (64, 64)).pixels)
    (entry,) = cache_folder.rglob("*.npy")
    content = entry.read_bytes()
    damages = [b"", b"nonsense", content[:-1]]
    # A flipped bit.
    damages += [content[:-1] + bytes([content[-1] ^ 1])]
    for damaged in damages:
        entry.write_bytes(damaged)
        np.testing.assert_array_equal(load_frames(project, data, (64, 64)).pixels, expected)
        assert entry.read_bytes() == content


def test_the_oldest_entries_leave_the_cache_first(cache_folder: Path) -> None:
    shape, row = (1, 1024, 1024, 1), np.zeros((1024, 1024, 1), np.uint8)
    limit_gib = 2.5 / 1024
    for number, key in enumerate(("a", "b")):
        cache.store(key, shape, [row], limit_gib)
        os.utime(cache_folder / "frames" / f"{key}.npy", (number, number))
    stale, fresh = (cache_folder / "frames" / name for name in (".x.1.tmp", ".y.2.tmp"))
    stale.touch()
    fresh.touch()
    os.utime(stale, (0, 0))
    assert cache.open_cached("a", shape) is not None
    cache.store("c", shape, [row], limit_gib)
    assert sorted(path.name for path in (cache_folder / "frames").iterdir()) == [fresh.name, "a.npy", "c.npy"]
    assert (cache_folder / "frames" / "a.npy").stat().st_mtime > time.time() - 60
    with pytest.raises(ValueError, match="more than data.cache_limit_gib = 0.0001"):
        cache.store("d", shape, [row], 0.0001)


def test_an_image_that_changes_or_does_not_decode_is_named(tmp_path: Path, cache_folder: Path) -> None:
    data = make_project(tmp_path, [(64, 48)] * 3, memory_limit_gib=0.0)
    project = read_project(data)
    Image.new("RGB", (64, 48)).save(project.paths[1])
    with pytest.raises(ValueError, match=r"csv:5: labeled-data/img1.png has changed"):
        load_frames(project, data, (64, 64))
    assert not list((cache_folder / "frames").iterdir())
    jpeg = tmp_path / "labeled-data" / "img1.png"
    Image.new("RGB", (64, 48)).save(jpeg, format="JPEG")
    content = jpeg.read_bytes()
    start = content.index(b"\xff\xc4")
    jpeg.write_bytes(content[: start + 5] + b"\xff" * 16 + content[start + 21 :])
    with pytest.raises(
        ValueError, match=r"csv:5: labeled-data/img1.png: the image does not decode: it is truncated, damaged"
    ):
        read_project(data)


@pytest.mark.parametrize("resize", ["pad", "stretch"])
@pytest.mark.parametrize("size_px", [(2, 3000), (3000, 2), (3, 40000), (1, 1), (5, 131)])
def test_a_strip_covers_at_least_one_pixel(size_px: tuple[int, int], resize: str) -> None:
    frame = np.full((size_px[1], size_px[0], 3), 200, np.uint8)
    result = fit_image(frame, geometry.input_from_frame(size_px, (64, 32), resize), (64, 32))
    assert result.shape == (32, 64, 3) and set(np.unique(result).tolist()) <= {0, 200} and result.any()


def _huge(form: str) -> bytes:
    """Returns a file of a few hundred bytes that states 30,000 x 30,000 pixels."""
    content = io.BytesIO()
    Image.new("L", (16, 16)).save(content, form, **({"compression": "raw"} if form == "TIFF" else {}))
    found, side = bytearray(content.getvalue()), 30_000
    if form == "PNG":
        found[16:24] = struct.pack(">II", side, side)
        found[29:33] = struct.pack(">I", zlib.crc32(found[12:29]))
    elif form == "JPEG":
        at = found.index(b"\xff\xc0")
        found[at + 5 : at + 9] = struct.pack(">HH", side, side)
    elif form == "BMP":
        found[18:26] = struct.pack("<ii", side, side)
    else:
        for tag in (256, 257):
            at = found.index(struct.pack("<H", tag), 8)
            found[at : at + 12] = struct.pack("<HHII", tag, 4, 1, side)
    return bytes(found)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "BMP", "TIFF"])
def test_a_size_that_would_fill_the_memory_is_refused_before_decoding(form: str) -> None:
    # FFmpeg, which reads JPEG files first, has the same limit.
    message = "does not decode" if form == "JPEG" else "the image has more than 268435456 pixels"
    with pytest.raises(UserError, match=message):
        image_facts(_huge(form))
