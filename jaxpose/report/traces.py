"""The section of the videos: traces of every keypoint, suspicious segments and the lengths of steps.

The page holds each trace as base64 of float32 and draws the part in view, thinned to the width of the screen (page.js).
If all traces together are too large for a page, they are thinned here first.
"""

import base64
import time
from typing import Any

import numpy as np

from jaxpose.config.losses import weights
from jaxpose.errors import UserError
from jaxpose.labelling.recordings import POSE_ERROR_PX
from jaxpose.report.facts import Recording, RunFacts, Segment, read_recordings
from jaxpose.report.page import (
    Figure,
    Section,
    block_length,
    colours,
    escaped,
    folded,
    in_figure,
    keep_extremes,
    number,
    paragraph,
    table,
)
from jaxpose.report.pictures import cut_around, draw_picture
from jaxpose.terminal import count
from jaxpose.video.decoding import RangeReader
from jaxpose.video.index import Stopped, VideoIndex, as_labelled, labelled_sizes_px, read_index

# Pictures of the worst frames of suspicious segments, read from the videos.

_PICTURES, _LONGEST_PX = 9, 400
# Maximum time for a picture: a long video whose key frames cannot be trusted is decoded from its start.
_PATIENCE_S = 30.0


def segment_pictures(facts: RunFacts, segments: list[tuple[Recording, Segment]]) -> str:
    """Returns HTML with the worst frames of the first segments, and why some of them have no picture."""
    begun, parts, problems = time.monotonic(), [], dict[str, None]()
    indexes: dict[str, VideoIndex] = {}
    for recording, segment in segments[:_PICTURES]:
        try:
            if recording.name not in indexes:
                indexes[recording.name] = as_labelled(read_index(recording.video), labelled_sizes_px(facts.config.data))
            image = _read_frame(indexes[recording.name], segment.worst, begun + _PATIENCE_S)
        except Stopped:
            problems[f"Reading more frames of the videos would take longer than {_PATIENCE_S:g} s."] = None
            break
        except (UserError, OSError) as error:
            problems[f"No picture of {recording.name}: {error}"] = None
            continue
        names = recording.poses.keypoint_names
        text = f"{recording.name}, frame {segment.worst:,}: {segment.signal}, {names[segment.keypoint]}"
        keypoints_px = recording.poses.points_px[segment.worst, 0]
        image, corner_px = cut_around(image, keypoints_px)
        picture = draw_picture(image, names, (), text, _LONGEST_PX, predicted_px=keypoints_px - corner_px)
        parts.append(f"<figure>{picture}<figcaption>{escaped(text)}</figcaption></figure>")
    return f'<div class="frames">{"".join(parts)}</div>' + "".join(paragraph(text) for text in problems)


def _read_frame(index: VideoIndex, number: int, until: float) -> np.ndarray:
    """Returns a frame (h, w, 3) of a video.

    Raises:
      UserError: it does not decode.
      Stopped: the time `until` came first.
    """
    size_px = index.width_px, index.height_px
    reader = RangeReader(index, number, number + 1, np.eye(2, 3), size_px, lambda: time.monotonic() > until)
    images = [image for _, image in reader]
    if not images:
        raise UserError(f"frame {number} of {index.path} does not decode")
    return images[-1]


# Maximum number of values in all traces: 4 bytes each, 5.3 in base64.
_MOST_NUMBERS = 2_500_000
# Number of segments marked in a video, and of those in the table.
_MARKED, _LISTED = 200, 30
# Edges of the bins of steps, in px; steps above this percentile are left out.
_STEP_EDGES_PX = np.geomspace(0.05, 2000, 47)
_STEP_PERCENTILE = 99.9
_PCA_LOSSES = ("pca_singleview", "pca_multiview")
_NO_PCA_LOSS = (
    "There is no PCA error, because the run has neither of the losses that define it, losses.pca_singleview and "
    "losses.pca_multiview."
)
_NO_PCA_TABLE = "There is no PCA error, because its tables are not in video_preds/: predict the videos again."


