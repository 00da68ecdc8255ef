"""Makes the pictures in the documents from real runs.

    python docs/pictures.py --project PATH/mirror-mouse-example --work FOLDER

Trains on the mouse example and on the synthetic animal in FOLDER (10 and 3 minutes on 2 quiet cores; a second call uses
the finished runs), draws their videos, writes their reports, and replaces docs/pictures/. Needs Chromium and the extra
dev.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
from playwright.sync_api import sync_playwright

from jaxpose.data.synthetic import make_project

FOLDER = Path(__file__).resolve().parent / "pictures"
CHROMIUM = "chromium"
PAGE_PX = (1280, 1330)
# The highest of these qualities with which the file is small enough.
JPEG_QUALITIES, MOST_BYTES = (72, 64, 56, 48), 149_000
TRAIL_FRAMES = 15
# Small frames are enlarged by a whole factor up to this width.
WIDTH_PX = 1200
# Animals whose middles are closer than this are not detected in the picture of a review.
TOUCH_PX = 40
_VIEWS = ("top", "bot")
_BONES = ("nose:tailBase", "tailBase:tailMid", "tailBase:paw1LH", "tailBase:paw4RH", "nose:paw2LF", "nose:paw3RF")
SKELETON = tuple(f"{a}_{view}:{b}_{view}" for view in _VIEWS for a, b in (bone.split(":") for bone in _BONES))
# As in benchmarks/accuracy.py, with a smaller network: the rate is halved three times in 675 steps.
MOUSE_OPTIONS = (
    "model.backbone=resnet10", "data.input_width_px=128", "data.input_height_px=128", "augment.preset=dlc",
    "train.steps=675", "optim.milestones_epochs=(67.6,90,112.6)", f"data.skeleton={SKELETON}",
)  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True, help="the mouse example")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    given = parser.parse_args(argv)
    work = given.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    runs = {
        "mouse": trained(work, "mouse", [str(given.project.resolve()), *MOUSE_OPTIONS]),
        "synthetic": trained(work, "synthetic", ["--config", "configs/pose.py"]),
    }
    FOLDER.mkdir(exist_ok=True)
    for name, (of, make) in PICTURES.items():
        write(FOLDER / name, make(runs[of]))
    return 0


def trained(work: Path, name: str, arguments: list[str]) -> Path:
    """Trains in the folder `name`, unless its run is finished, and returns this run folder."""
    jaxpose(["train", *arguments, f"out={work / name}"], work)
    return work / name


def jaxpose(arguments: list[str], folder: Path, codes: tuple[int, ...] = (0,)) -> None:
    """Runs a verb, and exits if its exit code is not one of these."""
    ended = subprocess.run([sys.executable, "-m", "jaxpose", *arguments], cwd=folder)
    if ended.returncode not in codes:
        sys.exit(f"jaxpose {arguments[0]} ended with exit code {ended.returncode}")


def report_top(run: Path) -> np.ndarray:
    """The first screen of a run's report, (h, w, 3) BGR."""
    jaxpose(["report", "--run", str(run)], run.parent)
    return screenshot((run / "report.html").as_uri(), run / "report.png")


def label_page_top(run: Path) -> np.ndarray:
    """The first screen of the page that checks the labels of the run's project, (h, w, 3) BGR."""
    page = run.parent / "labels.html"
    # The exit code is 1 if there are findings.
    jaxpose(["check", str(project_of(run)), "--out", str(page), f"data.skeleton={SKELETON}"], run.parent, (0, 1))
    return screenshot(page.as_uri(), page.with_suffix(".png"))


def label_page(run: Path) -> np.ndarray:
    """The labelling page, with an image of the run's project, (h, w, 3) BGR."""
    copy = run.parent / "labelled"
    shutil.copytree(project_of(run), copy, dirs_exist_ok=True)
    return served([str(copy)], run.parent / "label.png")


def label_views(run: Path) -> np.ndarray:
    """The labelling page with three cameras, of which the first has a single label, (h, w, 3) BGR."""
    copy = run.parent / "cameras"
    shutil.rmtree(copy, ignore_errors=True)
    make_project(copy, videos=2, labelled_frames=6, video_frames=40, side_px=256, cameras=3)
    for view, rows, columns in (("c1", 1, 2), ("c2", 3, None), ("c3", 3, None)):
        file = copy / f"CollectedData_{view}.csv"
        table = pd.read_csv(file, header=[0, 1, 2], index_col=0).iloc[:rows, :columns]
        table.reindex(columns=pd.read_csv(file, header=[0, 1, 2], index_col=0).columns).to_csv(file)
    return served([str(copy), "--calibration", str(copy / "calibrations")], run.parent / "label_views.png")


