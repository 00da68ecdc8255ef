"""Reads and writes calibrations: Anipose, caliscope, DANNCE, SLEAP, JARVIS and OpenCV.

| file | rotation, matrix |
|---|---|
| Anipose: calibration.toml, tables [cam_0], ... | Rodrigues' vector |
| caliscope: camera_array.toml, tables [cameras.0], ... | matrix or Rodrigues' vector |
| DANNCE: label3d .mat, `params` | both transposed; the matrix may have a skew, and counts pixels from 1, as MATLAB |
| SLEAP: a project .slp with one calibrated session, as Anipose | Rodrigues' vector |
| JARVIS: a folder of CAMERA.yaml | both transposed |
| OpenCV: a folder of CAMERA.yaml with camera_matrix, distortion_coefficients, R, T | matrix or Rodrigues' vector |
"""

import base64
import contextlib
import io
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from jaxpose.cameras.cameras import DISTORTIONS, Camera, Cameras
from jaxpose.config.option import excerpt
from jaxpose.errors import UserError, need
from jaxpose.files import replace_whole, write_atomic
from jaxpose.hdf5_file import read_hdf5
from jaxpose.outputs import OUTPUT_LOCK_FILE, read_unchanged, stamps
from jaxpose.text_file import read_text, read_unicode

_READABLE = (
    "a calibration is a .toml of Anipose or caliscope, a label3d .mat of DANNCE, a .slp of SLEAP with a session, or a "
    "folder with a .yaml of JARVIS or OpenCV for each camera"
)
YAML = (".yaml", ".yml")
_OPENCV = ("camera_matrix", "distortion_coefficients", "R", "T")
_JARVIS = ("intrinsicMatrix", "distortionCoefficients", "R", "T")
ANIPOSE, CALISCOPE, DANNCE, SLEAP, JARVIS, OPENCV = WRITTEN = (
    "anipose", "caliscope", "dannce", "sleap", "jarvis", "opencv",
)  # fmt: skip
_FOLDERS = (JARVIS, OPENCV)
_SIZE = ("image_width", "image_height")
# Characters. A level of nesting takes one at least, and 230 bytes of the stack.
_MOST_TEXT = 2**13
# Rows or columns of a matrix.
_MOST_LENGTH = 100
_BASE64 = re.compile(r"!!binary \|\r?\n((?:[ \t]+[A-Za-z0-9+/=]+[ \t]*\r?(?:\n|$))+)")
_BASE64_TYPE = 24
_BASE64_KINDS = {"u": "u1", "c": "i1", "w": "<u2", "s": "<i2", "i": "<i4", "h": "<f2", "f": "<f4", "d": "<f8"}
# As OpenCV knows it in YAML, JSON and XML.
_ANY_BASE64 = re.compile(r"!\S*binary|\$base64\$|[\"']binary[\"']")
# An entry of a camera at the top level as OpenCV indents it or, in YAML, a line that begins or ends a document.
_ENTRIES = "|".join((*_OPENCV, *_JARVIS, *_SIZE))
_YAML_ENTRY = re.compile(rf"^(?:(?:{_ENTRIES})[ \t]*:.*(?:\n(?:[ \t\r].*)?)*|(?:%|---|\.\.\.).*)", re.M)
_JSON_ENTRY = re.compile(rf'^ {{4}}"(?:{_ENTRIES})"[ \t]*:.*(?:\n(?: {{5}}.*| {{4}}\}}.*))*', re.M)
_XML_ENTRY = re.compile(rf"^<(?:{_ENTRIES})[ >].*(?:\n[ \t].*)*", re.M)
# How a comment begins in JSON and XML. One may hold entries; a comment of YAML ends with its line.
_COMMENTS = {"{": "/*", "<": "<!--"}
# What a matrix of MATLAB has more than one of OpenCV: the centre of the top left pixel is (1, 1).
_FROM_1 = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
# Stands in caliscope's files for a number that it has not found.
_NOT_CALIBRATED = "null"
# Bytes of the text that a .mat file begins with.
_MAT_TEXT = 116
# More than a .slp without labels needs.
_SLP_BYTES = 2**17
# What fails if a file lacks a table, or a value has another type or shape.
_WRONG = (KeyError, IndexError, ValueError, TypeError, AttributeError, OverflowError, cv2.error)


