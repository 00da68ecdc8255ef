"""Valid files of every format that jaxpose reads, and the calls that read them."""

import contextlib
import csv
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

# A call fails if its process needs more than these.
LIMIT_S, LIMIT_BYTES = 10, 3 * 2**30
# The threads of jax alone reserve gigabytes of addresses.
ADDRESSES_BYTES = 12 * 2**30
_OPTIONS = (
    "train.steps=4", "data.input_width_px=32", "data.input_height_px=32", "model.backbone=resnet10", "model.width=4",
    "log.tensorboard=false", "mesh.devices=1", "mesh.platform=cpu",
)  # fmt: skip
Points = set[tuple[str, str, float, float]]


class Reader(NamedTuple):
    """How the files of a format are read.

    Attributes:
      folder: holds all that the calls need; they run in a copy of it.
      files: globs of the files that are damaged, below the folder.
      calls: words of `jaxpose`, in which {} is the damaged file, or a function of that file.
      done: exit codes of a call that read the file.
      meaning: returns whether what a call wrote (the folder) is what the damaged file (its path) says; None: not
        compared.
      aliases: other words by which a refusal may name the file.
    """

    folder: str
    files: tuple[str, ...]
    calls: tuple[str | Callable[[Path], Any], ...]
    done: tuple[int, ...] = (0,)
    meaning: Callable[[Path, Path], bool] | None = None
    aliases: tuple[str, ...] = ()


def _load(file: Path) -> None:
    """Loads a run without compiling its network; an accepted run is the undamaged one."""
    from jaxpose import load

    found = load(file.parent, devices=1, platform="cpu", is_compiled=False)
    meant = json.loads((file.parents[1] / "meant.json").read_text())
    if meant != [found.checksum, list(found.keypoint_names), repr(found.config.model)]:
        raise AssertionError("another run was loaded")


def _read_tensors(file: Path) -> None:
    """Reads the file of model.weights."""
    from jaxpose.run.weights import read_tensors

    read_tensors(file)


def _csv_points(file: Path) -> Points:
    """Returns the labels of a CSV file (image or frame, keypoint, x, y), as `csv` and `float` read them."""
    with file.open(newline="", encoding="utf-8-sig") as stream:
        rows = [[cell.strip() for cell in row] for row in csv.reader(stream) if row]
    at = next(number for number, row in enumerate(rows) if {"x", "y"} <= set(row))
    first = next(column for column, cell in enumerate(rows[at]) if column and cell)
    names, animals = rows[at - 1], rows[1] if at > 2 else [""] * len(rows[at])
    found: Points = set()
    for row in rows[at + 1 :]:
        pairs: dict[tuple[str, str], dict[str, float]] = {}
        for name, animal, coord, cell in zip(
            names[first:], animals[first:], rows[at][first:], row[first:], strict=False
        ):
            pairs.setdefault((name, animal), {})[coord] = float(cell or "nan")
        frame = "/".join(cell for cell in row[:first] if cell).replace("\\", "/").rpartition("/")[2]
        found |= {(frame, name, _near(of["x"]), _near(of["y"])) for (name, _), of in pairs.items() if len(of) > 1}
    return found


def _coco_points(file: Path) -> Points:
    """Returns the labels of a COCO file as `json` reads them."""
    content, found = json.loads(file.read_bytes()), Points()
    images = {image["id"]: image["file_name"].rpartition("/")[2] for image in content["images"]}
    names = {category["id"]: category["keypoints"] for category in content["categories"]}
    for one in content["annotations"]:
        triples = np.reshape(one["keypoints"], (-1, 3)).tolist()
        for name, (x, y, mark) in zip(names[one["category_id"]], triples, strict=True):
            found |= {(images[one["image_id"]], str(name), _near(x), _near(y))} if mark else set()
    return found


