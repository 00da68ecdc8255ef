"""How many identities does `jaxpose track` keep, and what does it cost?

    python benchmarks/tracking.py DATA --degraded D0.slp D1.slp D2.slp --out benchmarks/tracking.jsonl

DATA has the folders centred-pair, home-cage, two-flies and two-mice. The detections of each .slp are tracked without
their tracks and compared with the proofread file, as are the tracks that the file had, and the oracle: the same
detections, each with the identity of the nearest animal of the truth, and one identity for all false ones. Degraded
files are of two-flies/clip.slp. Of two-mice, a person has checked only ten frames: the line counts the animals whose
identity is right in these. With --videos, instead tracks the same detections with their videos. With --crowds, instead
makes crowds of four flies of the same files, and degrades them. The first rows of each review are answered from the
truth, and the tracks are solved again. With --frames N, instead measures time and memory for 10 made animals in N
frames. Appends one JSON line for each.
"""

import argparse
import dataclasses
import itertools
import json
import os
import platform
import resource
import time
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxpose.errors import UserError
from jaxpose.formats.sleap_files import read_slp
from jaxpose.pose.detections import find_detections
from jaxpose.poses import Poses
from jaxpose.tracking.corrections import DIFFERENT, SAME, UNKNOWN, Correction, solve_corrected
from jaxpose.tracking.metrics import GATE, track_errors
from jaxpose.tracking.mixed import without_mixed
from jaxpose.tracking.review import EXTRA, MISSING, Doubt, find_doubts
from jaxpose.tracking.silhouettes import read_areas, told_apart
from jaxpose.tracking.tracks import Number, Solution, solve

SETS = {
    "home-cage/sleap_tracked.slp": "home-cage/proofread.slp",
    "centred-pair/predictions.slp": "centred-pair/clean.slp",
    "two-flies/clip.predictions.slp": "two-flies/clip.slp",
}
# A person has checked only some frames of these.
CHECKED = {"two-mice/predictions.slp": "two-mice/labels.slp"}
VIDEOS = {
    "home-cage": "home-cage/video.mp4",
    "centred-pair": "centred-pair/video.mp4",
    "two-flies": "two-flies/clip.mp4",
    "two-mice": "two-mice/mice.mp4",
}
CROWDS = ("two-flies/clip.slp", "centred-pair/clean.slp")
ANIMALS = 2
# So many first rows of a review are answered.
ROWS = (3, 10)


def main() -> int:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("data", type=Path, nargs="?", help="folder with the detections and the proofread files")
    arguments.add_argument(
        "--degraded", type=Path, nargs="*", default=[], help="worse detections of two-flies/clip.slp"
    )
    arguments.add_argument("--videos", action="store_true", help="measure tracks that also use the videos")
    arguments.add_argument("--crowds", action="store_true", help="measure made crowds of four flies")
    arguments.add_argument("--frames", type=int, default=0, help="measure the cost of a made video of so many frames")
    arguments.add_argument("--out", type=Path, required=True, help="JSON lines, appended to")
    given = arguments.parse_args()
    if given.frames:
        _write(given.out, _cost(given.frames))
        return 0
    pairs = [(name, given.data / name, given.data / truth) for name, truth in SETS.items()]
    pairs += [(file.name, file, given.data / "two-flies/clip.slp") for file in given.degraded]
    if given.videos:
        pairs += [(name, given.data / name, given.data / truth) for name, truth in CHECKED.items()]
        for name, file, truth in pairs:
            video = given.data / VIDEOS[truth.parent.name]
            _write(given.out, {"detections": name} | _with_video(read_slp(truth).poses, read_slp(file).poses, video))
        return 0
    if given.crowds:
        for name in CROWDS:
            crowd = _crowd(read_slp(given.data / name).poses)
            for seed in range(3):
                line = {"detections": f"crowd of {name}, seed {seed}"}
                _write(given.out, line | _compare(crowd, _degraded(crowd, seed), 2 * ANIMALS))
        return 0
    for name, file, truth in pairs:
        _write(given.out, {"detections": name} | _compare(read_slp(truth).poses, read_slp(file).poses, ANIMALS))
    for name, truth in CHECKED.items():
        poses = read_slp(given.data / truth).poses, read_slp(given.data / name).poses
        _write(given.out, {"detections": name} | _check(*poses, ANIMALS))
    return 0