def read_cameras(file: Path) -> Cameras:
    """Returns the cameras of a calibration in any readable form.

    Raises:
      UserError: the file is absent, has another form, or its numbers are not those of a rig; the message names the
        camera and the rule.
    """
    readers: dict[str, Callable[[Path], list[Camera]]] = {".toml": _read_toml, ".mat": _read_dannce, ".slp": _read_slp}
    if not file.exists():
        raise UserError(f"the calibration {file} does not exist; {_READABLE}")
    reader = _read_yaml_folder if file.is_dir() else readers.get(file.suffix.lower())
    if reader is None:
        raise UserError(f"{file} cannot be read; {_READABLE}")
    cameras = reader(file)
    if not cameras:
        raise UserError(f"{file} has no camera; {_READABLE}")
    for camera in cameras:
        camera.refuse_wrong_numbers(file)
    made = Cameras(cameras)
    made.refuse_same(file)
    return made


def camera_files(folder: Path) -> list[Path]:
    """Returns the files of a folder from which `read_cameras` reads a camera; leaves out all other YAML files."""
    found = []
    for file in _yaml_files(folder):
        with contextlib.suppress(UserError):
            _read_yaml(file)
            found.append(file)
    return found


def write_cameras(path: Path, form: str, cameras: Cameras) -> list[str]:
    """Writes cameras in a format of `WRITTEN`; returns what other programs will not find or will ignore.

    Args:
      path: a .toml, .mat or .slp, or for jarvis and opencv a folder, which gets a file for each camera.
      form: the format.
      cameras: the cameras to write.

    Raises:
      UserError: the format needs image sizes, or knows no fisheye lenses; or a name cannot be that of a file.
      OSError: a file cannot be written.
    """
    unknown = [camera.name for camera in cameras.each if not all(camera.size_px)]
    if unknown and form in (ANIPOSE, CALISCOPE, SLEAP):
        raise UserError(
            f"{form} needs the image size of each camera, which is unknown for {', '.join(unknown)}: give --size, such "
            "as --size 1280x1024"
        )
    fish = [camera.name for camera in cameras.each if camera.is_fisheye]
    if fish and form in (*_FOLDERS, DANNCE, SLEAP):
        raise UserError(f"{form} cannot describe the fisheye lens of {', '.join(fish)}: use anipose or caliscope")
    if form in _FOLDERS:
        for camera in cameras.each:
            if Path(camera.name).name != camera.name:
                raise UserError(f"camera {camera.name!r} cannot be used as a file name in {path}; rename it")
            write_atomic(path / f"{camera.name}.yaml", _yaml_text(camera, form).encode())
    elif form == DANNCE:
        write_atomic(path, _dannce_content(cameras))
    elif form == SLEAP:
        _write_slp(path, cameras)
    else:
        write_atomic(path, _toml_text(cameras, form).encode())
    return _ignored(cameras, form)


def _ignored(cameras: Cameras, form: str) -> list[str]:
    skewed = [f"{camera.name} ({camera.matrix[0, 1]:.3g} px)" for camera in cameras.each if camera.matrix[0, 1]]
    lines = []
    if skewed and form not in (JARVIS, DANNCE):
        lines.append(f"for other programs, the skew of {', '.join(skewed)}: it is in the file, but OpenCV ignores it")
    if form in (JARVIS, DANNCE) and cameras.sizes_px.any():
        lines.append(f"the image sizes, which files of {form} do not hold")
    return lines


def _toml_text(cameras: Cameras, form: str) -> str:
    lines = []
    for number, camera in enumerate(cameras.each):
        turn = cv2.Rodrigues(camera.rotation)[0].ravel()
        lines += [f"[cam_{number}]"] if form == ANIPOSE else [f"[cameras.{number}]", f"cam_id = {number}"]
        lines += [f"name = {json.dumps(camera.name, ensure_ascii=False)}", f"size = {list(camera.size_px)}"]
        lines += [f"matrix = {camera.matrix.tolist()}", f"distortions = {_lens(camera).tolist()}"]
        lines += [f"rotation = {turn.tolist()}", f"translation = {camera.translation.tolist()}"]
        lines += [f"fisheye = {json.dumps(camera.is_fisheye)}", ""]
    return "\n".join(lines)


