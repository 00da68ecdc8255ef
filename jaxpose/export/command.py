"""The work of `jaxpose export`: writes a run as one file with a program, and compares the program with the run."""

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import jax
import numpy as np
from jax.sharding import Mesh

import jaxpose
from jaxpose.cluster.devices import describe
from jaxpose.cluster.mesh import make_mesh, replicate
from jaxpose.config import Config, DataConfig, config_hash
from jaxpose.config.arguments import make_folder
from jaxpose.errors import UserError, need
from jaxpose.export import onnx_file, onnx_graph
from jaxpose.export.frame_fit import FrameFit, make_fit
from jaxpose.export.program import (
    PLATFORMS,
    SUFFIX,
    Program,
    frame_shape,
    in_precision,
    load_stablehlo,
    make_leads,
    make_program,
    span_of,
    to_stablehlo,
)
from jaxpose.files import write_atomic
from jaxpose.geometry import fit_still
from jaxpose.model.jax_settings import pinned_settings
from jaxpose.outputs import already_exist, may_be_ours, output_folder
from jaxpose.pose.pca import Pca
from jaxpose.prediction.batch_runner import BatchRunner
from jaxpose.prediction.predictor import Found, Predictor, start_devices
from jaxpose.progress import phase
from jaxpose.run.load import LoadedNetwork, load_network
from jaxpose.run.pca import agreeing_views, load_subspaces
from jaxpose.run.run_config import read_run_config, refuse_several_animals, refuse_several_views
from jaxpose.run.weights import checksum
from jaxpose.terminal import count

# Compares the exported program with its run, on random frames.

# Number of compared results, which is also the number of frames in a step of the predictor.
COUNT = 4
# Tolerances, in pixels of the network's input. A different order of summation moves a point by 1e-5 px in float32;
# products of bfloat16 and of 10 bits move it further.
_MOST_PX = {"f32": 0.01, "tf32": 0.25, "bf16": 0.5, "f16": 0.3}
_MOST_CONFIDENCE = {"f32": 1e-3, "tf32": 0.02, "bf16": 0.05, "f16": 0.05}
# Where the highest cell of a map leads another maximum by less than this share, rounding chooses between them.
_TIE = 1e-5
# From this confidence on, each keypoint of a file in float16 must be right; of all keypoints, the median.
_SURE = 0.5
# A wrong fit differs by tens of grey levels.
_MOST_MEAN_LEVELS = 1.0


@dataclasses.dataclass(frozen=True)
class Check:
    """The largest differences between a file and its run, on random frames.

    Attributes:
      keypoints_px: between keypoints for the same input of the network, in pixels of the frame. Keypoints that
        rounding chooses, because two cells of a map tie, do not count, nor do unsure ones in float16.
      confidence: between their confidences for the same input of the network.
      grey_levels: between a pixel of the network's input and what `jaxpose predict` gives the network.
      mean_grey_levels: the mean of these differences.
      resized_median_px: the median distance between the file's keypoints and those of `jaxpose predict`, in pixels of
        the frame.
    """

    keypoints_px: float
    confidence: float
    grey_levels: float
    mean_grey_levels: float
    resized_median_px: float


