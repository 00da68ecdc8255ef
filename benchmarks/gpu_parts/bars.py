"""The bars of the GPU benchmark, as far as the measured lines show."""

from collections.abc import Iterator
from typing import Any

Line = dict[str, Any]
# (what, value, the bar or None for a figure without one, whether it is met)
Bar = tuple[str, float, float | None, bool | None]
# The largest difference of logits in f32, relative to the largest logit, and of points in bf16.
LOGITS_BAR, POINTS_BAR_PX = 1e-4, 0.2
# Fields that two cells must share to be compared.
_SAME = ("measure", "backbone", "width", "size_px", "batch", "precision", "norm", "preset")


def bars_of(lines: list[Line]) -> dict[str, dict[str, Any]]:
    """Returns {what: value, bar and whether it is met} of the lines of one part."""
    lines = [line for line in lines if "error" not in line]
    found = {}
    for rule in (_speed, _beside_torch, _vit, _repeats, _agrees, _first_step, _loader, _option, _videos):
        for text, value, bar, is_met in rule(lines):
            found[text] = {"value": value, "bar": bar, "is_met": is_met}
    return found


def _steps(lines: list[Line], framework: str = "jaxpose") -> list[Line]:
    return [line for line in lines if line["framework"] == framework and line["measure"] in ("step", "predict")]


def _median(line: Line) -> float:
    return line["images_per_s"]["median"]


def _what(line: Line) -> str:
    return f"{line['measure']} {line['backbone']} / {line['size_px']} px / {line['batch']} / {line['precision']}"


def _speed(lines: list[Line]) -> Iterator[Bar]:
    for line in _steps(lines):
        of_bar = ("step", "resnet50", 256, 64, "bf16", "none", False)
        names = ("measure", "backbone", "size_px", "batch", "precision", "preset", "deterministic")
        if tuple(line[name] for name in names) == of_bar:
            yield f"{_what(line)}: images/s", _median(line), 4500, _median(line) >= 4500


def _beside_torch(lines: list[Line]) -> Iterator[Bar]:
    for line in _steps(lines):
        for other in _steps(lines, "torch"):
            if not line["deterministic"] and all(line[name] == other[name] for name in _SAME):
                ratio = _median(line) / _median(other)
                yield f"{_what(line)}: images/s relative to torch", ratio, 1.0, ratio >= 1


def _vit(lines: list[Line]) -> Iterator[Bar]:
    for line in _steps(lines):
        share = line["mfu"]["analytic"]
        if line["measure"] == "step" and line["backbone"] == "vit_base" and share is not None:
            yield f"{_what(line)}: share of the peak", share, 0.4, share >= 0.4


def _repeats(lines: list[Line]) -> Iterator[Bar]:
    repeated = [line for line in _steps(lines) if line["deterministic"]]
    for first, second in zip(repeated[::2], repeated[1::2], strict=False):
        is_same = first["params_sha256"] == second["params_sha256"]
        yield f"{_what(first)}: two deterministic runs bit-equal", float(is_same), 1, is_same
        for usual in _steps(lines):
            if not usual["deterministic"] and all(usual[name] == first[name] for name in _SAME):
                yield f"{_what(first)}: deterministic relative to not", _median(first) / _median(usual), None, None


def _agrees(lines: list[Line]) -> Iterator[Bar]:
    for line in lines:
        if line["measure"] == "agreement":
            logits, points_px = line["logits_relative"], line[f"{line['precision']}_px"]["most"]
            yield "f32 logits against the CPU's, relative", logits, LOGITS_BAR, logits <= LOGITS_BAR
            text = f"{line['precision']} keypoints against the CPU's in f32, px ({line['confident']} confident ones)"
            yield text, points_px, POINTS_BAR_PX, points_px <= POINTS_BAR_PX and line["confident"] > 0


def _first_step(lines: list[Line]) -> Iterator[Bar]:
    for line in lines:
        if line["measure"] == "first_step":
            for name, bar in (("cold", 30), ("warm", 8)):
                seconds = line["first_step_s"][name]
                yield f"first step {name}, seconds", seconds, bar, seconds <= bar


def _loader(lines: list[Line]) -> Iterator[Bar]:
    for line in lines:
        if line["measure"] == "loader":
            share = line["relative"]["median"]
            yield f"{_what(line)} / {line['preset']}: loader-fed relative to device-fed", share, 0.97, share >= 0.97


def _option(lines: list[Line]) -> Iterator[Bar]:
    for line in lines:
        if line["measure"] == "option":
            yield f"{_what(line)} with {line['option']}, relative to none", line["relative"]["median"], None, None


def _videos(lines: list[Line]) -> Iterator[Bar]:
    for line in lines:
        if line["measure"] == "videos":
            rate = line["frames_per_s"]["without_start"]
            yield f"{_what(line)} / {line['decoders']} decoders: frames/s", rate, 2500, rate >= 2500