def _yaml_text(camera: Camera, form: str) -> str:
    content = cv2.FileStorage("camera.yaml", cv2.FILE_STORAGE_WRITE | cv2.FILE_STORAGE_MEMORY)
    matrices = [camera.matrix, _lens(camera)[None], camera.rotation, camera.translation[:, None]]
    if form == JARVIS:
        matrices[0], matrices[2] = matrices[0].T, matrices[2].T
    elif all(camera.size_px):
        content.write("image_width", camera.size_px[0])
        content.write("image_height", camera.size_px[1])
    for name, matrix in zip(_JARVIS if form == JARVIS else _OPENCV, matrices, strict=True):
        content.write(name, np.ascontiguousarray(matrix))
    return content.releaseAndGetString()


def _dannce_content(cameras: Cameras) -> bytes:
    """Returns a label3d .mat with `params` and `camnames`; MATLAB's matrices are transposed."""
    import scipy.io

    params = np.empty((len(cameras.each), 1), object)
    for at, camera in enumerate(cameras.each):
        k1, k2, p1, p2, k3 = _lens(camera)
        fields = {
            "K": (camera.matrix + _FROM_1).T,
            "RDistort": np.array([[k1, k2, k3]]),
            "TDistort": np.array([[p1, p2]]),
        }
        params[at, 0] = fields | {"r": camera.rotation.T, "t": camera.translation[None]}
    names = np.empty((1, len(cameras.names)), object)
    names[0] = cameras.names
    memory = io.BytesIO()
    scipy.io.savemat(memory, {"params": params, "camnames": names})
    content = memory.getvalue()
    # The text of the header has the time of writing; equal content gives equal bytes.
    return b"MATLAB 5.0 MAT-file, written by jaxpose".ljust(_MAT_TEXT) + content[_MAT_TEXT:]


def _write_slp(path: Path, cameras: Cameras) -> None:
    """Writes a SLEAP project without labels whose recording session has the cameras."""
    need("sleap", str(path), "sleap_io")
    from sleap_io.io.main import save_slp
    from sleap_io.model.camera import Camera as SleapCamera
    from sleap_io.model.camera import CameraGroup, RecordingSession
    from sleap_io.model.labels import Labels

    make: Any = SleapCamera  # its type knows no rvec
    each = [
        make(
            matrix=camera.matrix, dist=_lens(camera), size=camera.size_px, name=camera.name,
            rvec=cv2.Rodrigues(camera.rotation)[0].ravel(), tvec=camera.translation,
        )
        for camera in cameras.each
    ]  # fmt: skip
    session = RecordingSession(camera_group=CameraGroup(cameras=each))
    # sleap-io opens the file by name, and HDF5 may kill the process if the disk is full.
    with replace_whole(path, _SLP_BYTES) as unfinished, contextlib.chdir(unfinished.parent):
        save_slp(Labels(sessions=[session]), unfinished.name, embed=False, verbose=False)


def _lens(camera: Camera) -> np.ndarray:
    length = 4 if camera.is_fisheye else DISTORTIONS
    return np.pad(camera.distortion, (0, length))[:length]


def _read_toml(file: Path) -> list[Camera]:
    try:
        content = tomllib.loads(read_unicode(file, "TOML file"))
    except (ValueError, RecursionError) as error:  # a ValueError: a whole number with thousands of digits
        raise error if isinstance(error, UserError) else UserError(f"{file} is not a TOML file: {error}") from None
    tables = content.get("cameras", content)
    if not isinstance(tables, dict):
        raise UserError(f"{file}: cameras must be tables such as [cameras.0]")
    named = {name: table for name, table in tables.items() if isinstance(table, dict) and "matrix" in table}
    # Without a name: caliscope names its videos after the number.
    return [_from_table(file, name, table) for name, table in named.items() if not table.get("ignore")]


