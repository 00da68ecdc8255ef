"""Builds the page of a report or a check: sections, figures and scripts as one HTML file that works offline.

Names from files are data. They are escaped where they become HTML; as a second line of defence, the page's own policy
runs no script except the two that are embedded here.
"""

import dataclasses
import hashlib
import html
import importlib.resources
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from jaxpose import __version__
from jaxpose.checksums import json_text

# A section of the page: HTML, and its figures as Plotly draws them.
#
# Names from files are data: every name goes through `escaped` on its way into HTML, and through `in_figure` on its way
# into a figure, because Plotly also interprets tags in its texts.

# Lightness and chroma of the colours of keypoints: the contrast is above 3 to 1 on white and on black.
_LIGHTNESS, _CHROMA = 0.62, 0.13


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
      name: its element's, unique in a page.
      title: its caption, plain text.
      alt: the description for screen readers, plain text.
      data: traces of Plotly, JSON-ready; `meta` of a trace is the number of its keypoint, if it has one.
      layout: Plotly's, JSON-ready, without colours: the page sets those of its theme.
      height_px: the element's.
    """

    name: str
    title: str
    alt: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    height_px: int = 360

    def html(self) -> str:
        """Returns the element in which the page draws the figure."""
        return (
            f'<figure><figcaption>{escaped(self.title)}</figcaption><div class="plot" id="plot-{self.name}" role="img" '
            f'aria-label="{escaped(self.alt)}" style="height:{self.height_px}px"></div></figure>'
        )


@dataclasses.dataclass(frozen=True)
class Section:
    """A section of the page.

    Attributes:
      name: its anchor.
      title: plain text.
      body: HTML.
      figures: those whose elements are in the body.
    """

    name: str
    title: str
    body: str
    figures: tuple[Figure, ...] = ()


def escaped(text: object) -> str:
    """Returns a text as HTML, also within quotes, that shows it as it is."""
    return html.escape(str(text), quote=True)


def in_figure(text: object) -> str:
    """Returns a text for Plotly that shows it as it is; Plotly knows no escapes of quotes."""
    return html.escape(str(text), quote=False)


def paragraph(text: str, kind: str = "") -> str:
    """Returns plain text as a paragraph of HTML; `kind` is its class in page.css."""
    return f"<p{f' class={kind}' if kind else ''}>{escaped(text)}</p>"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], caption: str = "") -> str:
    """Returns a table of plain texts as HTML; a row begins with its name."""
    top = "".join(f'<th scope="col">{escaped(cell)}</th>' for cell in head)
    lines = "".join(
        f'<tr><th scope="row">{escaped(row[0])}</th>'
        + "".join(f"<td>{escaped(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    named = f"<caption><span>{escaped(caption)}</span></caption>" if caption else ""
    # A keyboard can scroll it, so it needs a name.
    return (
        f'<div class="scroll" role="region" aria-label="{escaped(caption or head[0])}" tabindex="0"><table>{named}'
        f"<thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>"
    )


def folded(title: str, body: str) -> str:
    """Returns HTML that is shown after a click on its title, which is plain text."""
    return f"<details><summary>{escaped(title)}</summary>{body}</details>"


def number(value: float | None, digits: int = 2) -> str:
    """Returns a number for a table, "-" for None and NaN."""
    return "-" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def colours(count: int) -> list[str]:
    """Returns a colour such as #a06b3c for each of some keypoints, all equally light."""
    return [_from_oklch(_LIGHTNESS, _CHROMA, 2 * math.pi * place / max(count, 1)) for place in range(count)]


def _from_oklch(lightness: float, chroma: float, hue: float) -> str:
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    clipped = (min(max(value, 0.0), 1.0) for value in linear)
    encoded = (12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055 for value in clipped)
    return "#" + "".join(f"{round(255 * value):02x}" for value in encoded)


_CREDIT = " Figures: Plotly.js, MIT licence."
# Notices for browsers without JavaScript.
_LOST = "The figures need JavaScript; the tables and pictures do not."
_LOST_SWITCHES = "Only the boxes that switch keypoints off need JavaScript."


