"""Images of SLEAP files that are no films: their channels, their bits and their axes are those that were written."""

import json
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import sleap_io

from jaxpose.config import Config, DataConfig, resolve
from jaxpose.data import dataset
from jaxpose.data.image_file import decode_image
from jaxpose.errors import UserError
from jaxpose.formats.project import prepare, read_project
from tests.data.test_orientation import encoded, picture, turn_back
from tests.data.test_white import tiff, tiff_stack

LABELLED = (0, 2, 5)
# Frames of 30 x 20 px in RGB, which no axis and no channel can be exchanged in.
COLOUR = np.stack([picture((30, 20), number) for number in range(8)])
GREY = COLOUR[..., :1]


def save(folder: Path, video: sleap_io.Video, name: str = "labels.slp", embed: bool = False) -> Path:
    """Writes a .slp with one point in each labelled frame."""
    folder.mkdir(exist_ok=True)
    skeleton = sleap_io.Skeleton(["nose"])
    frames = [
        sleap_io.LabeledFrame(
            video=video, frame_idx=frame, instances=[sleap_io.Instance.from_numpy(np.array([[5.0, 17.0]]), skeleton)]
        )
        for frame in LABELLED
    ]
    labels = sleap_io.Labels(frames, videos=[video], skeletons=[skeleton])
    sleap_io.save_slp(labels, str(folder / name), embed=embed, verbose=False)
    return folder / name


def hdf5(folder: Path, values: np.ndarray, **options) -> sleap_io.Video:
    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "box.h5", "w") as file:
        file["box"] = values
    return sleap_io.Video.from_filename(str(folder / "box.h5"), dataset="box", **options)


def assert_frames(file: Path, frames: np.ndarray, **options) -> None:
    """Compares the labelled images of a file with the frames (n, h, w, 3) that were written."""
    config, found = prepare(resolve(Config(data=DataConfig(project=str(file), **options))))
    for path, frame in zip(found.paths, LABELLED, strict=True):
        pixels = decode_image(path.read_bytes(), found.pixel_rule(config.data.white))
        np.testing.assert_array_equal(pixels, np.broadcast_to(frames[frame], (20, 30, 3)))
    assert dataset.decode(found, config)[0].pixels.max() > 200