def check_file(
    run_file: Callable[[np.ndarray], Found],
    predictor: Predictor,
    fit: FrameFit,
    name: str,
    *,
    precision: str = "",
    leads: Callable[[jax.Array], jax.Array] | None = None,
) -> Check:
    """Returns how far the results of a file are from those of its run, on random frames, several and one at a time.

    Args:
      run_file: the program in the file.
      predictor: the run's network in the precision of the file (for f16: in f32), for at least `COUNT` frames a step.
      fit: of the file's frames.
      name: of the file, for messages.
      precision: of the file; that of the predictor by default.
      leads: see `make_leads`; without it, ties also count.

    Raises:
      UserError: a difference is larger than rounding explains.
    """
    config = predictor.config
    precision = precision or config.train.precision
    shape = frame_shape(config.model.kind, fit.frame_size_px)
    frames = random_frames(COUNT * span_of(config.model.kind), fit.frame_size_px)
    given = frames.reshape(COUNT, *shape)
    several, one = run_file(given), run_file(given[:1])
    found = [np.concatenate(parts) for parts in zip(several, one, strict=True)]

    fitted = np.asarray(jax.jit(fit)(frames)).astype(np.uint8)
    usual = np.stack([_usual_fit(frame, predictor, fit) for frame in frames])
    levels = np.abs(fitted.astype(int) - usual)
    expected, of_usual = (_predict(predictor, pixels, fit) for pixels in (fitted, usual))
    expected = [np.concatenate([part, part[:1]]) for part in expected]
    distances, off = np.linalg.norm(found[0] - expected[0], axis=-1), np.abs(found[1] - expected[1])
    if precision == "f16":
        counts = expected[1] >= _SURE
        largest = [max(np.median(part), part[counts].max(initial=0)) for part in (distances, off)]
    else:
        is_tie = np.zeros(distances.shape, bool)
        if leads is not None and distances.max() > _most_px(precision, fit):
            is_tie = np.asarray(jax.jit(leads)(given))[[*range(COUNT), 0]] < _TIE
        largest = [part[~is_tie].max(initial=0) for part in (distances, off)]
    check = Check(
        keypoints_px=float(largest[0]),
        confidence=float(largest[1]),
        grey_levels=float(levels.max()),
        mean_grey_levels=float(levels.mean()),
        resized_median_px=float(np.median(np.linalg.norm(several[0] - of_usual[0], axis=-1))),
    )
    _refuse_large(check, precision, fit, name)
    return check


def _most_px(precision: str, fit: FrameFit) -> float:
    return _MOST_PX[precision] * float(np.abs(np.diag(fit.frame_from_input)).max())


def random_frames(count: int, size_px: tuple[int, int]) -> np.ndarray:
    """Returns random frames (count, height, width, 3) uint8 with large and small structure, the same each time.

    Args:
      count: number of frames.
      size_px: (width, height).
    """
    rng = np.random.default_rng(0)
    large = [cv2.resize(rng.uniform(0, 255, (7, 9, 3)), size_px, interpolation=cv2.INTER_CUBIC) for _ in range(count)]
    small = rng.normal(0, 15, (count, size_px[1], size_px[0], 3))
    return np.clip(np.stack(large) + small, 0, 255).astype(np.uint8)


def _usual_fit(frame: np.ndarray, predictor: Predictor, fit: FrameFit) -> np.ndarray:
    data = predictor.config.data
    size_px = data.input_width_px, data.input_height_px
    affine = fit.input_from_frame
    is_whole = fit.part_px == (0, 0, *fit.frame_size_px)
    return fit_still(frame, affine, size_px, data.resize, () if is_whole else fit.part_px)


def _predict(predictor: Predictor, pixels: np.ndarray, fit: FrameFit) -> list[np.ndarray]:
    span = span_of(predictor.config.model.kind)
    sequences = pixels if span == 1 else pixels.reshape(-1, span, *pixels.shape[1:])
    (found,) = predictor.runner.frames(*predictor.folded_weights, [(sequences, fit.frame_from_input)])
    return [found["keypoints_frame_px"], found["confidence"]]


def _refuse_large(check: Check, precision: str, fit: FrameFit, name: str) -> None:
    for what, value, most in (
        ("keypoints differ by {} px", check.keypoints_px, _most_px(precision, fit)),
        ("confidences differ by {}", check.confidence, _MOST_CONFIDENCE[precision]),
        ("resized frames differ by {} grey levels on average", check.mean_grey_levels, _MOST_MEAN_LEVELS),
    ):
        # A comparison with NaN is false.
        if not value <= most:
            raise UserError(
                f"{name} is not written: on random frames its {what.format(f'{value:.3g}')} from those of the run, "
                f"and at most {most:.3g} is allowed"
            )