def _compare(truth: Poses, detections: Poses, animals: int) -> dict:
    number, begun = Number(animals, animals), time.perf_counter()
    solution = solve(without_mixed(find_detections(detections)), number)
    found: dict = {"seconds": round(time.perf_counter() - begun, 2)}
    tracked, oracle = solution.named(detections), _oracle(truth, detections)
    kinds = {"ours": tracked, "oracle": oracle, "ours_true": _oracle(truth, _used(tracked))}
    doubts = find_doubts(solution)
    found |= {"rows": len(doubts)}
    for rows in ROWS:
        answers = _answers(solution, doubts[:rows], oracle)
        try:
            corrected = solve_corrected(solution.found, number, answers).named(detections)
        except UserError as error:
            found |= {f"corrected_{rows}": str(error)}
            continue
        kinds |= {f"corrected_{rows}": corrected, f"corrected_{rows}_true": _oracle(truth, _used(corrected))}
    kinds |= {"stored": detections} if detections.individuals else {}
    for kind, poses in kinds.items():
        errors = dataclasses.asdict(track_errors(truth, poses))
        names = ["idf1", "hota"] if kind.endswith("_true") else errors
        found |= {f"{kind}_{name}": round(errors[name], 4) for name in names}
    return found


def _with_video(truth: Poses, detections: Poses, video: Path) -> dict:
    """Measures tracks by motion alone, and by motion and silhouettes."""
    found, begun = without_mixed(find_detections(detections)), time.process_time()
    areas = read_areas(video, found)
    line: dict = {"video_cpu_seconds": round(time.process_time() - begun, 1)}
    motion = solve(found, Number(ANIMALS, ANIMALS))
    begun = time.process_time()
    solution = told_apart(motion, areas)
    line |= {
        "cpu_seconds": round(time.process_time() - begun, 2),
        "measured": round(float(np.isfinite(areas).mean()), 4),
    }
    for kind, one in (("motion", motion), ("video", solution)):
        errors = track_errors(truth, one.named(detections))
        line |= {f"{kind}_idf1": round(errors.idf1, 4), f"{kind}_switches": errors.switches}
    return line


def _check(truth: Poses, detections: Poses, animals: int) -> dict:
    """Counts the animals of checked frames: detected, with the right identity, and with it if all links were right."""
    begun = time.perf_counter()
    solution = solve(without_mixed(find_detections(detections)), Number(animals, animals))
    seconds = round(time.perf_counter() - begun, 2)
    is_checked = (np.asarray(truth.identity) >= 0) & np.isfinite(truth.points_px[..., 0]).any(axis=2)
    found, oracle = solution.found, _oracle(truth, detections)
    true = np.asarray(oracle.identity)[found.frames, found.places]
    is_known = true < len(truth.individuals)
    tracks, tracklets = (np.zeros((count, len(truth.individuals)), int) for count in (animals, len(solution.made)))
    is_used = is_known & (solution.of_detections >= 0)
    np.add.at(tracks, (solution.of_detections[is_used], true[is_used]), 1)
    np.add.at(tracklets, (solution.made.numbers[is_used], true[is_used]), 1)
    right = int(tracks[linear_sum_assignment(tracks, maximize=True)].sum())
    line = {"seconds": seconds, "tracklets": len(solution.made), "checked_frames": int(is_checked.any(axis=1).sum())}
    line |= {"checked": int(is_checked.sum()), "detected": int(is_known.sum()), "ours_right": right}
    return line | {"right_if_links_were": int(tracklets.max(axis=1).sum())}


def _used(tracked: Poses) -> Poses:
    """Returns the animals that a track uses."""
    is_used = np.asarray(tracked.identity) >= 0
    return dataclasses.replace(tracked, points_px=np.where(is_used[..., None, None], tracked.points_px, np.nan))