def label_review(run: Path) -> np.ndarray:
    """The page that checks tracks, with two synthetic animals that are not detected where they touch, (h, w, 3) BGR."""
    copy = run.parent / "pair"
    shutil.rmtree(copy, ignore_errors=True)
    make_project(copy, videos=1, labelled_frames=1, video_frames=400, side_px=256, animals=2)
    table = pd.read_csv(copy / "ground_truth/session00.csv", header=[0, 1, 2, 3], index_col=0)
    points_px = table.to_numpy().reshape(len(table), 2, -1, 2)
    touch = np.linalg.norm(np.diff(points_px.mean(axis=2), axis=1), axis=-1)[:, 0] < TOUCH_PX
    points_px = np.where(touch[:, None, None, None], np.nan, points_px)
    rows = np.concatenate([points_px, np.where(np.isnan(points_px[..., :1]), np.nan, 0.95)], axis=-1)
    names = table.columns[::2].to_frame(index=False).to_numpy().tolist()
    columns = [(*name[:3], coord) for name in names for coord in ("x", "y", "likelihood")]
    columns = pd.MultiIndex.from_tuples(columns, names=("scorer", "individuals", "bodyparts", "coords"))
    pd.DataFrame(rows.reshape(len(rows), -1), columns=columns).to_csv(copy / "pair.csv")
    tracks = copy / "pair_tracks.csv"
    jaxpose(["track", str(copy / "pair.csv"), "--animals", "2", "--out", str(tracks)], run.parent)
    review = [str(tracks.with_name("pair_tracks_review.csv")), "--video", str(copy / "videos/session00.mp4")]
    return served(review, run.parent / "label_review.png", (1120, 620))


def served(arguments: list[str], shot: Path, size_px: tuple[int, int] = (1280, 760)) -> np.ndarray:
    """The page of `jaxpose label`, as it opens in a window of this width and height."""
    command = [sys.executable, "-m", "jaxpose", "label", *arguments, "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout
        address = serving.stdout.readline().strip()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which(CHROMIUM), args=["--no-sandbox"])
            width, height = size_px
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.goto(address, wait_until="networkidle")
            page.screenshot(path=shot)
            browser.close()
        serving.terminate()
    return read(shot)


def screenshot(address: str, shot: Path) -> np.ndarray:
    """The top of a page in a browser with the light colour scheme."""
    width, height = PAGE_PX
    command = [shutil.which(CHROMIUM) or CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    # Scripts get this many ms to draw the figures.
    command += [f"--screenshot={shot}", f"--window-size={width},{height}", "--virtual-time-budget=15000"]
    subprocess.run([*command, address], check=True, capture_output=True)
    return read(shot)


def labelled_frame(run: Path) -> np.ndarray:
    """A frame of the labelled video, with skeleton and trails."""
    frames = labelled_video(run, TRAIL_FRAMES)
    return frames[len(frames) // 2]


def three_frames(run: Path) -> np.ndarray:
    """Three frames of the labelled video, from its beginning, middle and end, side by side."""
    frames = labelled_video(run, 0)
    picture = np.hstack([frames[len(frames) * part // 6] for part in (1, 3, 5)])
    scale = max(1, WIDTH_PX // picture.shape[1])
    return cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)


def labelled_video(run: Path, trail_frames: int) -> list[np.ndarray]:
    """Draws the run's predictions of the project's last video, and returns the frames."""
    tables = [file for file in (run / "video_preds").glob("*.csv") if not file.stem.endswith(("_norm", "_error"))]
    table = max(tables)
    (video,) = (project_of(run) / "videos").glob(f"{table.stem}.*")
    out = run.parent / f"{run.name}-labelled-{trail_frames}.mp4"
    flags = ["--out", str(out), "--trail", str(trail_frames), "--run", str(run), "--overwrite"]
    jaxpose(["draw", str(video), str(table), *flags], run.parent)
    reader, frames = cv2.VideoCapture(str(out)), []
    while (answer := reader.read())[0]:
        frames.append(answer[1])
    return frames


def project_of(run: Path) -> Path:
    """The project that a run was trained on."""
    return Path(json.loads((run / "config.json").read_text())["data"]["project"])


def read(file: Path) -> np.ndarray:
    picture = cv2.imread(str(file))
    if picture is None:
        sys.exit(f"{file} is not an image")
    return picture


def write(file: Path, picture: np.ndarray) -> None:
    for quality in JPEG_QUALITIES:
        small = [cv2.IMWRITE_JPEG_OPTIMIZE, 1, cv2.IMWRITE_JPEG_PROGRESSIVE, 1]
        cv2.imwrite(str(file), picture, [cv2.IMWRITE_JPEG_QUALITY, quality, *small])
        if file.stat().st_size <= MOST_BYTES:
            break
    print(f"{file}: {picture.shape[1]} x {picture.shape[0]} px, {file.stat().st_size / 1000:.0f} kB")


# {file: (run, the function that makes the picture)}
PICTURES: dict[str, tuple[str, Callable[[Path], np.ndarray]]] = {
    "report.jpg": ("mouse", report_top),
    "labels.jpg": ("mouse", label_page_top),
    "label.jpg": ("mouse", label_page),
    "label_views.jpg": ("synthetic", label_views),
    "label_review.jpg": ("synthetic", label_review),
    "labelled_frame.jpg": ("mouse", labelled_frame),
    "three_frames.jpg": ("mouse", three_frames),
    "synthetic_frames.jpg": ("synthetic", three_frames),
}

if __name__ == "__main__":
    sys.exit(main())
