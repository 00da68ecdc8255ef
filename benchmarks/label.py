"""Measures the page of `jaxpose label` in a headless Chromium: see benchmarks/label.md.

    python benchmarks/label.py --out label.json --work FOLDER

Makes a project in FOLDER with a label file of many images, which are all the same picture of 1280 x 1024 px.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from playwright.sync_api import Page, sync_playwright

from jaxpose.formats.lightning_pose.tables import write_predictions

KEYPOINTS = 17
SIZE_PX = (1280, 1024)
VIDEO_FRAMES, GOP = 500, 250
# A line to a server far away.
ROUND_TRIP_MS, LINE_BYTES_PER_S = 50, 20e6 / 8
TIMELINE_FRAMES, TIMELINE_IMAGES = 1_000_000, 10_000
# Resolves with the milliseconds from a key to the first frame that the browser paints after the page shows its image.
KEY_TO_PAINT = """(key) => new Promise((done) => {
  const image = document.getElementById("image"), before = image.textContent, start = performance.now();
  const seen = new MutationObserver(() => {
    if (image.textContent === before) return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  });
  seen.observe(image, { childList: true, characterData: true, subtree: true });
  document.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
})"""
# Places the current keypoint by its key: the milliseconds until it is painted, and until the server has it on its disk.
POINT_TO_SAVED = """() => new Promise((done) => {
  const start = performance.now();
  let painted = 0;
  const seen = new MutationObserver(() => {
    if (document.getElementById("saved").textContent === "saving") return;
    seen.disconnect();
    done([painted, performance.now() - start]);
  });
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "p", bubbles: true }));
  requestAnimationFrame(() => setTimeout(() => { painted = performance.now() - start; }));
  seen.observe(document.getElementById("saved"), { childList: true, characterData: true, subtree: true });
})"""

# Shows a frame of the video: the milliseconds until it is painted.
JUMP = """(frame) => new Promise((done) => {
  const image = document.getElementById("image"), slider = document.getElementById("slider"), start = performance.now();
  const seen = new MutationObserver(() => {
    if (!new RegExp(`^video, frame ${frame}(:|$)`).test(image.textContent)) return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
  });
  seen.observe(image, { childList: true, characterData: true, subtree: true });
  slider.value = frame;
  slider.dispatchEvent(new Event("input"));
})"""
# Draws the timeline of a long video again and again: the milliseconds of each time until it is painted.
REDRAW = """async ([frames, images, times]) => {
  const { Timeline } = await import("/timeline.js"), timeline = new Timeline(() => {}, () => {}), found = [];
  timeline.element.hidden = false;
  timeline.frames = frames;
  const spread = Array.from({ length: images }, (_, number) => [Math.floor((number * frames) / images), number]);
  timeline.images = new Map(spread);
  timeline.forget();
  const values = Array.from({ length: 2000 }, () => Math.random());
  for (const kind of ["confidence", "step_px", "pca_error_px"]) timeline.take(kind, [values]);
  timeline.take("doubts", [spread.slice(0, 1000).map(([frame]) => [frame, frame + 1])]);
  timeline.slider.max = frames - 1;
  for (let time = 0; time < times; time++) {
    const start = performance.now();
    timeline.show(Math.floor(Math.random() * frames));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    found.push(performance.now() - start);
  }
  timeline.element.hidden = true;
  return found;
}"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the answers")
    parser.add_argument("--work", type=Path, required=True, help="folder of the project")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100, help="keys pressed for each figure")
    given = parser.parse_args(argv)
    project = make_project(given.work, given.images)
    answers: dict[str, Any] = {"images": given.images}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        start = time.monotonic()
        with serving(project) as (address, process):
            answers["start_s"] = time.monotonic() - start
            answers |= measure(browser.new_page(viewport={"width": 1280, "height": 800}), address, given.keys)
            answers["server_mb"] = resident_mb(process)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            answers["slow_line_frames_per_s"] = measure_slow_line(page, address, given.keys)
        make_video(project)
        with serving(project, "--predictions", str(write_table(project, given.images))) as (address, _):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            answers |= measure_corrections(page, address, given.keys)
            answers |= measure_video(page, given.keys)
        browser.close()
    given.out.write_text(json.dumps(answers) + "\n")
    print(json.dumps(answers, indent=2))
    return 0