@pytest.mark.parametrize("plugin", ["opencv", "imageio"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("source", ["hdf5", "images"])
def test_colours_are_those_that_were_written(tmp_path: Path, source: str, channels: int, plugin: str) -> None:
    """Whatever sleap-io itself shows: with OpenCV, it exchanges red and blue where there is transparency."""
    opaque = np.full_like(GREY, 200)
    written = [GREY, np.concatenate([GREY, opaque], -1), COLOUR, np.concatenate([COLOUR, opaque], -1)][channels - 1]
    if source == "hdf5":
        video = hdf5(tmp_path / "a", written)
    else:
        names = [tmp_path / f"a/{number}.png" for number in range(8)]
        names[0].parent.mkdir()
        for name, frame in zip(names, written, strict=True):
            # OpenCV does not write grey with transparency.
            stored = np.concatenate([frame[..., :1]] * 3 + [frame[..., 1:]], -1) if channels == 2 else frame
            code = {3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGRA}.get(stored.shape[2])
            cv2.imwrite(str(name), stored if code is None else cv2.cvtColor(stored, code))
        video = sleap_io.Video.from_filename([str(name) for name in names])
    frames = GREY if channels < 3 else COLOUR
    assert_frames(save(tmp_path / "a", video), frames)
    if channels == 2 and source == "hdf5":
        return  # sleap-io cannot embed them
    sleap_io.set_default_image_plugin(plugin)
    try:
        package = save(tmp_path / "a", video, "labels.pkg.slp", embed=True)
    finally:
        sleap_io.set_default_image_plugin(None)
    assert_frames(package, frames)


def test_packages_of_former_versions_have_red_and_blue_exchanged(tmp_path: Path) -> None:
    package = save(tmp_path / "a", hdf5(tmp_path / "a", COLOUR), "labels.pkg.slp", embed=True)
    exchanged = []
    with h5py.File(package, "r+") as opened:
        file: Any = opened
        for image, frame in zip(file["video0/video"], LABELLED, strict=True):
            content = image.astype(np.uint8)
            exchanged.append(cv2.imdecode(content, cv2.IMREAD_COLOR)[..., ::-1])
            assert (exchanged[-1] == COLOUR[frame]).all() != (exchanged[-1][..., ::-1] == COLOUR[frame]).all()
        order = file["video0/video"].attrs["channel_order"]
        del file["video0/video"].attrs["channel_order"]
        file["metadata"].attrs["format_id"] = 1.3
    frames = np.zeros_like(COLOUR)
    frames[list(LABELLED)] = np.stack(exchanged)[..., ::-1]
    assert_frames(package, frames)
    assert order in ("RGB", "BGR")


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_the_axes_of_an_array_are_those_that_the_file_states(tmp_path: Path, layout: str) -> None:
    values = COLOUR if layout == "channels_last" else COLOUR.transpose(0, 3, 2, 1)
    assert_frames(save(tmp_path, hdf5(tmp_path, values, input_format=layout)), COLOUR)


@pytest.mark.parametrize("scale", [np.uint16(16), np.uint16(256), np.float32(1 / 255), np.float64(1), np.int64(4)])
@pytest.mark.parametrize("source", ["hdf5", "stack", "images", "package"])
def test_more_than_8_bits_are_kept_and_shown(tmp_path: Path, source: str, scale: np.number) -> None:
    frames = GREY.copy()
    frames[0, 0, 0] = 255
    values = (frames * scale).astype(scale.dtype)
    if source == "hdf5":
        file = save(tmp_path, hdf5(tmp_path, values))
    elif source == "stack":
        pages = [value.astype(np.int32) if value.dtype == np.int64 else value for value in values[..., 0]]
        (tmp_path / "stack.tif").write_bytes(tiff_stack(pages))
        video = sleap_io.Video.from_filename(str(tmp_path / "stack.tif"))
        file = save(tmp_path, video)
    else:
        if source == "package" and scale.dtype != np.uint16:
            return  # the embedded images are PNG files
        for number, value in enumerate(values[..., 0]):
            (tmp_path / f"{number}.tif").write_bytes(tiff(value.astype(np.int32) if value.dtype == np.int64 else value))
        video = sleap_io.Video.from_filename([str(tmp_path / f"{number}.tif") for number in range(8)])
        is_package = source == "package"
        file = save(tmp_path, video, "labels.pkg.slp" if is_package else "labels.slp", embed=is_package)
    assert_frames(file, frames)


def test_a_frame_that_cannot_be_read_is_named_and_others_are_read(tmp_path: Path) -> None:
    package = save(tmp_path / "a", hdf5(tmp_path / "a", COLOUR), "labels.pkg.slp", embed=True)
    with h5py.File(package, "r+") as opened:
        images: Any = opened["video0/video"]
        images[0, 50:] = 0
    with pytest.raises(UserError, match="1 of 3 rows(.|\n)*frame 0: its image cannot be read from .*truncated"):
        read_project(DataConfig(project=str(package)))
    found = read_project(DataConfig(project=str(package), on_bad_frame="skip"))
    assert [decode_image(path.read_bytes()).tolist() for path in found.paths] == COLOUR[[2, 5]].tolist()
    with pytest.raises(UserError, match="more than data.cache_limit_gib"):
        read_project(DataConfig(project=str(save(tmp_path / "b", hdf5(tmp_path / "b", GREY))), cache_limit_gib=1e-6))


def test_values_that_are_no_image_are_refused(tmp_path: Path) -> None:
    for number, (values, reason) in enumerate([
        (GREY.astype(np.int32) - 300, "holds int32 from -"),
        (np.concatenate([COLOUR, COLOUR], -1), r"the shape \(20, 30, 6\); an image is"),
        (np.where(GREY > 250, np.inf, GREY / 255), "values from 0 to inf"),
        (GREY / 255 - 0.1, "values from -0.1 to .*; they must be finite and at least 0"),
        (np.where(GREY > 250, np.nan, GREY / 255).astype(np.float16), "pixels that are NaN"),
    ]):  # fmt: skip
        with pytest.raises(UserError, match=reason):
            read_project(DataConfig(project=str(save(tmp_path / f"{number}", hdf5(tmp_path / f"{number}", values)))))


def test_a_stack_of_floats_of_16_bits_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "stack.tif").write_bytes(tiff_stack([*GREY[..., 0].astype(np.float32)]))
    file = save(tmp_path, sleap_io.Video.from_filename(str(tmp_path / "stack.tif")))
    (tmp_path / "stack.tif").write_bytes(tiff_stack([*GREY[..., 0].astype(np.float16)]))
    with pytest.raises(
        UserError, match="stack.tif cannot be read: it is a TIFF file of 16-bit floating-point numbers; save"
    ):
        read_project(DataConfig(project=str(file)))


@pytest.mark.parametrize("embed", [False, True])
@pytest.mark.parametrize("orientation", [6, 3])
def test_an_orientation_is_asked_or_told_by_the_size(tmp_path: Path, orientation: int, embed: bool) -> None:
    names = [tmp_path / f"{number}.png" for number in range(8)]
    for name, frame in zip(names, COLOUR, strict=True):
        name.write_bytes(encoded(turn_back(frame, orientation), orientation))
    video = sleap_io.Video.from_filename([str(name) for name in names])
    package = save(tmp_path, video, "labels.pkg.slp", embed=True)
    file = package if embed else save(tmp_path, video)
    with pytest.raises(UserError, match=f"has EXIF orientation {orientation} "):
        read_project(DataConfig(project=str(file)))
    assert_frames(file, COLOUR, orientation="upright")
    if orientation == 6 and not embed:
        # As SLEAP writes it, which shows images upright.
        with h5py.File(file, "r+") as opened:
            entries: Any = opened["videos_json"]
            entry = json.loads(entries[0])
            entry["backend"]["shape"] = [8, 20, 30, 3]
            entries[0] = json.dumps(entry)
        assert_frames(file, COLOUR)


def test_damaged_parts_of_a_package_are_refused_by_its_name(tmp_path: Path) -> None:
    for number, change in enumerate((
        lambda video: video.__setitem__("video", h5py.SoftLink("/video0/video")),
        lambda video: video.__setitem__("video", np.float64(1)),
        lambda video: video.__setitem__("frame_numbers", np.array([np.nan, 1, 2])),
    )):  # fmt: skip
        package = save(tmp_path / f"{number}", hdf5(tmp_path / f"{number}", COLOUR), "labels.pkg.slp", embed=True)
        with h5py.File(package, "r+") as opened:
            video: Any = opened["video0"]
            del video["frame_numbers" if number == 2 else "video"]
            change(video)
        with pytest.raises(UserError, match="labels.pkg.slp"):
            read_project(DataConfig(project=str(package)))
