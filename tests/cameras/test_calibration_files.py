"""Calibrations of other tools: each written by its library, or as that tool documents it, and read as the same rig."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import scipy.io
import sleap_io

from jaxpose import convert
from jaxpose.cameras.calibration_files import WRITTEN, read_cameras, write_cameras
from jaxpose.cameras.cameras import Camera, Cameras
from jaxpose.errors import UserError
from tests.cameras.rigs import opencv_lens, rig

RIG = rig(3)


def write_toml(file: Path, cameras: Cameras, table: str = "cam_{}") -> Path:
    """As Anipose writes it; as caliscope does with the table cameras.{} and matrices as rotations."""
    lines = []
    for number, camera in enumerate(cameras.each):
        is_anipose = table.startswith("cam_")
        turn = cv2.Rodrigues(camera.rotation)[0].ravel() if is_anipose else camera.rotation
        lines += [f"[{table.format(number)}]", *([f'name = "{camera.name}"'] if is_anipose else [f"cam_id = {number}"])]
        lines += [f"size = {list(camera.size_px)}", f"matrix = {camera.matrix.tolist()}"]
        lines += [f"distortions = {opencv_lens(camera).tolist()}", f"rotation = {turn.tolist()}"]
        lines += [f"translation = {camera.translation.tolist()}", ""]
    file.write_text("\n".join([*lines, "[metadata]", "adjusted = false", "error = 0.3"]))
    return file


def write_caliscope(file: Path, cameras: Cameras) -> Path:
    return write_toml(file.with_suffix(".toml"), cameras, "cameras.{}")


def write_dannce(file: Path, cameras: Cameras) -> Path:
    """Transposed, and from pixel 1 on: MATLAB's cameraIntrinsicsToOpenCV subtracts 1 from the centre."""
    params = np.empty((len(cameras.each), 1), object)
    for at, camera in enumerate(cameras.each):
        k1, k2, p1, p2, k3 = opencv_lens(camera)
        matrix = camera.matrix.copy()
        matrix[:2, 2] += 1
        fields = {"K": matrix.T, "RDistort": [[k1, k2, k3]], "TDistort": [[p1, p2]], "r": camera.rotation.T}
        params[at, 0] = fields | {"t": camera.translation[None]}
    names = np.array([list(cameras.names)], object)
    scipy.io.savemat(file.with_suffix(".mat"), {"params": params, "camnames": names})
    return file.with_suffix(".mat")


def write_sleap(file: Path, cameras: Cameras) -> Path:
    each = [
        sleap_io.Camera(
            matrix=camera.matrix, dist=opencv_lens(camera), size=camera.size_px, name=camera.name,
            rvec=cv2.Rodrigues(camera.rotation)[0].ravel(), tvec=camera.translation,
        )
        for camera in cameras.each
    ]  # fmt: skip
    session = sleap_io.RecordingSession(camera_group=sleap_io.CameraGroup(cameras=each))
    sleap_io.save_slp(sleap_io.Labels(sessions=[session]), str(file.with_suffix(".slp")))
    return file.with_suffix(".slp")


def write_yaml(folder: Path, cameras: Cameras, is_jarvis: bool) -> Path:
    folder.mkdir()
    for camera in cameras.each:
        file = cv2.FileStorage(str(folder / f"{camera.name}.yaml"), cv2.FILE_STORAGE_WRITE)
        if not is_jarvis:
            file.write("image_width", camera.size_px[0])
            file.write("image_height", camera.size_px[1])
        file.write("intrinsicMatrix" if is_jarvis else "camera_matrix", camera.matrix.T if is_jarvis else camera.matrix)
        file.write("distortionCoefficients" if is_jarvis else "distortion_coefficients", opencv_lens(camera)[None])
        file.write("R", camera.rotation.T if is_jarvis else cv2.Rodrigues(camera.rotation)[0])
        file.write("T", camera.translation[:, None])
        file.release()
    return folder