def export(
    run: Path,
    out: Path,
    *,
    frame_size_px: tuple[int, int] | None = None,
    platform: str = "auto",
    overwrite: bool = False,
    batch: int | None = None,
    fp16: bool = False,
) -> list[str]:
    """Writes the network of a run as a file that runs without jaxpose, and <out>.json next to it.

    Returns lines about the file and how far its results are from those of the run.

    Args:
      run: run folder.
      out: *.stablehlo or *.onnx.
      frame_size_px: (width, height) of the frames; None is the size of the run's labelled images.
      platform: as the option mesh.platform, of the device that compares the file with the run.
      overwrite: replace an existing file.
      batch: results at once, only of *.onnx; None is any number.
      fp16: let the network compute in float16, only in *.onnx.

    Raises:
      UserError: the run cannot be read, the size is unknown or too small, a file exists, packages are not installed,
        the file's format cannot hold the network, or the file gives other keypoints than the run.
    """
    config = read_run_config(run)
    refuse_several_animals(run, config, "two networks cannot be exported as one")
    refuse_several_views(run, config, "an exported network sees single frames")
    _check_out(out, overwrite, batch, fp16)
    fit = _fit_of(config.data, frame_size_px or _size_of_labelled(config.data))
    make_folder(out.parent)
    # Before the weights are read, which are arrays of a device.
    mesh = make_mesh(start_devices(_on_one_device(config, platform)))
    with phase("reading the weights"):
        trained = load_network(run)
    # float64 runs only where 64-bit types are turned on; ONNX has no tf32, and few of its runtimes have bf16.
    kept = {"f32"} if out.suffix == onnx_file.SUFFIX else {"f32", "tf32", "bf16"}
    network = trained if config.train.precision in kept else in_precision(trained, "f32")
    written = in_precision(trained, "f16") if fp16 else network
    with pinned_settings(network.config.train.precision):
        # Otherwise they only measure predictions, and a file holds none of them.
        views = agreeing_views(config.model, load_subspaces(run, config)) if config.model.views_agree else None
        predictor = _predictor_of(network, mesh, views)
        notes = _describe(trained, written.config, fit, out.suffix, batch)
        with phase("writing the program"):
            content = _content(out, make_program(written, fit, views), notes)
        with phase("comparing the file with the run"):
            load = onnx_file.load_onnx if out.suffix == onnx_file.SUFFIX else load_stablehlo
            leads = None if config.model.kind == "regression" else make_leads(network, fit, views)
            precision = written.config.train.precision
            check = check_file(load(content), predictor, fit, str(out), precision=precision, leads=leads)
    notes |= {"check": dataclasses.asdict(check), "file_sha256": hashlib.sha256(content).hexdigest()}
    with output_folder(out.parent, overwrite) as folder:
        write_atomic(folder / out.name, content)
        write_atomic(folder / _description(out).name, (json.dumps(notes, indent=2) + "\n").encode())
    return _report(out, len(content), notes, check) + _describe_precision(config, network.config)


def _content(out: Path, program: Program, notes: dict[str, Any]) -> bytes:
    batch, *shape = notes["frames"]["shape"]
    if out.suffix == onnx_file.SUFFIX:
        return onnx_file.to_onnx(program, tuple(shape), None if batch == "batch" else batch, notes)
    return to_stablehlo(program, tuple(shape))


def _check_out(out: Path, overwrite: bool, batch: int | None, fp16: bool) -> None:
    if out.suffix not in (SUFFIX, onnx_file.SUFFIX):
        raise UserError(f"--out is {out}; its name must end in {SUFFIX} or {onnx_file.SUFFIX}")
    if batch is not None and batch < 1:
        raise UserError(f"--batch is {batch}; it must be at least 1")
    for flag, is_given in (("--batch", batch is not None), ("--fp16", fp16)):
        if is_given and out.suffix == SUFFIX:
            raise UserError(f"{flag} is only for ONNX files, but --out is {out}: give a name that ends in .onnx")
    for file in (out, _description(out)):
        if file.is_dir():
            raise UserError(f"--out is {out}, but {file} is a folder; give another name")
    # Without it, the file about it is what a command has left that was cut off.
    if out.exists() and not overwrite and not may_be_ours(out.parent):
        raise already_exist([out])
    need("export", out.name, *(("flatbuffers",) if out.suffix == SUFFIX else ("onnx", "onnxruntime")))


def _size_of_labelled(data: DataConfig) -> tuple[int, int]:
    sizes = list(zip(data.frame_sizes_px[::2], data.frame_sizes_px[1::2], strict=True))
    if data.boxes:
        raise UserError(
            "the run sees each frame in a box (data.boxes), and the file takes what lies in the box: give the size of "
            "the boxes, such as --frame_size 128x128"
        )
    if len(sizes) != 1:
        are = ", ".join(f"{width}x{height}" for width, height in sizes)
        known = f"the labelled images of the run have the sizes {are}" if sizes else "the run names no size of frames"
        raise UserError(f"{known}, and a file takes frames of one size: give it with --frame_size, such as 640x480")
    return sizes[0]