def _from_table(file: Path, name: str, table: Mapping[str, Any]) -> Camera:
    """Returns the camera of a table of Anipose, caliscope or SLEAP."""
    try:
        name = str(table.get("name") or (name if name.startswith("cam") else f"cam_{name}"))
        if absent := [key for key in ("rotation", "translation") if table[key] == _NOT_CALIBRATED]:
            raise UserError(
                f"{file}: camera {name}: {absent[0]} is {_NOT_CALIBRATED!r}: caliscope has not found its place among "
                "the other cameras; calibrate it there, or write ignore = true into its table"
            )
        size = [int(number) for number in table.get("size") or (0, 0)]
        return Camera(
            name,
            _array(table["matrix"]),
            _rotation(_array(table["rotation"])),
            _array(table["translation"]).ravel(),
            _array(table.get("distortions", [])).ravel(),
            (size[0], size[1]),
            bool(table.get("fisheye")),
        )
    except _WRONG as error:
        raise UserError(f"{file}: camera {name}: {_reason(error)}") from None


def _read_dannce(file: Path) -> list[Camera]:
    import scipy.io

    try:
        content = scipy.io.loadmat(str(file))
    except Exception as error:  # a damaged file makes it raise errors of many kinds
        raise UserError(f"{file} cannot be read as a .mat file: {error}; save it in MATLAB with -v7") from None
    if "params" not in content:
        raise UserError(f"{file} has no params, in which DANNCE's label3d files hold their cameras")
    params = np.ravel(content["params"])
    cells = [np.ravel(cell) for cell in np.ravel(content.get("camnames", []))]
    has_names = len(cells) == len(params) and all(len(cell) for cell in cells)
    names = [str(cell[0]) for cell in cells] if has_names else [f"Camera{at + 1}" for at in range(len(params))]
    cameras = []
    for name, cell in zip(names, params, strict=True):
        try:
            one = np.ravel(cell)[0]
            radial, tangential = _array(one["RDistort"]).ravel(), _array(one["TDistort"]).ravel()
            lens = np.concatenate([np.pad(radial, (0, max(0, 2 - len(radial))))[:2], tangential, radial[2:]])
            rotation, translation = _array(one["r"]), _array(one["t"]).ravel()
            cameras.append(Camera(name, _array(one["K"]).T - _FROM_1, rotation.T, translation, lens))
        except _WRONG as error:
            raise UserError(f"{file}: camera {name}: {_reason(error)}") from None
    return cameras


def _read_slp(file: Path) -> list[Camera]:
    need("sleap", str(file), "h5py")
    try:
        with read_hdf5(file) as opened:
            content: Any = opened
            texts = content["sessions_json"][...].tolist() if "sessions_json" in content else []
        sessions = [json.loads(text) for text in texts]
        rigs = [dict(session["calibration"]) for session in sessions]
    except UserError:
        raise
    except (OSError, RecursionError, *_WRONG) as error:
        raise UserError(f"{file} is not a readable SLEAP project: {excerpt(str(error), quoted=False)}") from None
    if len(rigs) != 1:
        raise UserError(f"{file} has {len(rigs)} recording sessions; a calibration must have one")
    return [_from_table(file, name, table) for name, table in rigs[0].items() if name != "metadata"]


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in YAML and file.is_file())


def _read_yaml_folder(folder: Path) -> list[Camera]:
    return read_unchanged(
        folder / OUTPUT_LOCK_FILE,
        lambda: stamps(_yaml_files(folder)),
        lambda: [_read_yaml(file) for file in _yaml_files(folder)],
    )


def _read_yaml(file: Path) -> Camera:
    text = _near_matrices(file, read_text(file)[0])
    try:
        content = cv2.FileStorage(text, cv2.FILE_STORAGE_READ | cv2.FILE_STORAGE_MEMORY)
    except (cv2.error, SystemError) as error:
        raise UserError(f"{file} is not a YAML file of OpenCV: {excerpt(str(error.__cause__ or error))}") from None
    try:
        is_jarvis = not content.getNode("intrinsicMatrix").empty()
        matrix, lens, rotation, translation = (
            _yaml_matrix(file, content, name) for name in (_JARVIS if is_jarvis else _OPENCV)
        )
        numbers = [content.getNode(name) for name in _SIZE]
        width, height = (0 if node.empty() else int(node.real()) for node in numbers)
        if is_jarvis:
            matrix, rotation = matrix.T, rotation.T
        return Camera(file.stem, matrix, _rotation(rotation), translation.ravel(), lens.ravel(), (width, height))
    except _WRONG as error:
        raise error if isinstance(error, UserError) else UserError(f"{file}: {_reason(error)}") from None
    finally:
        content.release()