def _h5_points(file: Path) -> Points:
    """Returns the labels of a DeepLabCut H5 as pandas reads them."""
    import pandas

    table: Any = pandas.read_hdf(file)
    found: Points = set()
    for index, row in zip(table.index, table.to_numpy(float), strict=True):
        pairs: dict[tuple[str, ...], dict[str, float]] = {}
        for names, value in zip(table.columns, row, strict=True):
            pairs.setdefault(names[:-1], {})[names[-1]] = value
        frame = str(index[-1] if isinstance(index, tuple) else index)
        found |= {(frame, str(names[-1]), _near(of["x"]), _near(of["y"])) for names, of in pairs.items()}
    return found


def _points_of_videos(file: Path) -> Points:
    """Returns the labels of a DeepLabCut project, of whose files one is given."""
    return {point for other in file.parents[1].glob("*/*.h5") for point in _h5_points(other)}


def _near(value: float) -> float:
    """Returns a position as it is compared: tables hold float32, and files of other tools 3 digits."""
    return round(float(value), 2) if np.isfinite(value) and abs(value) < 1e6 else float(value)


def _same_points(source: Callable[[Path], Points]) -> Callable[[Path, Path], bool]:
    """Returns a comparison: every finite position in out.csv is in the damaged file, of the same image and keypoint."""

    def is_same(file: Path, folder: Path) -> bool:
        # Where the other reader does not read the file, nothing can be known.
        with contextlib.suppress(Exception):
            known: dict[tuple[str, str], list[tuple[float, float]]] = {}
            for frame, name, x, y in source(file):
                known.setdefault((frame, name), []).append((x, y))
            return all(
                any(abs(x - u) <= 0.011 and abs(y - v) <= 0.011 for u, v in known.get((frame, name), ()))
                for frame, name, x, y in _csv_points(folder.parent / "out.csv")
                if np.isfinite([x, y]).all() and max(abs(x), abs(y)) < 1e6
            )
        return True

    return is_same


def _same_cameras(file: Path, folder: Path) -> bool:
    """Returns whether the cameras in new.toml have the matrices that `tomllib` reads in the damaged file."""
    # Where the other reader finds no cameras, nothing can be known.
    with contextlib.suppress(Exception):
        given = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        tables = [table for table in given.get("cameras", given).values() if isinstance(table, dict)]
        known = [np.array(table["matrix"], float) for table in tables if "matrix" in table]
        written = tomllib.loads((folder.parent / "new.toml").read_text(encoding="utf-8")).values()
        return all(any(np.allclose(table["matrix"], matrix) for matrix in known) for table in written)
    return True