def make_project(folder: Path, images: int) -> Path:
    """A project in the layout of Lightning Pose; each tenth image has no label."""
    rng = np.random.default_rng(0)
    place = folder / "project" / "labeled-data" / "video"
    place.mkdir(parents=True, exist_ok=True)
    blurred = cv2.GaussianBlur(rng.integers(0, 255, (SIZE_PX[1], SIZE_PX[0], 3), np.uint8), (0, 0), 3)
    picture = cv2.normalize(blurred, None, 0, 255, cv2.NORM_MINMAX)  # pyright: ignore[reportCallIssue, reportArgumentType]
    first = folder / "picture.jpg"
    cv2.imwrite(str(first), picture, [cv2.IMWRITE_JPEG_QUALITY, 90])
    columns = [f"part{k}" for k in range(KEYPOINTS) for _ in "xy"]
    rows = [["scorer", *["me"] * len(columns)], ["bodyparts", *columns], ["coords", *"xy" * KEYPOINTS]]
    for number in range(images):
        file = place / f"img{10 * number:06}.jpg"
        if not file.exists():
            os.link(first, file)
        points = rng.uniform(10, 1000, 2 * KEYPOINTS)
        cells = [""] * len(points) if number % 10 == 0 else [f"{value:.3f}" for value in points]
        rows.append([f"labeled-data/video/{file.name}", *cells])
    (folder / "project" / "CollectedData.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    return folder / "project"


@contextlib.contextmanager
def serving(project: Path, *flags: str) -> Iterator[tuple[str, int]]:
    """Runs jaxpose label: its address and its process."""
    command = [sys.executable, "-m", "jaxpose", "label", str(project), "--no-browser", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def make_video(project: Path) -> None:
    """A video in which the picture of the project drifts, with a key frame for each GOP of frames."""
    file = project / "videos" / "video.mp4"
    if file.exists():
        return
    file.parent.mkdir(exist_ok=True)
    picture = cv2.imread(str(project.parent / "picture.jpg"))
    assert picture is not None
    with av.open(str(file), "w") as container:
        options = {"preset": "ultrafast", "x264-params": f"keyint={GOP}:min-keyint={GOP}:scenecut=0"}
        stream = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE_PX, "yuv420p"
        for number in range(VIDEO_FRAMES):
            frame = np.array(np.roll(picture, 2 * number, axis=1), np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "bgr24")))
        container.mux(stream.encode())


def write_table(project: Path, images: int) -> Path:
    """Predictions of the images without labels."""
    names = [f"labeled-data/video/img{10 * number:06}.jpg" for number in range(0, images, 10)]
    points_px = np.random.default_rng(1).uniform(10, 1000, (len(names), KEYPOINTS, 2))
    file = project.parent / "predictions.csv"
    keypoints = tuple(f"part{k}" for k in range(KEYPOINTS))
    write_predictions(file, names, keypoints, points_px, np.full((len(names), KEYPOINTS), 0.9))
    return file


def open_page(page: Page, address: str) -> None:
    """Opens the page, and waits for the first image."""
    page.goto(address)
    page.wait_for_selector("#keypoints button")
    page.locator("#image", has_text=re.compile("img")).wait_for()


def measure_slow_line(page: Page, address: str, keys: int) -> float:
    """Returns how many images a held key shows each second over a slow line; none may come out of order."""
    open_page(page, address)
    page.select_option("#filter", "all")
    page.locator(".stage").focus()
    line = {"offline": False, "latency": ROUND_TRIP_MS}
    line |= {"downloadThroughput": LINE_BYTES_PER_S, "uploadThroughput": LINE_BYTES_PER_S}
    page.context.new_cdp_session(page).send("Network.emulateNetworkConditions", line)
    start, shown = time.monotonic(), [page.inner_text("#image")]
    for _ in range(keys):
        page.evaluate(KEY_TO_PAINT, "d")
        shown.append(page.inner_text("#image"))
    assert shown == sorted(shown) and len({*shown}) == keys + 1
    return keys / (time.monotonic() - start)


