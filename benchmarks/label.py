"""Measures the page of `jaxpose label` in a headless Chromium: see benchmarks/label.md.

    python benchmarks/label.py --out label.json --work FOLDER

Makes a project in FOLDER with a label file of many images, which are all the same picture of 1280 x 1024 px.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from playwright.sync_api import Page, sync_playwright

KEYPOINTS = 17
SIZE_PX = (1280, 1024)
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file of the answers")
    parser.add_argument("--work", type=Path, required=True, help="folder of the project")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100, help="keys pressed for each figure")
    given = parser.parse_args(argv)
    project = make_project(given.work, given.images)
    command = [sys.executable, "-m", "jaxpose", "label", str(project), "--no-browser"]
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as serving:
        assert serving.stdout
        address = serving.stdout.readline().strip()
        answers: dict[str, Any] = {"images": given.images, "start_s": time.monotonic() - start}
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                answers |= measure(browser.new_page(viewport={"width": 1280, "height": 800}), address, given.keys)
                answers["server_mb"] = resident_mb(serving.pid)
                browser.close()
        finally:
            serving.terminate()
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


def measure(page: Page, address: str, keys: int) -> dict[str, Any]:
    """Returns the figures of the page."""
    start = time.monotonic()
    page.goto(address)
    page.wait_for_selector("#keypoints button")
    page.locator("#image", has_text=re.compile("img")).wait_for()
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