_LABELS, _LABELS_OF = "convert labels . --to csv --out ../out.csv", "convert labels {} --to csv --out ../out.csv"
_LIGHTNING = "convert labels config.yaml --to csv --out ../out.csv"
_CORRECTED = "track animals.csv --animals 2 --out ../new.csv --corrections {}"
_TRIANGULATED = "triangulate --calibration anipose.toml c0=t.csv c1={} --out ../new.csv"
_CAMERAS = "convert cameras {} --to anipose --out ../new.toml"
_PLAIN = ("convert predictions {} --to csv --out ../out.csv", "smooth {} --out ../new.csv")
_ANIMALS = ("convert predictions {} --to csv --out ../out.csv", "track {} --animals 2 --out ../new.csv")
_DRY = " --dry_run=data out=../new mesh.devices=1 mesh.platform=cpu"
# A report takes seconds.
_RUN = ("report --run run --out ../new.html", *("compare run other", "watch run") * 4)
READERS: dict[str, Reader] = {
    "label CSV": Reader("csv", ("CollectedData.csv",), (_LABELS,), meaning=_same_points(_csv_points)),
    "label CSV, animals": Reader("animals", ("CollectedData.csv",), (f"train .{_DRY}",)),
    "label CSV, opened to label": Reader("csv", ("CollectedData.csv",), (lambda file: _open_to_label(file.parent),)),
    "DeepLabCut H5": Reader("dlc", ("labeled-data/*/*.h5",), (_LABELS,), meaning=_same_points(_points_of_videos)),
    "DeepLabCut YAML": Reader("dlc", ("config.yaml",), (_LABELS, f"train config.yaml{_DRY}")),
    "Lightning Pose YAML": Reader("lp", ("config.yaml",), (f"train config.yaml{_DRY}", _LIGHTNING)),
    "COCO JSON": Reader("coco", ("labels.json",), (_LABELS_OF,), meaning=_same_points(_coco_points)),
    "SLEAP labels": Reader("slp", ("labels.slp",), (_LABELS_OF,)),
    "SLEAP package": Reader("pkg", ("labels.pkg.slp",), (_LABELS_OF,)),
    "boxes": Reader("boxes", ("bbox.csv",), (f"train . data.boxes=bbox.csv{_DRY}",)),
    "images": Reader("images", ("labeled-data/v/*",), (_LABELS, "check . --out ../new.html"), (0, 1)),
    "table CSV": Reader("tables", ("t.csv",), _PLAIN, meaning=_same_points(_csv_points)),
    "table CSV, animals": Reader("tables", ("animals.csv",), _ANIMALS, meaning=_same_points(_csv_points)),
    "table H5 (DeepLabCut)": Reader("tables", ("*DLC*.h5",), _PLAIN, meaning=_same_points(_h5_points)),
    "table H5 (SLEAP analysis)": Reader("tables", ("*.analysis.h5",), _ANIMALS[:1]),
    "table SLP": Reader("tables", ("animals.slp",), _ANIMALS),
    "table Parquet": Reader("tables", ("t.parquet",), _PLAIN),
    "corrections": Reader("tables", ("corrections.csv",), (_CORRECTED,)),
    "calibration TOML": Reader("rigs", ("*.toml",), (_CAMERAS,), meaning=_same_cameras, aliases=("give --size",)),
    "calibration MAT": Reader("rigs", ("rig.mat",), (f"{_CAMERAS} --size 1280x1024",)),
    "calibration SLP": Reader("rigs", ("rig.slp",), (_CAMERAS,)),
    "calibration YAML": Reader("rigs", ("opencv/*.yaml", "jarvis/*.yaml"), (lambda file: _cameras(file.parent),)),
    "tables and cameras": Reader("rigs", ("u.csv",), (_TRIANGULATED,), aliases=("c1 ",)),
    "videos": Reader("videos", ("v.*",), ("draw {} t.csv --out ../new.mp4",)),
    "safetensors": Reader("weights", ("*.safetensors",), (_read_tensors,)),
    "torch file": Reader("weights", ("*.pt",), (_read_tensors,)),
    "run: parameters": Reader("runs", ("run/best.safetensors",), (_load,)),
    "run: JSON": Reader("runs", ("run/*.json",), (*_RUN, _load, _load)),
    "run: tables": Reader("runs", ("run/*.csv",), _RUN),
    "run: metrics": Reader("runs", ("run/metrics.jsonl",), _RUN),
}  # fmt: skip


def _cameras(folder: Path) -> int:
    return jaxpose(f"convert cameras {folder.name} --to anipose --out ../new.toml --size 1280x1024")


def _open_to_label(project: Path) -> None:
    """Opens a project as jaxpose label does, and reads what the page shows."""
    from jaxpose.label.project import open_project
    from jaxpose.label.store import Store

    store = Store(open_project(str(project), "CollectedData.csv"))
    for number in range(len(store.images)):
        store.frame(number)
    store.close()


def jaxpose(words: str | Sequence[str]) -> int:
    """Runs the console command in this process, and returns its exit code."""
    from jaxpose import __main__ as console

    sys.argv = ["jaxpose", *(words.split() if isinstance(words, str) else words)]
    try:
        console.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))