def _fit_of(data: DataConfig, frame_size_px: tuple[int, int]) -> FrameFit:
    crop_px = () if data.boxes else data.crop_px
    if crop_px and np.any(np.add(crop_px[:2], crop_px[2:]) > frame_size_px):
        width, height = frame_size_px
        raise UserError(f"--frame_size is {width}x{height}; the run's data.crop_px = {crop_px} reaches beyond it")
    return make_fit(frame_size_px, (data.input_width_px, data.input_height_px), data.resize, crop_px)


def _on_one_device(config: Config, platform: str) -> Config:
    return dataclasses.replace(config, mesh=dataclasses.replace(config.mesh, devices=1, platform=platform))


def _predictor_of(network: LoadedNetwork, mesh: Mesh, views: Pca | None) -> Predictor:
    runner = BatchRunner(network.config, network.graphdef, mesh, COUNT, views=views)
    weights = replicate(mesh, (network.params, network.statistics))
    return Predictor(network.config, runner, weights, describe(list(mesh.devices.flat)), {}, network.label)


def _describe(trained: LoadedNetwork, config: Config, fit: FrameFit, suffix: str, batch: int | None) -> dict[str, Any]:
    data, names, count = config.data, config.data.keypoint_names, batch or "batch"
    form = {"format": "ONNX", "opset": onnx_graph.OPSET}
    if suffix == SUFFIX:
        form = {"format": "jax.export", "platforms": list(PLATFORMS)}
    return {
        "jaxpose": jaxpose.__version__,
        "jax": jax.__version__,
        **form,
        "run": config_hash(trained.config),
        "weights": trained.label,
        "weights_sha256": checksum({"params": trained.params, "statistics": trained.statistics}),
        "keypoint_names": list(names),
        "frames": {
            "type": "uint8",
            "shape": [count, *frame_shape(config.model.kind, fit.frame_size_px)],
            "colours": "RGB",
            "are": "what lies in the box" if data.boxes else "whole frames, as the labelled images",
        },
        "keypoints": {
            "type": "float32",
            "shape": [count, len(names), 2],
            "unit": "pixels of the frame, (x, y); (0, 0) is the centre of the top-left pixel",
        },
        "confidence": {"type": "float32", "shape": [count, len(names)], "unit": "0 to 1"},
        "network_input_px": [data.input_width_px, data.input_height_px],
        "resize": data.resize,
        "crop_px": [] if data.boxes else list(data.crop_px),
        "model": config.model.kind,
        "precision": config.train.precision,
    }


def _report(out: Path, size: int, notes: dict[str, Any], check: Check) -> list[str]:
    shapes = {name: f"({', '.join(map(str, notes[name]['shape']))})" for name in ("frames", "keypoints", "confidence")}
    unsure = f" (below a confidence of {_SURE}: the median)" if notes["precision"] == "f16" else ""
    lines = [
        f"{out} ({size / 1e6:.1f} MB), described in {_description(out).name}",
        f"frames {shapes['frames']} uint8 RGB -> keypoints {shapes['keypoints']} in frame pixels, "
        f"confidence {shapes['confidence']}",
        f"on random frames: keypoints differ from the run's by at most {check.keypoints_px:.2g} px, "
        f"confidences by {check.confidence:.2g}{unsure}",
    ]
    if check.grey_levels:
        levels = f"{count(round(check.grey_levels), 'grey level')} ({check.mean_grey_levels:.2g} on average)"
        lines.append(
            f"frames are resized in the file, not by OpenCV: pixels differ by at most {levels}, keypoints by "
            f"{check.resized_median_px:.2g} px (median)"
        )
    return lines


def _describe_precision(of_run: Config, compared: Config) -> list[str]:
    """Returns a line about a run in another precision than the network that the file was compared with."""
    own, other = of_run.train.precision, compared.train.precision
    if own == other:
        return []
    return [
        f"train.precision is {own}: above, the file was compared with the run's network in {other}; `jaxpose predict` "
        f"computes in {own}, and its results differ further"
    ]


def _description(out: Path) -> Path:
    return out.with_name(f"{out.name}.json")