def traces_section(facts: RunFacts) -> tuple[Section, list[dict[str, Any]]]:
    """Returns the section, and what the page draws the traces from: a dict for each video (see `pack`)."""
    title = "Videos"
    if facts.config.data.animals > 1:
        # These imports take 0.3 s, which a run of one animal does not need.
        from jaxpose.report.reviews import tracks_of_run

        return Section("videos", title, tracks_of_run(facts)), []
    try:
        recordings, left_out = read_recordings(facts)
    except UserError as error:
        return Section("videos", title, paragraph(f"There are no traces: {error}")), []
    series = 5 if any(POSE_ERROR_PX in one.poses.columns for one in recordings) else 4
    frames = sum(len(one.steps_px) for one in recordings)
    block = block_length(frames * series * len(facts.config.data.keypoint_names), _MOST_NUMBERS)
    packed = [pack(recording, block) for recording in recordings]
    text = (
        "Choose a video; drag over a part of a trace to zoom in, double-click to see all. Shaded segments are "
        "unusual for this run: a keypoint jumps, the pose is unlike the labelled ones, or the confidence is low, by "
        "more than six robust standard deviations of that keypoint. At most one frame in twenty is shaded, the most "
        "unusual ones, and not every one is an error."
    )
    if block > 1:
        text += (
            f" The page holds {count(frames, 'frame')} of {count(len(recordings), 'video')} as the smallest and the "
            f"largest value of every {block} frames; the tables in the run folder have every frame."
        )
    if series == 4:
        text += (
            f" {_NO_PCA_TABLE if any(name in weights(facts.config.losses) for name in _PCA_LOSSES) else _NO_PCA_LOSS}"
        )
    if left_out:
        text += f" Not shown, because the page would be too large: {', '.join(left_out)}."
    options = "".join(f'<option value="{place}">{escaped(one.name)}</option>' for place, one in enumerate(recordings))
    chooser = f'<p><label>video <select id="video">{options}</select></label></p>'
    plot = (
        '<figure><figcaption>Traces by frame</figcaption><div id="traces" class="plot tall" role="img" '
        'aria-label="Traces of every keypoint over the frames of the chosen video, suspicious segments '
        'shaded; they are listed below."></div><p id="shown" aria-live="polite"></p></figure>'
    )
    figure = _steps_figure(recordings, facts.config.data.keypoint_names)
    body = paragraph(text) + chooser + plot + _segments(facts, recordings) + figure.html()
    return Section("videos", title, body, (figure,)), packed


def pack(recording: Recording, block: int) -> dict[str, Any]:
    """Returns a video for the page: `name`, `frames`, `block`, `series` and `segments`, JSON-ready.

    Each series has a `title`, and `values`: base64 of float32, first all points of the first keypoint.
    Point i is of frame i, or with a block above 1, from frame i block / 2 on. A segment is its first and last frame.
    """
    points_px, confidence = recording.poses.one_animal()
    series = {
        "x in px": points_px[..., 0],
        "y in px": points_px[..., 1],
        "confidence": confidence,
        "step in px": recording.steps_px,
    }
    if POSE_ERROR_PX in recording.poses.columns:
        series["PCA error in px"] = recording.poses.columns[POSE_ERROR_PX][:, 0]
    return {
        "name": in_figure(recording.name),
        "frames": len(recording.steps_px),
        "block": block,
        "series": [{"title": title, "values": _encode(values, block)} for title, values in series.items()],
        "segments": [[one.first, one.last] for one in recording.segments[:_MARKED]],
    }


def _encode(values: np.ndarray, block: int) -> str:
    points = values if block == 1 else keep_extremes(values, block)
    return base64.b64encode(np.ascontiguousarray(points.T, "<f4").tobytes()).decode()