def _near_matrices(file: Path, text: str) -> str:
    """Returns a text that OpenCV may read: of a long one, only the entries of a camera, with base64 as numbers.

    OpenCV's reader ends the process (SIGSEGV) where a text is nested deeply, which a short one cannot be, and does not
    return for some wrong base64.

    Raises:
      UserError: these entries are long themselves, or in a text with comments, or their base64 is none that OpenCV
        writes.
    """
    if len(text) > _MOST_TEXT:
        comment = _COMMENTS.get(text.lstrip()[:1])
        if comment and comment in text:
            raise UserError(
                f"{file} is long and has a comment ({comment}); a matrix in a comment would be taken for one of the "
                "camera: remove the comments"
            )
        text = _entries(text)
        if not 0 < len(text) <= _MOST_TEXT:
            raise UserError(
                f"{file} is nested too deeply, or long and not as OpenCV writes it: each of {', '.join(_OPENCV)} must "
                f"begin a line (in JSON, after four spaces), and together they may have {_MOST_TEXT} characters"
            )
    try:
        text = _BASE64.sub(_decoded, text)
    except _WRONG:
        pass
    if found := _ANY_BASE64.search(text):
        raise UserError(
            f"{file} has values in base64 ({excerpt(found[0])}) that cannot be read; write it without base64"
        )
    return text


def _entries(text: str) -> str:
    """Returns the entries of a camera in a text in YAML, JSON or XML, of the same form; "" without any."""

    forms = {
        "{": (_JSON_ENTRY, "{", ",\n", "}"),
        "<": (_XML_ENTRY, '<?xml version="1.0"?>\n<opencv_storage>', "\n", "</opencv_storage>"),
    }
    entry, before, between, after = forms.get(text.lstrip()[:1], (_YAML_ENTRY, "", "\n", ""))
    found = [match[0].rstrip().rstrip(",") if before else match[0] for match in entry.finditer(text)]
    return "\n".join([before, between.join(found), after]).strip() if found else ""


def _decoded(found: re.Match[str]) -> str:
    """Returns a list of the numbers in base64: OpenCV writes a type in 24 letters, then the values."""
    content = base64.b64decode("".join(found[1].split()), validate=True)
    kind = _BASE64_KINDS[content[:_BASE64_TYPE].decode("ascii").strip().lstrip("0123456789")]
    words = map(repr, np.frombuffer(content[_BASE64_TYPE:], kind).astype(float).tolist())
    return f"[ {', '.join(words)} ]\n"


def _yaml_matrix(file: Path, content: Any, name: str) -> np.ndarray:
    try:
        node = content.getNode(name)
        sides = [node.getNode(side).real() for side in ("rows", "cols")]
        # OpenCV reserves memory for any number; a wrong one in `sizes`, or none in `cols`, ends the process.
        is_small = all(1 <= side <= _MOST_LENGTH for side in sides) and node.getNode("sizes").empty()
        matrix = node.mat() if is_small else None
    except (cv2.error, SystemError):
        matrix = None
    if matrix is None:
        raise UserError(
            f"{file} has no matrix {name}; each camera needs {', '.join(_OPENCV)}, or as JARVIS writes it "
            f"{', '.join(_JARVIS)}"
        )
    return matrix.astype(np.float64)


def _array(values: Any) -> np.ndarray:
    return np.asarray(values, np.float64)


def _rotation(values: np.ndarray) -> np.ndarray:
    """Returns the matrix of a rotation that is given so, or as Rodrigues' vector."""
    return cv2.Rodrigues(values.reshape(3, 1))[0] if values.size == 3 else values


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else excerpt(str(error))
