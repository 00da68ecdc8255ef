"""How many identities does `jaxpose track` keep, and what does it cost?

    python benchmarks/tracking.py DATA --degraded D0.slp D1.slp D2.slp --out benchmarks/tracking.jsonl

DATA has the folders centred-pair, home-cage and two-flies. The detections of each .slp are tracked without their tracks
and compared with the proofread file, as are the tracks that the file had, and the oracle: the same detections, each
with the identity of the nearest animal of the truth, and one identity for all false ones. Degraded files are of
two-flies/clip.slp. With --frames N, instead measures time and memory for 10 made animals in N frames. Appends one JSON
line for each.
"""

import argparse
import dataclasses
import json
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxpose.formats.sleap_files import read_slp
from jaxpose.poses import Poses
from jaxpose.tracking.detections import find_detections
from jaxpose.tracking.metrics import GATE, track_errors
from jaxpose.tracking.tracks import Number, track

SETS = {
    "home-cage/sleap_tracked.slp": "home-cage/proofread.slp",
    "centred-pair/predictions.slp": "centred-pair/clean.slp",
    "two-flies/clip.predictions.slp": "two-flies/clip.slp",
}
ANIMALS = 2


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path, nargs="?", help="folder with the detections and the proofread files")
    arguments.add_argument(
        "--degraded", type=Path, nargs="*", default=[], help="worse detections of two-flies/clip.slp"
    )
    arguments.add_argument("--frames", type=int, default=0, help="measure the cost of a made video of so many frames")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    given = arguments.parse_args()
    if given.frames:
        _write(given.out, _cost(given.frames))
        return 0
    pairs = [(name, given.data / name, given.data / truth) for name, truth in SETS.items()]
    pairs += [(file.name, file, given.data / "two-flies/clip.slp") for file in given.degraded]
    for name, file, truth in pairs:
        _write(given.out, {"detections": name} | _compare(read_slp(truth).poses, read_slp(file).poses))
    return 0


def _compare(truth: Poses, detections: Poses) -> dict:
    begun = time.perf_counter()
    tracked = track(detections, Number(ANIMALS, ANIMALS))
    found = {"seconds": round(time.perf_counter() - begun, 2)}
    kinds = {"ours": tracked, "oracle": _oracle(truth, detections)}
    kinds |= {"stored": detections} if detections.individuals else {}
    for kind, poses in kinds.items():
        errors = dataclasses.asdict(track_errors(truth, poses))
        found |= {f"{kind}_{name}": round(value, 4) for name, value in errors.items()}
    return found


def _oracle(truth: Poses, detections: Poses) -> Poses:
    expected, found = find_detections(truth), find_detections(detections)
    corners = np.nanmax(expected.poses_px, axis=1) - np.nanmin(expected.poses_px, axis=1)
    gate = GATE * np.median(np.linalg.norm(corners, axis=1))
    known = np.asarray(truth.identity)[expected.frames, expected.places]
    numbers = np.full(len(found), len(truth.individuals))
    for frame in np.unique(found.frames).tolist():
        here, there = (np.flatnonzero(one.frames == frame) for one in (expected, found))
        apart = np.linalg.norm(expected.centres_px[here][:, None] - found.centres_px[there][None], axis=-1)
        rows, columns = linear_sum_assignment(np.where(apart < gate, apart, 1e6))
        is_near = apart[rows, columns] < gate
        numbers[there[columns[is_near]]] = known[here[rows[is_near]]]
    identity = np.full(detections.points_px.shape[:2], -1)
    identity[found.frames, found.places] = numbers
    return dataclasses.replace(detections, identity=identity, individuals=(*truth.individuals, "false"))


def _cost(frames: int, animals: int = 10, keypoints: int = 13) -> dict:
    """Measures animals that wander; 10 % of the detections are missing, and 5 % are false."""
    random = np.random.default_rng(0)
    places = np.cumsum(random.normal(0, 2, (frames, animals, 2)), axis=0)
    # Reflected at the walls of an arena of 1,000 px.
    places = 1000 - np.abs((places + random.uniform(0, 1000, (animals, 2))) % 2000 - 1000)
    body = random.normal(0, 15, (keypoints, 2))
    points = (places[:, :, None] + body + random.normal(0, 1, (frames, animals, keypoints, 2))).astype(np.float32)
    points[random.random((frames, animals)) < 0.1] = np.nan
    is_false = random.random((frames, animals)) < 0.05
    points[is_false] += random.uniform(-400, 400, (int(is_false.sum()), 1, 2)).astype(np.float32)
    score = np.where(is_false, 0.3, 1.0)
    poses = Poses(tuple(map(str, range(keypoints))), range(frames), points, score=score)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    tracked = track(poses, Number(animals, animals))
    seconds = time.process_time() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = {"animals": animals, "frames": frames, "keypoints": keypoints, "cpu_seconds": round(seconds, 1)}
    line |= {"gib_before": round(before / 2**20, 2), "gib_most": round(most / 2**20, 2)}
    return line | {"tracks": len(tracked.individuals)}


def _write(out: Path, line: dict) -> None:
    line |= {"numpy": np.__version__, "machine": platform.machine(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(line), flush=True)
    with open(out, "a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