def _segments(facts: RunFacts, recordings: list[Recording]) -> str:
    """Returns the pictures and the table of the most suspicious segments of all videos."""
    found = [(one, segment) for one in recordings for segment in one.segments]
    found.sort(key=lambda pair: -pair[1].evidence)
    if not found:
        return paragraph("No segment is suspicious.")
    names = facts.config.data.keypoint_names
    many = [f"{one.name} ({len(one.segments):,})" for one in recordings if len(one.segments) > _MARKED]
    text = f"{count(len(found), 'suspicious segment', 'suspicious segments')} in all."
    text += f" Only the {_MARKED} most unusual ones of a video are shaded: {', '.join(many)}." if many else ""
    rows = [_row(one, segment, names) for one, segment in found[:_LISTED]]
    head = ["video", "frames", "worst frame", "what", "keypoint", "largest step px", "confidence"]
    listed = table(head, rows, "The most unusual segments" if len(found) > _LISTED else "Suspicious segments")
    if len(found) > _LISTED:
        listed = paragraph(f"The table has the {_LISTED} most unusual of them.") + listed
    return paragraph(text) + segment_pictures(facts, found) + folded("Suspicious segments as a table", listed)


def _row(recording: Recording, segment: Segment, names: tuple[str, ...]) -> list[object]:
    frames = f"{segment.first:,} to {segment.last:,}" if segment.last > segment.first else f"{segment.first:,}"
    # A jump may be the step out of the worst frame, or lie at another frame of the segment.
    steps_px = recording.steps_px[segment.first : segment.last + 2, segment.keypoint]
    step_px = number(float(np.fmax.reduce(steps_px)), 1)
    confidence = number(float(recording.poses.one_animal()[1][segment.worst, segment.keypoint]))
    keypoint = names[segment.keypoint]
    return [recording.name, frames, f"{segment.worst:,}", segment.signal, keypoint, step_px, confidence]


def _steps_figure(recordings: list[Recording], names: tuple[str, ...]) -> Figure:
    """Returns how often each keypoint makes steps of each length, over all videos."""
    steps_px = np.concatenate([one.steps_px for one in recordings])
    all_px = steps_px[np.isfinite(steps_px)]
    middle_px, high_px, last_px = (
        np.percentile(all_px, [50, 99, _STEP_PERCENTILE]) if all_px.size else (np.nan, np.nan, 1.0)
    )
    edges_px = _STEP_EDGES_PX[: max(2, int(np.searchsorted(_STEP_EDGES_PX, last_px)) + 1)]
    data: list[dict[str, Any]] = []
    for place, (name, colour) in enumerate(zip(names, colours(len(names)), strict=True)):
        known = steps_px[:, place][np.isfinite(steps_px[:, place])]
        counts, _ = np.histogram(np.clip(known, edges_px[0], edges_px[-1]), edges_px)
        data.append(
            {
                "name": in_figure(name), "meta": place, "type": "scatter", "mode": "lines",
                "line": {"shape": "hvh", "color": colour, "width": 1.5},
                "x": np.sqrt(edges_px[1:] * edges_px[:-1]).tolist(), "y": counts.tolist(),
                "hovertemplate": "about %{x:.2g} px: %{y:,} steps<extra>%{fullData.name}</extra>",
            }
        )  # fmt: skip
    layout = {
        "xaxis": {
            "title": {"text": "step to the next frame in px"},
            "type": "log",
        },
        "yaxis": {"title": {"text": "steps"}, "rangemode": "tozero"},
        "showlegend": True,
    }
    alt = (
        f"Histogram of step lengths: half of {all_px.size:,} steps are below {middle_px:.2f} px, 1 % above "
        f"{high_px:.2f} px."
    )
    title = (
        f"Lengths of steps, all videos. The last bin has all steps above {edges_px[-2]:,.0f} px, the first one all "
        f"below {edges_px[1]:.2f} px."
    )
    return Figure("steps", title, alt, data, layout, 380)