WRITERS: dict[str, Callable[[Path, Cameras], Path]] = {
    "anipose": lambda file, cameras: write_toml(file.with_suffix(".toml"), cameras),
    "caliscope": write_caliscope,
    "dannce": write_dannce,
    "sleap": write_sleap,
    "jarvis": lambda file, cameras: write_yaml(file, cameras, True),
    "opencv": lambda file, cameras: write_yaml(file, cameras, False),
}


@pytest.mark.parametrize("tool", WRITERS)
def test_a_calibration_is_read_as_the_same_rig(tool: str, tmp_path: Path) -> None:
    found = read_cameras(WRITERS[tool](tmp_path / "rig", RIG))
    assert found.names == (("cam_0", "cam_1", "cam_2") if tool == "caliscope" else RIG.names)
    points = np.random.default_rng(0).uniform(-80, 80, (50, 3))
    np.testing.assert_allclose(found.project(points), RIG.project(points), rtol=0, atol=1e-8)
    assert (found.sizes_px == ((0, 0) if tool in ("dannce", "jarvis") else RIG.sizes_px)).all()


@pytest.mark.parametrize("tool", WRITTEN)
def test_the_verb_writes_a_calibration_that_is_read_as_the_same_rig(
    tool: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suffixes = {"anipose": ".toml", "caliscope": ".toml", "dannce": ".mat", "sleap": ".slp"}
    out = tmp_path / f"new{suffixes.get(tool, '')}"
    source = str(write_sleap(tmp_path / "rig", RIG))
    assert convert.main(["cameras", source, "--to", tool, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{source} -> {out}: c0, c1, c2\ndropped: ")
    found = read_cameras(out)
    points = np.random.default_rng(0).uniform(-80, 80, (50, 3))
    assert found.names == RIG.names
    np.testing.assert_allclose(found.project(points), RIG.project(points), rtol=0, atol=1e-8)
    assert (found.sizes_px == (0 if tool in ("jarvis", "dannce") else RIG.sizes_px)).all()
    # Equal content is kept, other content refused.
    assert convert.main(["cameras", source, "--to", tool, "--out", str(out)]) == 0
    other = str(write_toml(tmp_path / "other.toml", Cameras(rig(3, seed=1).each)))
    assert convert.main(["cameras", other, "--to", tool, "--out", str(out)]) == 2
    assert "--overwrite replaces" in capsys.readouterr().err


def test_the_files_of_dannce_and_sleap_are_read_by_their_libraries(tmp_path: Path) -> None:
    write_cameras(tmp_path / "rig.mat", "dannce", RIG)
    params = scipy.io.loadmat(str(tmp_path / "rig.mat"))["params"]
    one = params[1, 0][0, 0]
    # As DANNCE multiplies: rows of points from the left, in pixels from 1 on.
    point = np.array([[3.0, -8.0, 5.0]])
    place = (point @ one["r"] + one["t"]) @ one["K"]
    matrix, rotation, translation = RIG.each[1].matrix, RIG.each[1].rotation, RIG.each[1].translation
    ours = matrix @ (rotation @ point[0] + translation)
    np.testing.assert_allclose(place[0, :2] / place[0, 2] - 1, ours[:2] / ours[2], rtol=1e-12)
    assert params.shape == (3, 1) and one["RDistort"].shape == (1, 3) and one["TDistort"].shape == (1, 2)
    write_cameras(tmp_path / "rig.slp", "sleap", RIG)
    (session,) = sleap_io.load_slp(str(tmp_path / "rig.slp")).sessions
    for theirs, camera in zip(session.camera_group.cameras, RIG.each, strict=True):
        assert (theirs.name, tuple(theirs.size)) == (camera.name, camera.size_px)
        turn = cv2.Rodrigues(camera.rotation)[0]
        found = cv2.projectPoints(point, theirs.rvec, theirs.tvec, theirs.matrix, theirs.dist)[0]
        ours = cv2.projectPoints(point, turn, camera.translation, camera.matrix, opencv_lens(camera))[0]
        np.testing.assert_allclose(found, ours, atol=1e-9)


def test_what_a_format_cannot_hold_is_refused_or_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    skewed = RIG.each[0].matrix + np.array([[0, -5.8, 0], [0, 0, 0], [0, 0, 0]])
    cameras = Cameras([dataclasses.replace(RIG.each[0], matrix=skewed), *RIG.each[1:]])
    words = ["cameras", str(write_dannce(tmp_path / "rig", cameras)), "--to", "anipose"]
    out = f"--out={tmp_path / 'new.toml'}"
    assert convert.main([*words, out]) == 2
    assert "anipose needs the image size of each camera, which is unknown for c0, c1, c2" in capsys.readouterr().err
    assert convert.main([*words, out, "--size=1280"]) == 2
    assert "--size is '1280'; it must be WIDTHxHEIGHT" in capsys.readouterr().err
    assert convert.main([*words, out, "--size=320x240"]) == 2
    assert "--size is 320x240: camera c0 has images of 320 x 240 px, but the centre of" in capsys.readouterr().err
    assert convert.main([*words, out, "--size=1280x1024"]) == 0
    assert (
        "dropped: for other programs, the skew of c0 (-5.8 px): it is in the file, but OpenCV"
        in capsys.readouterr().out
    )
    found = read_cameras(tmp_path / "new.toml")
    np.testing.assert_allclose(found.each[0].matrix, skewed, rtol=1e-15)
    assert (found.sizes_px == (1280, 1024)).all()
    assert convert.main([*words, f"--out={tmp_path / 'new'}"]) == 2
    assert "for anipose it must be a file whose name ends in .toml" in capsys.readouterr().err
    fish = Cameras([dataclasses.replace(camera, is_fisheye=True, distortion=np.zeros(4)) for camera in RIG.each])
    for form in ("opencv", "dannce", "sleap"):
        with pytest.raises(UserError, match=f"{form} cannot describe the fisheye lens of c0, c1, c2"):
            write_cameras(tmp_path / "fish", form, fish)
    write_cameras(tmp_path / "fish.toml", "anipose", fish)
    assert all(camera.is_fisheye for camera in read_cameras(tmp_path / "fish.toml").each)
    slash = Cameras([dataclasses.replace(RIG.each[0], name="a/b"), *RIG.each[1:]])
    with pytest.raises(UserError, match="camera 'a/b' cannot be used as a file name"):
        write_cameras(tmp_path, "jarvis", slash)


def test_a_fisheye_lens_and_a_skew_are_kept(tmp_path: Path) -> None:
    fish = dataclasses.replace(RIG.each[1], distortion=np.array([-0.02, 0.01, 0.001, -0.001]))
    file = write_toml(tmp_path / "rig.toml", Cameras([RIG.each[0], fish, RIG.each[2]]))
    file.write_text(file.read_text().replace('name = "c1"', 'name = "c1"\nfisheye = true'))
    assert [camera.is_fisheye for camera in read_cameras(file).each] == [False, True, False]
    skewed = RIG.each[0].matrix + np.array([[0, -5.8, 0], [0, 0, 0], [0, 0, 0]])
    cameras = Cameras([dataclasses.replace(RIG.each[0], matrix=skewed), *RIG.each[1:]])
    found = read_cameras(write_dannce(tmp_path / "rig", cameras)).each[0].matrix
    np.testing.assert_allclose(found, skewed, rtol=1e-15)


def test_every_file_that_opencv_writes_is_read(tmp_path: Path) -> None:
    def write(
        name: str, names: tuple[str, ...], more: dict[str, Any], flag: int = cv2.FILE_STORAGE_WRITE, kind: Any = float
    ) -> Path:
        for camera in RIG.each:
            values = (camera.matrix, opencv_lens(camera)[None], camera.rotation, camera.translation[:, None])
            known: dict[str, np.ndarray] = dict(
                zip(("camera_matrix", "distortion_coefficients", "R", "T"), values, strict=True)
            )
            file = tmp_path / name / f"{camera.name}.yaml"
            file.parent.mkdir(exist_ok=True)
            opened = cv2.FileStorage(str(file), flag)
            for key, value in {**more, **{key: known[key].astype(kind) for key in names}}.items():
                opened.write(key, value)
            opened.release()
        return tmp_path / name

    expected, all_four = RIG.project(np.ones((1, 3))), ("camera_matrix", "distortion_coefficients", "R", "T")
    folders = [
        write("texts", all_four, {"note": 'John\'s \\ "rig" at 12:30'}),
        write("long", all_four, {"image_points": np.ones((60_000, 2))}),
        write("base64", all_four, {"mask": np.eye(2, dtype=np.uint8)}, cv2.FILE_STORAGE_WRITE_BASE64),
        write("parts", all_four[:2], {"image_points": np.ones((1_000, 2))}),
        write("twice", all_four, {"note": "M\xe4rz"}),
    ]
    write("parts", all_four[2:], {}, cv2.FILE_STORAGE_APPEND)
    for file in folders[-1].iterdir():  # a note in Latin-1, and everything written twice
        text = file.read_text()
        file.write_bytes((text + text.split("---\n")[1].replace("data: [ ", "data: [ 7., ")).encode("latin-1"))
    for form in (cv2.FILE_STORAGE_FORMAT_JSON, cv2.FILE_STORAGE_FORMAT_XML):
        for points in (1, 60_000):
            more = {"image_points": np.ones((points, 2)), "image_width": 1280, "image_height": 1024}
            folders.append(write(f"{form}_{points}", all_four, more, cv2.FILE_STORAGE_WRITE | form))
            assert read_cameras(folders[-1]).sizes_px.tolist() == [[1280, 1024]] * len(RIG.each)
    for folder in folders:
        np.testing.assert_allclose(read_cameras(folder).project(np.ones((1, 3))), expected, rtol=0, atol=1e-8)
    found = read_cameras(write("float32", all_four, {}, kind=np.float32)).each[0]
    np.testing.assert_array_equal(found.matrix, RIG.each[0].matrix.astype(np.float32))


@pytest.mark.parametrize("tool", WRITERS)
def test_two_equal_cameras_are_refused_in_every_form(tool: str, tmp_path: Path) -> None:
    first, *others = RIG.each
    rigged = Cameras([first, dataclasses.replace(first, name="twin"), *others])
    with pytest.raises(UserError, match=r"the cameras \w+ and \w+ have the same position and direction"):
        read_cameras(WRITERS[tool](tmp_path / "rig", rigged))


@pytest.mark.parametrize("tool", WRITERS)
def test_a_wrong_matrix_is_refused_in_every_form_by_the_name_of_its_camera(tool: str, tmp_path: Path) -> None:
    """Such as the transposed one of Lightning Pose's documented example."""
    wrong: Camera = dataclasses.replace(RIG.each[1], matrix=RIG.each[1].matrix.T)
    with pytest.raises(UserError, match="the matrix of camera (c1|cam_1) is .* must be"):
        read_cameras(WRITERS[tool](tmp_path / "rig", Cameras([RIG.each[0], wrong, RIG.each[2]])))


def test_files_that_are_not_calibrations_are_refused(tmp_path: Path) -> None:
    def refused(name: str, content: str, message: str) -> None:
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            read_cameras(tmp_path / name)

    with pytest.raises(UserError, match="the calibration .*absent.toml does not exist; a calibration is a .toml of"):
        read_cameras(tmp_path / "absent.toml")
    refused("a.json", "{}", "a.json cannot be read; a calibration is a .toml of")
    refused("a.toml", "x =", "a.toml is not a TOML file")
    refused("b.toml", "cameras = 3", "cameras must be tables such as")
    refused("c.toml", "[metadata]\nerror = 1", "c.toml has no camera")
    refused("a.mat", "text", "a.mat cannot be read as a .mat file")
    refused("a.slp", "text", "a.slp is not a readable SLEAP project")
    text = write_toml(tmp_path / "rig.toml", RIG).read_text()
    refused("d.toml", text.replace("rotation", "turn", 1), "d.toml: camera c0: it has no 'rotation'")
    refused("f.toml", text.replace("size = [1280, 1024]", "size = [inf, nan]", 1), "f.toml: camera c0: ")
    refused("h.toml", f"x = {'1' * 5000}", "h.toml is not a TOML file")
    refused("i.toml", f"x = {'[' * 100_000}", "i.toml is not a TOML file")
    refused("g.toml", text.replace("rotation = [", "rotation = [[], ", 1), "g.toml: camera c0: ")
    refused("e.toml", text.replace("size = [1280, 1024]", "size = [1280]", 1), "e.toml: camera c0: ")
    scipy.io.savemat(tmp_path / "b.mat", {"other": 1})
    with pytest.raises(UserError, match="b.mat has no params"):
        read_cameras(tmp_path / "b.mat")
    scipy.io.savemat(tmp_path / "c.mat", {"params": np.ones(2), "camnames": np.array([[], []], object)})
    with pytest.raises(UserError, match="c.mat: camera Camera1: "):
        read_cameras(tmp_path / "c.mat")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no camera"):
        read_cameras(tmp_path / "empty")
    # Commented out; OpenCV reads the other matrix.
    json, xml = '{\n/*\n    "R": 3,\n*/\n' + "\n" * 10_000, "<opencv_storage><!--\n<R>3</R>\n-->" + "\n" * 10_000
    short = "camera_matrix: !!opencv-matrix\n  rows: 3\n  cols: 3\n  dt: d\n  data: [1, 2]\n"
    for content, message in (
        ("%YAML:1.0\n---\nR: 3\n", "has no matrix camera_matrix"),
        (f"%YAML:1.0\n---\n{short}", "has no matrix camera_matrix"),
        (f"%YAML:1.0\n---\n{short.replace('rows: 3', 'rows: -1')}", "has no matrix camera_matrix"),
        ("a: [", "is not a YAML file"),
        (json, r"is long and has a comment \(/\*\); a matrix in a comment"),
        (xml, r"is long and has a comment \(<!--\); a matrix in a comment"),
        # OpenCV's reader ends the process, or does not return.
        ("[" * 100_000, "is nested too deeply"),
        ("%YAML:1.0\n---\nR: " + "[" * 100_000, "is nested too deeply"),
        ('{\n    "R": ' + "[" * 100_000, "is nested too deeply"),
        ('<?xml version="1.0"?>\n<opencv_storage>\n<R>' + "<a>" * 100_000, "is nested too deeply"),
        ('<?xml version="1.0"?>\n<opencv_storage>' + "<a>" * 100_000, "is nested too deeply"),
        (f"%YAML:1.0\n---\n{short.replace('rows: 3', 'sizes: [-1, 3]')}", "has no matrix camera_matrix"),
        (f"%YAML:1.0\n---\n{short.replace('cols', 'cloS')}", "has no matrix camera_matrix"),
        (f"%YAML:1.0\n---\n{short.replace('[1, 2]', '!!binary |')}    {'A' * 400}\n", "has values in base64"),
    ):
        (tmp_path / "empty" / "a.yaml").write_text(content)
        with pytest.raises(UserError, match=f"a.yaml {message}"):
            read_cameras(tmp_path / "empty")
    sleap_io.save_slp(sleap_io.Labels(), str(tmp_path / "none.slp"))
    with pytest.raises(UserError, match="none.slp has 0 recording sessions"):
        read_cameras(tmp_path / "none.slp")
    for number, sessions in enumerate(("[1]", '{"calibration": 3}', '{"calibration": {"a": 3}}', "[" * 100_000)):
        with h5py.File(tmp_path / f"{number}.slp", "w") as opened:
            opened["sessions_json"] = [sessions.encode()]
        with pytest.raises(UserError, match=f"{number}.slp"):
            read_cameras(tmp_path / f"{number}.slp")


def test_a_camera_that_caliscope_has_not_placed_is_refused_unless_it_is_ignored(tmp_path: Path) -> None:
    file = write_caliscope(tmp_path / "camera_array", RIG)
    text = file.read_text()
    turn = next(line for line in text.splitlines() if line.startswith("rotation"))
    file.write_text(text.replace(turn, 'rotation = "null"', 1))
    with pytest.raises(UserError, match="camera cam_0: rotation is 'null': caliscope has not found its place among"):
        read_cameras(file)
    file.write_text(text.replace(turn, 'rotation = "null"\nignore = true', 1))
    assert read_cameras(file).names == ("cam_1", "cam_2")
