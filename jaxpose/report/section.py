"""A section of the report: HTML, and the figures in it as Plotly draws them.

Names from files are data: every name goes through `escaped` on its way into HTML, and through `in_figure` on its way
into a figure, because Plotly reads tags in its texts, too.
"""

import dataclasses
import html
import math
from collections.abc import Sequence
from typing import Any

# Lightness and chroma of the colours of keypoints: the contrast is above 3 to 1 on white and on black.
_LIGHTNESS, _CHROMA = 0.62, 0.13


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the page.

    Attributes:
      name: of its element, once in a page.
      title: its caption, plain text.
      alt: what a reader hears who does not see it, plain text.
      data: traces of Plotly, JSON-ready; `meta` of a trace is the number of its keypoint, if it is of one.
      layout: of Plotly, JSON-ready, without colours: the page sets those of its theme.
      height_px: of the element.
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
