"""Predicts frames as they arrive, from a camera or from a video at its own pace, and passes each pose on at once.

    pip install onnxruntime opencv-python-headless
    python live.py mouse.onnx 0 --out poses.csv            # camera number 0; Ctrl-C ends it
    python live.py mouse.onnx session.mp4 --out poses.csv

`jaxpose export` writes mouse.onnx; jaxpose itself is not needed. If several frames arrive while one is predicted, the
newest is predicted next, and the others are dropped. At the end, the script prints the latency: the time from the
arrival of a frame in this program until its pose has been processed.

To act on the poses, write a class with the methods of `Recorder` below, in a script of your own:

    from live import run

    class Feeder:
        def process(self, pose, **kwargs):
            ...

        def save(self, file):
            ...

    print(run("mouse.onnx", 0, Feeder()))
"""

import argparse
import csv
import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any

import cv2
import numpy as np
import onnxruntime

# The first calls of a network are slow.
WARM_UP_CALLS = 5


class Recorder:
    """Collects the poses and writes them as a table."""

    def __init__(self) -> None:
        self.rows: list[list[float]] = []
        self.keypoint_names: list[str] = []

    def process(self, pose: np.ndarray, **kwargs: Any) -> np.ndarray:
        """Takes a pose as soon as it is predicted.

        Args:
          pose: (k, 3), x and y in pixels of the frame, and the confidence.
          kwargs: `frame`, the number of the frame; `frame_time`, its arrival in seconds of `time.time`;
            `keypoint_names`.
        """
        self.keypoint_names = kwargs["keypoint_names"]
        self.rows.append([kwargs["frame"], kwargs["frame_time"], *pose.ravel().tolist()])
        return pose

    def save(self, file: str) -> None:
        """Writes a row for each pose: the frame, its time, and x, y and confidence of each keypoint."""
        columns = [f"{name}_{column}" for name in self.keypoint_names for column in ("x", "y", "confidence")]
        with open(file, "w", newline="") as table:
            csv.writer(table).writerows([["frame", "time_s", *columns], *self.rows])


@dataclasses.dataclass(frozen=True)
class Summary:
    """How a session went.

    Attributes:
      latencies_ms: of the predicted frames, from the arrival of a frame until its pose was processed.
      dropped: frames that arrived, but were not predicted.
    """

    latencies_ms: list[float]
    dropped: int

    def __str__(self) -> str:
        count = len(self.latencies_ms)
        if not count:
            return "no frame arrived"
        half, most = np.percentile(self.latencies_ms, [50, 99])
        return (
            f"{count} frames predicted, {self.dropped} dropped; latency p50 {half:.1f} ms, p99 {most:.1f} ms, "
            f"longest {max(self.latencies_ms):.1f} ms"
        )