def make_page(
    title: str,
    sections: Sequence[Section],
    videos: list[dict[str, Any]],
    keypoint_names: Sequence[str],
    verb: str = "jaxpose report",
) -> str:
    """Returns the HTML of a page.

    Args:
      title: plain text.
      sections: in their order.
      videos: for the traces, from `traces.pack`.
      keypoint_names: k names; each has a box that switches it off; may be empty.
      verb: writes it, and may replace it later (`refuse_other_file`).
    """
    style, script = _file("page.css"), _file("page.js")
    hidden = "".join(f".hide-{place} .kp-{place}{{display:none}}" for place in range(len(keypoint_names)))
    figures = {
        f"plot-{figure.name}": {"data": figure.data, "layout": figure.layout}
        for section in sections
        for figure in section.figures
    }
    content = {
        "figures": figures,
        "videos": videos,
        "names": [in_figure(name) for name in keypoint_names],
        "colours": colours(len(keypoint_names)),
    }
    links = "".join(f'<li><a href="#{one.name}">{escaped(one.title)}</a></li>' for one in sections)
    body = "".join(f'<section id="{one.name}"><h2>{escaped(one.title)}</h2>{one.body}</section>' for one in sections)
    has_figures = bool(figures or videos)
    # Only scripts with this hash of the page run; the author of a name could not predict it.
    nonce = hashlib.sha256((body + script).encode()).hexdigest()[:32]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(nonce)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="{verb} {escaped(__version__)}">
<link rel="icon" href="data:,">
<title>{escaped(title)}</title>
<style>{style}{hidden}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header><h1>{escaped(title)}</h1>
<nav aria-label="Sections"><ul>{links}</ul></nav></header>
{_switches(keypoint_names)}
<main id="main">{body}</main>
<footer><p>Written by jaxpose {escaped(__version__)}.{_CREDIT if has_figures else ""}</p></footer>
<noscript><p>{_LOST if has_figures else _LOST_SWITCHES if keypoint_names else ""}</p></noscript>
<script type="application/json" id="content">{_in_script(json_text(content))}</script>
{_plotly(nonce) if has_figures else ""}
<script nonce="{nonce}">{script}</script>
</body>
</html>
"""


def _policy(nonce: str) -> str:
    return (
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _file(name: str) -> str:
    return (importlib.resources.files("jaxpose.report") / name).read_text(encoding="utf-8")


def _switches(keypoint_names: Sequence[str]) -> str:
    if not keypoint_names:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" data-keypoint="{place}" checked><span class="dot" style="background:{colour}">'
        f"</span>{escaped(name)}</label>"
        for place, (name, colour) in enumerate(zip(keypoint_names, colours(len(keypoint_names)), strict=True))
    )
    buttons = '<button type="button" id="all">all</button><button type="button" id="none">none</button>'
    return (
        '<details class="switches"><summary>Keypoints shown</summary><fieldset>'
        f"<legend>Keypoints in figures and pictures</legend>{buttons}{boxes}</fieldset></details>"
    )


def _in_script(text: str) -> str:
    """Returns JSON that cannot end the element it is in: in JSON, "<" occurs only within texts."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plotly(nonce: str) -> str:
    """Returns the script that draws figures, 5 MB."""
    # In a script, a backslash before the slash changes nothing.
    inside = get_plotlyjs().replace("</script", "<\\/script")
    return f'<script nonce="{nonce}">{inside}</script>'


# Thins long series for a page: keeps the smallest and the largest of each block of numbers.


def keep_extremes(values: np.ndarray, block: int) -> np.ndarray:
    """Returns the smallest and the largest number of each block of each series, in their order.

    Point i of a series stands for the numbers from i block / 2 on. NaN does not count, unless a block has nothing else.

    Args:
      values: (n, m), m series of n numbers.
      block: even, at least 2; the last block may be shorter.

    Returns:
      (2 ceil(n / block), m).
    """
    count, series = values.shape
    blocks = -(-count // block)
    padded = np.full((blocks * block, series), np.nan, values.dtype)
    padded[:count] = values
    padded = padded.reshape(blocks, block, series)
    absent = np.isnan(padded)
    low = np.where(absent, np.inf, padded).argmin(axis=1)
    high = np.where(absent, -np.inf, padded).argmax(axis=1)
    places = np.stack([np.minimum(low, high), np.maximum(low, high)], axis=1)
    return np.take_along_axis(padded, places, axis=1).reshape(2 * blocks, series)


def block_length(numbers: int, most: int) -> int:
    """Returns the block with which `keep_extremes` leaves at most about `most` of some numbers; 1 if all may stay."""
    return 1 if numbers <= most else 2 * -(-numbers // most)


def spread_rows(worth: np.ndarray, most: int) -> np.ndarray:
    """Returns up to `most` row numbers, ascending: half of them with the largest worth, the others evenly spread.

    Args:
      worth: (n,) without NaN.
      most: an even number.
    """
    if len(worth) <= most:
        return np.arange(len(worth))
    largest = np.argsort(-worth, kind="stable")[: most // 2]
    rest = np.setdiff1d(np.arange(len(worth)), largest)
    return np.sort(np.concatenate([largest, rest[np.linspace(0, len(rest) - 1, most // 2).astype(int)]]))
