"""The Markdown table of `few_labels.py`: errors, and by how much they are lower than those of other methods."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

PARTS = ("test", "choice", "animal")


def show(lines: list[dict[str, Any]], parts: Sequence[str], others: Sequence[str]) -> None:
    """Prints a Markdown table: each method, and by how much its error is lower than that of other methods.

    These have the same labels (n), and twice as many (2 n).
    """
    of = {(line["set"], line["labels"], line["method"], line["seed"]): line for line in lines}
    columns = ["set", "labels", "method", "seeds"]
    for part in parts:
        columns.append(part)
        columns += [f"lower than {other}, {labels}" for other in others for labels in ("n", "2 n")]
    print(f"| {' | '.join([*columns, 'CPU s'])} |\n|{'---|' * (len(columns) + 1)}")
    for data, labels, method in sorted({key[:3] for key in of}):
        runs = {seed: line for (*key, seed), line in of.items() if key == [data, labels, method]}
        cells = [data, str(labels), method, str(len(runs))]
        for part in parts:
            found = [line[part] for line in runs.values() if part in line]
            if not found:
                cells += [""] * (1 + 2 * len(others))
                continue
            mean = {name: np.mean([row[name] for row in found]) for name in ("mean_px", "median_px", "far_share")}
            cells.append(f"{mean['mean_px']:.2f} ({mean['median_px']:.2f}), {mean['far_share']:.1%}".replace("%", " %"))
            for name, count in product(others, (labels, 2 * labels)):
                pairs = [
                    (of[data, count, name, seed], runs[seed])
                    for seed in sorted(runs)
                    if (data, count, name, seed) in of and (name, count) != (method, labels)
                ]
                cells.append(_lower([pair for pair in pairs if all(part in line for line in pair)], part, len(found)))
        costs = [np.mean([line.get(name, 0) for line in runs.values()]) for name in ("cpu_s", "pretrain_cpu_s")]
        cells.append(" + ".join(f"{cost:.0f}" for cost in costs if cost))
        print(f"| {' | '.join(cells)} |")


def _lower(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]], part: str, seeds: int) -> str:
    """Returns the mean difference of pairs with its standard error, and their number if it is not that of the seeds."""
    if not pairs:
        return ""
    lower = np.array([_difference(*pair, part) for pair in pairs])
    spread = f" +- {lower.std(ddof=1) / len(lower) ** 0.5:.2f}" if len(lower) > 1 else ""
    return f"{lower.mean():.2f}{spread}" + (f" ({len(lower)})" if len(lower) != seeds else "")


def _difference(one: dict[str, Any], other: dict[str, Any], part: str) -> float:
    """Returns by how many px the mean error of the second is lower, over the frames that neither trained on.

    If a line has no test frames, because all of them train, the frames to choose by replace them.
    """
    for name in (part, "choice"):
        errors_px = [line[name]["frame_px"] for line in (one, other)]
        if shared := sorted(errors_px[0].keys() & errors_px[1].keys()):
            break
    return float(np.nanmean([errors_px[0][row] - errors_px[1][row] for row in shared]))