class Source(threading.Thread):
    """Reads a camera or, at its own pace, a video, and keeps only the newest frame."""

    def __init__(self, source: int | str, size_px: tuple[int, int]):
        super().__init__(daemon=True)
        self.arrived, self.problem = 0, ""
        self._is_camera = isinstance(source, int)
        self._capture = cv2.VideoCapture(source)
        name = f"camera {source}" if self._is_camera else str(source)
        if not self._capture.isOpened():
            sys.exit(f"{name} cannot be opened")
        if self._is_camera:
            self._capture.set(cv2.CAP_PROP_FRAME_WIDTH, size_px[0])
            self._capture.set(cv2.CAP_PROP_FRAME_HEIGHT, size_px[1])
        elif not self._capture.get(cv2.CAP_PROP_FPS) > 0:
            sys.exit(f"{name} states no frame rate")
        self._name, self._size_px = name, size_px
        self._newest: tuple[int, float, np.ndarray] | None = None
        self._changed, self._ended = threading.Condition(), False

    def run(self) -> None:
        started, fps = time.monotonic(), self._capture.get(cv2.CAP_PROP_FPS)
        while not self._ended:
            is_there, frame = self._capture.read()
            if is_there and frame.shape[1::-1] != self._size_px:
                self.problem = _wrong_size(self._name, frame.shape[1::-1], self._size_px)
            if not is_there or self.problem:
                break
            if not self._is_camera:
                time.sleep(max(0.0, started + self.arrived / fps - time.monotonic()))
            with self._changed:
                self._newest = self.arrived, time.time(), frame
                self.arrived += 1
                self._changed.notify()
        self.end()

    def next(self) -> tuple[int, float, np.ndarray] | None:
        """Waits for a frame and returns its number, time of arrival and pixels (h, w, 3) BGR; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._ended)
            newest, self._newest = self._newest, None
            return newest

    def end(self) -> None:
        """Ends the reading."""
        with self._changed:
            self._ended = True
            self._changed.notify()


def _wrong_size(name: str, given: tuple[int, ...], wanted: tuple[int, int]) -> str:
    (width, height), (export_width, export_height) = given, wanted
    return (
        f"{name} has frames of {width}x{height} px, and the file takes {export_width}x{export_height}: export it with "
        f"--frame_size {width}x{height}"
    )


def run(model: str, source: int | str, processor: Any, threads: int | None = None) -> Summary:
    """Predicts the frames of a source until it ends, or until Ctrl-C.

    Args:
      model: the ONNX file.
      source: number of a camera, or a video file.
      processor: an object like `Recorder`.
      threads: threads of a CPU that compute; None is one for each core that the process may use.
    """
    session = _open_session(model, threads)
    _, height, width, _ = session.get_inputs()[0].shape
    names = json.loads(session.get_modelmeta().custom_metadata_map["keypoint_names"])
    for _ in range(WARM_UP_CALLS):
        session.run(None, {"frames": np.zeros((1, height, width, 3), np.uint8)})
    frames, latencies_ms = Source(source, (width, height)), []
    frames.start()
    try:
        while newest := frames.next():
            number, arrived, pixels = newest
            rgb = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
            keypoints, confidence = map(np.asarray, session.run(["keypoints", "confidence"], {"frames": rgb[None]}))
            pose = np.concatenate([keypoints[0], confidence[0][:, None]], axis=1)
            processor.process(pose, frame=number, frame_time=arrived, keypoint_names=names)
            latencies_ms.append(1000 * (time.time() - arrived))
    except KeyboardInterrupt:
        pass
    frames.end()
    frames.join()
    if frames.problem:
        sys.exit(frames.problem)
    return Summary(latencies_ms, frames.arrived - len(latencies_ms))


def _open_session(model: str, threads: int | None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    options.intra_op_num_threads = threads or cores or 1
    try:
        session = onnxruntime.InferenceSession(model, options, providers=onnxruntime.get_available_providers())
    except Exception as error:
        sys.exit(f"{model} cannot be read: {error}")
    if "keypoint_names" not in session.get_modelmeta().custom_metadata_map:
        sys.exit(f"{model} was not written by jaxpose export: it names no keypoints")
    count, *frame = session.get_inputs()[0].shape
    if len(frame) != 3:
        sys.exit(f"{model} predicts a frame from its neighbours, of which two have not arrived yet: export another run")
    # Any number has a name.
    if isinstance(count, int) and count != 1:
        sys.exit(f"{model} takes {count} frames at once, and a live frame comes alone: export it without --batch")
    return session


def _refuse_no_place(out: str) -> None:
    """Ends the script if a table cannot be written, before a session whose poses would be lost."""
    folder = os.path.dirname(os.path.abspath(out))
    reason = ""
    if not os.path.isdir(folder):
        reason = f"there is no folder {folder}: make it, or give another file"
    elif os.path.isdir(out):
        reason = "it is a folder: give a file"
    elif not os.access(out if os.path.exists(out) else folder, os.W_OK):
        reason = "it cannot be written: give another file"
    if reason:
        sys.exit(f"--out is {out}, but {reason}")


def main(argv: list[str] | None = None) -> int:
    """Predicts a source, prints a summary and saves the poses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("source", help="number of a camera, or a video file")
    parser.add_argument("--out", help="table of the poses, .csv")
    parser.add_argument("--threads", type=int, help="threads of a CPU (default: one for each core)")
    given = parser.parse_args(argv)
    if given.out:
        _refuse_no_place(given.out)
    recorder = Recorder()
    source = int(given.source) if given.source.isdecimal() else given.source
    print(run(given.model, source, recorder, given.threads))
    if given.out:
        recorder.save(given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