def _answers(solution: Solution, doubts: list[Doubt], oracle: Poses) -> list[Correction]:
    """Returns what a person who knows the truth answers to rows of a review."""
    found, answers = solution.found, []
    true = np.asarray(oracle.identity)[found.frames, found.places]
    false = len(oracle.individuals) - 1
    chains = {name: solution.chain(track) for track, name in enumerate(solution.names)}
    for doubt in doubts:
        if doubt.kind in (EXTRA, MISSING):
            continue
        behind = {name: chain[found.frames[chain] >= doubt.frame_to][:1] for name, chain in chains.items()}
        # The first to show an animal counts.
        shown = sorted((int(found.frames[end[0]]), name, int(true[end[0]])) for name, end in behind.items() if len(end))
        tracks = [solution.names[track] for track in (doubt.track_a, doubt.track_b) if track >= 0]
        then = []
        for name in tracks:
            last = np.searchsorted(found.frames[chains[name]], doubt.frame_from, side="right") - 1
            animal = int(true[chains[name][last]])
            then.append(next((other for _, other, one in shown if one == animal != false), UNKNOWN))
        if len(then) == 2 and then[0] == then[1]:
            # The animals of both are the same one, seen at two times before.
            then[1] = UNKNOWN
        names = [*tracks, ""][:2]
        answer = SAME if then == tracks else DIFFERENT if then == [UNKNOWN] else " ".join(then)
        if set(then) != {UNKNOWN} or answer == DIFFERENT:
            answers.append(Correction(doubt.kind, answer, 0, doubt.frame_from, doubt.frame_to, *names))
    return answers


def _crowd(truth: Poses) -> Poses:
    """Returns the animals of a recording together with their mirror image, which goes backwards in time."""
    points = truth.by_identity().points_px
    mirrored = points[::-1].copy()
    mirrored[..., 0] = np.nanmin(points[..., 0]) + np.nanmax(points[..., 0]) - mirrored[..., 0]
    points = np.concatenate([points, mirrored], axis=1)
    animals = points.shape[1]
    identity = np.where(np.isfinite(points[..., 0]).any(axis=2), np.arange(animals), -1)
    names = tuple(f"fly{place + 1}" for place in range(animals))
    return Poses(truth.keypoint_names, range(len(points)), points, identity=identity, individuals=names)


def _degraded(truth: Poses, seed: int) -> Poses:
    """Returns detections as those of the degraded files: the page says how."""
    random, points = np.random.default_rng(seed), truth.points_px
    frames, animals = points.shape[:2]
    centres = np.nanmedian(points, axis=2)
    size = np.nanmedian(np.linalg.norm(np.nanmax(points, axis=2) - np.nanmin(points, axis=2), axis=-1))
    kept = (np.asarray(truth.identity) >= 0) & (random.random((frames, animals)) > 0.1)
    for animal in range(animals):
        for _ in range(6):
            start, length = random.integers(0, frames), random.integers(10, 60)
            kept[start : start + length, animal] = False
    for frame in range(frames):
        for one, other in itertools.combinations(np.flatnonzero(kept[frame]).tolist(), 2):
            apart = float(np.linalg.norm(centres[frame, one] - centres[frame, other]))
            if kept[frame, [one, other]].all() and apart < 0.6 * size:
                kept[frame, random.choice([one, other])] = False
    shown = np.where(kept[..., None, None], points + random.normal(0, 2.0, points.shape), np.nan)
    score, false = np.where(kept, 1.0, np.nan), np.full_like(points, np.nan)
    rows, places = np.nonzero(kept)
    chosen = random.integers(0, len(rows), int(0.05 * len(rows)))
    rows, places = rows[chosen], places[chosen]
    false[rows, places] = shown[rows, places] + random.uniform(-400, 400, (len(rows), 1, 2))
    both = np.concatenate([score, np.where(np.isfinite(false[..., 0]).any(axis=2), 0.3, np.nan)], axis=1)
    return Poses(truth.keypoint_names, truth.frames, np.concatenate([shown, false], axis=1), score=both)


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
    solution = solve(without_mixed(find_detections(poses)), Number(animals, animals))
    tracking = time.process_time() - begun
    doubts = find_doubts(solution)
    seconds = time.process_time() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    line = {"animals": animals, "frames": frames, "keypoints": keypoints, "cpu_seconds": round(seconds, 1)}
    line |= {"cpu_seconds_tracks": round(tracking, 1), "rows": len(doubts)}
    line |= {"gib_before": round(before / 2**20, 2), "gib_most": round(most / 2**20, 2)}
    return line | {"tracks": len(solution.names)}


def _write(out: Path, line: dict) -> None:
    line |= {"numpy": np.__version__, "machine": platform.machine(), "load": round(os.getloadavg()[0], 1)}
    print(json.dumps(line), flush=True)
    with open(out, "a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
