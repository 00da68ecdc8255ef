"""The page of a report or of a check: sections, figures and scripts as one HTML file that needs no network.

Names from files are data. They are escaped where they become HTML, and as a second wall the page's own policy runs no
script but the two that are embedded here.
"""

import hashlib
import importlib.resources
from collections.abc import Sequence
from typing import Any

from plotly.offline import get_plotlyjs

from jaxpose import __version__
from jaxpose.checksums import json_text
from jaxpose.report.section import Section, colours, escaped, in_figure

_CREDIT = " Figures: Plotly.js, MIT licence."
# What is lost without JavaScript.
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
      keypoint_names: k names; each has a box that switches it off.
      verb: that writes it, and may replace it later (`refuse_other_file`).
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
    # Only a script with this word runs; nobody who chose a name knew the rest of the page.
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
<noscript><p>{_LOST if has_figures else _LOST_SWITCHES}</p></noscript>
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