def make_files(root: Path) -> None:
    """Makes the folders of all readers.

    Args:
      root: an empty folder.
    """
    from jaxpose.data.synthetic import make_project

    project = make_project(root / "project", videos=2, labelled_frames=4, video_frames=12, side_px=64)
    several = make_project(root / "animals", videos=1, labelled_frames=4, video_frames=20, side_px=96, animals=2)
    os.chdir(root)
    for name in ("csv", "lp", "boxes", "slp", "coco", "dlc", "pkg"):
        if name in ("csv", "lp", "boxes"):
            shutil.copytree(project, root / name)
    _make_labels(root)
    _make_images(root / "images")
    _run(f"train project out=runs/run {' '.join(_OPTIONS)}")
    _make_tables(root, several)
    _make_rigs(root / "rigs")
    _make_videos(root, project)
    _make_weights(root / "weights")
    _make_run(root / "runs" / "run")


def _run(words: str) -> None:
    code = jaxpose(words)
    if code:
        raise RuntimeError(f"jaxpose {words} ended with {code}")


def _make_labels(root: Path) -> None:
    for form, out in (
        ("deeplabcut", "dlc"),
        ("coco", "coco/labels.json"),
        ("slp", "slp/labels.slp"),
        ("slp", "pkg/labels.pkg.slp"),
    ):
        _run(f"convert labels project --to {form} --out {out}")
    for file in root.glob("dlc/labeled-data/*/*.csv"):
        file.unlink()
    names = ", ".join(dict.fromkeys((root / "csv" / "CollectedData.csv").read_text().splitlines()[1].split(",")[1:]))
    (root / "lp" / "config.yaml").write_text(_LIGHTNING_POSE.replace("{}", names))
    (root / "dlc" / "config.yaml").write_text(_DEEPLABCUT.format(names))
    images = sorted((root / "boxes" / "labeled-data").rglob("*.png"))
    rows = [f"{file.relative_to(root / 'boxes').as_posix()},1,2,60,60" for file in images]
    (root / "boxes" / "bbox.csv").write_text("\n".join([",x,y,h,w", *rows]) + "\n")


_DEEPLABCUT = """\
Task: walk
scorer: synthetic
date: Jan1
multianimalproject: false
project_path: /elsewhere
video_sets:
  videos/session00.mp4:
    crop: 0, 64, 0, 64
bodyparts: [{}]
skeleton:
- [nose, neck]
TrainingFraction: [0.95]
iteration: 0
"""
_LIGHTNING_POSE = """\
data:
  image_resize_dims: {height: 128, width: 128}
  data_dir: .
  video_dir: videos
  csv_file: CollectedData.csv
  downsample_factor: 2
  num_keypoints: 7
  mirrored_column_matches: null
  columns_for_singleview_pca: [0, 1, 2, 3]
  keypoint_names: [{}]
training:
  imgaug: dlc
  train_batch_size: 4
  train_prob: 0.75
  val_prob: 0.25
  train_frames: 1
  max_epochs: 3
  min_epochs: 1
model:
  losses_to_use: []
  backbone: resnet18
  model_type: heatmap
losses:
  temporal: {log_weight: 5.0, epsilon: 20.0}
"""


def _make_images(folder: Path) -> None:
    import cv2

    (folder / "labeled-data" / "v").mkdir(parents=True)
    picture = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    rows = []
    for suffix in ("png", "jpg", "tiff", "bmp"):
        name = f"labeled-data/v/img{len(rows)}.{suffix}"
        cv2.imwrite(str(folder / name), picture)
        rows.append(f"{name},1,2,30,20\n")
    head = "scorer,me,me,me,me\nbodyparts,nose,nose,tail,tail\ncoords,x,y,x,y\n"
    (folder / "CollectedData.csv").write_text(head + "".join(rows))