def measure_corrections(page: Page, address: str, keys: int) -> dict[str, Any]:
    """Returns the seconds to confirm a right prediction with one key, and to place all points with as many clicks."""
    open_page(page, address)
    page.locator(".stage").focus()
    page.wait_for_timeout(2000)
    times = []
    for _ in range(keys):
        times.append(page.evaluate(KEY_TO_PAINT, "Enter"))
        page.wait_for_timeout(100)
    answers: dict[str, Any] = {"confirm_ms": quantiles(times)}
    box = page.locator(".stage").bounding_box()
    assert box
    for _ in range(KEYPOINTS):
        page.keyboard.press("x")
    page.locator("#keypoints button").first.click()
    start = time.monotonic()
    for k in range(KEYPOINTS):
        page.mouse.click(box["x"] + box["width"] * (0.2 + 0.03 * k), box["y"] + box["height"] * (0.3 + 0.02 * k))
    page.evaluate(KEY_TO_PAINT, "Enter")
    return answers | {"place_all_s": time.monotonic() - start, "place_all_actions": KEYPOINTS + 1}


def measure_video(page: Page, keys: int) -> dict[str, Any]:
    """Returns the figures of jumps in the video, and of the timeline of a much longer one."""
    page.keyboard.press("g")
    page.locator("#image", has_text="video, frame").wait_for()
    page.wait_for_timeout(2000)
    rng, times = np.random.default_rng(0), dict[int, float]()
    for frame in rng.permutation(VIDEO_FRAMES)[:keys].tolist():
        times[frame] = page.evaluate(JUMP, frame)
        page.wait_for_timeout(500)
    answers: dict[str, Any] = {"jump_ms": quantiles(list(times.values()))}
    answers["jump_ms_without_3_ms_for_each_frame"] = quantiles([ms - 3 * (frame % GOP) for frame, ms in times.items()])
    page.keyboard.press("g")
    answers["timeline_redraw_ms"] = quantiles(page.evaluate(REDRAW, [TIMELINE_FRAMES, TIMELINE_IMAGES, keys]))
    return answers


def measure(page: Page, address: str, keys: int) -> dict[str, Any]:
    """Returns the figures of the page."""
    start = time.monotonic()
    open_page(page, address)
    answers: dict[str, Any] = {"open_s": time.monotonic() - start}
    page.select_option("#filter", "all")
    page.locator(".stage").focus()
    page.wait_for_timeout(2000)
    # One by one, with a pause as a person makes it.
    times = []
    for _ in range(keys):
        times.append(page.evaluate(KEY_TO_PAINT, "d"))
        page.wait_for_timeout(100)
    answers["key_to_frame_ms"] = quantiles(times)
    start = time.monotonic()
    for _ in range(keys):
        page.evaluate(KEY_TO_PAINT, "d")
    answers["held_key_frames_per_s"] = keys / (time.monotonic() - start)
    pairs = []
    for _ in range(keys):
        pairs.append(page.evaluate(POINT_TO_SAVED))
        page.keyboard.press("x")
        page.keyboard.press("w")
        page.wait_for_timeout(100)
    answers["point_painted_ms"], answers["point_durable_ms"] = (quantiles(list(of)) for of in zip(*pairs, strict=True))
    client = page.context.new_cdp_session(page)
    client.send("HeapProfiler.collectGarbage")
    answers["page_heap_mb"] = client.send("Runtime.getHeapUsage")["usedSize"] / 1e6
    return answers


def quantiles(values: list[float]) -> dict[str, float]:
    return {name: float(np.quantile(values, share)) for name, share in (("p50", 0.5), ("p95", 0.95))}


def resident_mb(process: int) -> float:
    """The memory of a process, in MB."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) / 1000


if __name__ == "__main__":
    sys.exit(main())