def _make_tables(root: Path, several: Path) -> None:
    """Makes the tables of a video in every format, and corrections of its tracks."""
    tables = root / "tables"
    tables.mkdir()
    video = next((several / "videos").iterdir())
    shutil.copy(root / "runs" / "run" / "video_preds" / "session00.csv", tables / "t.csv")
    truth = next((several / "ground_truth").glob("*.csv")).read_text().splitlines()
    # Tables of predictions have a column of confidence for each keypoint.
    rows = []
    for number, line in enumerate(truth):
        cells = line.split(",")
        for at in range(len(cells) - 1, 1, -2):
            cells.insert(at + 1, "likelihood" if number == 3 else cells[at] if number < 3 else "0.9")
        rows.append(",".join(cells))
    (tables / "animals.csv").write_text("\n".join(rows) + "\n")
    _run("convert predictions tables/t.csv --to deeplabcut --out tables/tDLC_x.h5")
    _run("convert predictions tables/t.csv --to parquet --out tables/t.parquet")
    _run("convert predictions tables/animals.csv --to sleap-analysis --out tables/animals.analysis.h5")
    _run(f"convert predictions tables/animals.csv --to slp --out tables/animals.slp --video {video}")
    columns = "kind,track_a,track_b,frame_from,frame_to,answer,round"
    answers = ("swap,animal1,animal2,2,15,swap,0", "gap,animal1,,3,9,same,0", "close,animal2,,4,12,,0")
    (tables / "corrections.csv").write_text("\n".join([columns, *answers]) + "\n")


def _make_rigs(folder: Path) -> None:
    """Makes a rig of three cameras in every format, and a table."""
    from jaxpose.cameras.calibration_files import write_cameras
    from jaxpose.cameras.cameras import Camera, Cameras

    folder.mkdir()
    cameras = []
    for number, angle in enumerate((0.0, 0.7, 1.4)):
        turn = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
        matrix = np.array([[900.0, 0, 640], [0, 950, 510], [0, 0, 1]])
        lens = np.array([-0.1, 0.05, 1e-3, -2e-3, -0.01])
        cameras.append(Camera(f"c{number}", matrix, turn, np.array([0.0, 0, 400]), lens, (1280, 1024)))
    rig = Cameras(cameras)
    for form in ("anipose", "caliscope"):
        write_cameras(folder / f"{form}.toml", form, rig)
    write_cameras(folder / "rig.mat", "dannce", rig)
    write_cameras(folder / "rig.slp", "sleap", rig)
    for form in ("opencv", "jarvis"):
        (folder / form).mkdir()
        write_cameras(folder / form, form, rig)
    for name in ("t.csv", "u.csv"):
        shutil.copy(folder.parent / "tables" / "t.csv", folder / name)


def _make_videos(root: Path, project: Path) -> None:
    """Makes a video in containers of three kinds, without encoding it again, and one of single pictures."""
    import av
    import cv2

    folder, source = root / "videos", next((project / "videos").glob("session00*"))
    folder.mkdir()
    shutil.copy(root / "tables" / "t.csv", folder)
    for suffix in ("mp4", "mkv"):
        with av.open(str(source)) as given, av.open(str(folder / f"v.{suffix}"), "w") as out:
            stream = out.add_stream_from_template(given.streams.video[0])
            for packet in given.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    out.mux(packet)
    writer = cv2.VideoWriter(str(folder / "v.avi"), cv2.VideoWriter.fourcc(*"MJPG"), 30, (64, 64))
    for frame in np.random.default_rng(0).integers(0, 255, (12, 64, 64, 3), np.uint8):
        writer.write(frame)
    writer.release()


def _make_weights(folder: Path) -> None:
    """Makes named tensors as other programs write them."""
    import safetensors.numpy
    import torch

    folder.mkdir()
    arrays = {f"layer{number}.weight": np.arange(12, dtype=np.float32).reshape(3, 4) for number in range(3)}
    safetensors.numpy.save_file(arrays, folder / "a.safetensors", {"format": "pt"})
    torch.save({"state_dict": {name: torch.tensor(array) for name, array in arrays.items()}}, folder / "a.pt")
    torch.save({name: torch.tensor(array) for name, array in arrays.items()}, folder / "b.pt")


def _make_run(folder: Path) -> None:
    """Copies a run, and writes next to it what it means."""
    from jaxpose import load

    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    found = load(folder, devices=1, platform="cpu", is_compiled=False)
    meant = [found.checksum, list(found.keypoint_names), repr(found.config.model)]
    shutil.copytree(folder, folder.with_name("other"))
    (folder.parent / "meant.json").write_text(json.dumps(meant))
