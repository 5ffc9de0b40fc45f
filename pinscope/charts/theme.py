"""One look for every figure: a colour per meaning, a second channel for people who see colours differently.

Colours start from the Okabe–Ito set (Okabe & Ito, Color Universal Design, 2008). Those that fade on white or on
a dark page were darkened or replaced, so that each keeps a contrast of at least 3:1 on both (WCAG 2.2, 1.4.11).
Colour never stands alone: host memory kinds also differ by marker, directions by dash, verdicts by words.

Figures carry no title (the page prints that of the :class:`pinscope.charts.marks.Chart`) and a transparent background.
Text and grid colours come from the template only, so that a page adapts a figure by exchanging it: see :func:`dressed`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from pinscope.units import format_bytes, format_seconds

COLOURS: Mapping[str, str] = {
    # Kinds of host memory.
    "pinned": "#0072B2",
    "pageable": "#D55E00",
    "write_combined": "#009E73",
    "mapped": "#CC79A7",
    "registered": "#8B4DE6",
    "managed": "#8A5A3C",
    # Locked with mlock, which is not pinned for CUDA.
    "locked": "#7B7700",
    # Files that the kernel keeps in memory.
    "cached": "#2E9E5B",
    # What a GPU or the CPU does.
    "compute": "#B38600",
    "copy": "#3A96D0",
    "stall": "#C2407F",
    "issue": "#736AAB",
    "wait": "#808080",
    "pin_call": "#2F8F5B",
    "touch": "#5B9A1F",
    "workers": "#A85035",
    # What memory of a GPU is taken for, and of the host by the driver.
    "device": "#1897B6",
    "page_table": "#C54CD9",
    "driver": "#5FA177",
    # Whether the data arrived.
    "intact": "#1E7B87",
    "corrupted": "#DC3545",
    # What stands beside a measurement: the link's limit, published figures.
    "reference": "#7D8590",
}
"""Meaning → colour, the same in every figure."""

DASHES: Mapping[str, str] = {"h2d": "solid", "d2h": "dash", "bidirectional": "dashdot", "reference": "dot"}
"""Direction → line dash; references are dotted."""

DIRECTION_TITLES: Mapping[str, str] = {
    "h2d": "Host to device (h2d)",
    "d2h": "Device to host (d2h)",
    "bidirectional": "Both directions at once",
}
"""Direction → title of a panel, in the order in which panels show them."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
PANEL_PIXELS = 195
"""Height of one panel of a stacked figure."""
GAP_PIXELS = 82
"""Room between two panels: tick labels of the upper, title of the lower."""
FRAME_PIXELS = 116
"""Room for the first title, the last axis title and the legend."""
_DARK_INK_FROM = 0.1915
"""Luminance of a shape from which on near-black text has more contrast than white (WCAG 2.2)."""


@dataclass(frozen=True)
class Scheme:
    """Colours of text, grid and boxes on one kind of page."""

    text: str
    grid: str
    card: str
    """Behind the figures of the point that a reader points at."""


SchemeName = Literal["neutral", "light", "dark"]
SCHEMES: Mapping[SchemeName, Scheme] = {
    # Grey that reads on both: 4.4:1 on white, 4.3:1 on #0e1117.
    "neutral": Scheme("#787878", "rgba(128, 128, 128, 0.25)", "#ffffff"),
    "light": Scheme("#24292f", "#e1e4e8", "#ffffff"),
    "dark": Scheme("#e6e8eb", "#30363d", "#161b22"),
}


def words(name: str) -> str:
    """A label as people write it: ``write_combined`` is ``write-combined``, ``copy_bound`` is ``copy-bound``."""
    return name.replace("_", "-")


@cache
def template(scheme: SchemeName = "neutral") -> go.layout.Template:
    """Fonts, grid and margins for one kind of page."""
    chosen = SCHEMES[scheme]
    axis = {
        "automargin": True,
        "gridcolor": chosen.grid,
        "linecolor": chosen.grid,
        "tickcolor": chosen.grid,
        "zerolinecolor": chosen.grid,
        "showline": True,
        "ticks": "outside",
        "tickfont": {"size": 12},
        "title": {"font": {"size": 12}, "standoff": 8},
    }
    return go.layout.Template(
        layout={
            "font": {"family": FONT, "size": 12, "color": chosen.text},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "colorway": list(COLOURS.values()),
            "margin": {"l": 8, "r": 12, "t": 30, "b": 8},
            "xaxis": axis,
            "yaxis": axis,
            "hovermode": "x unified",
            "hoverlabel": {"bgcolor": chosen.card, "bordercolor": chosen.grid, "font": {"color": chosen.text}},
            # Below the figure and pinned to its lower edge: it wraps on a phone without covering a panel.
            "legend": {
                "orientation": "h",
                "yref": "container",
                "y": 0,
                "yanchor": "bottom",
                "x": 0,
                "xanchor": "left",
                "bgcolor": "rgba(0,0,0,0)",
                "font": {"size": 12},
            },
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": chosen.text, "activecolor": COLOURS["pinned"]},
        }
    )


def dressed(figure: go.Figure, scheme: SchemeName) -> go.Figure:
    """A copy of the figure for a white (``light``) or a dark page; the figure itself stays as it is."""
    copy = go.Figure(figure)
    copy.update_layout(template=template(scheme))
    return copy


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2.2, definition of relative luminance)."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink(colour: str) -> str:
    """The colour of text on a filled shape: white or near-black, whichever reads better."""
    return "#0e1117" if luminance(colour) > _DARK_INK_FROM else "#ffffff"


def panels(titles: Sequence[str], heights: Sequence[int] | None = None, gap: int = GAP_PIXELS) -> go.Figure:
    """An empty figure of panels one below the other that share the x axis.

    Args:
        titles: one per panel, shown at its upper left; short enough for a phone (about 30 letters).
        heights: pixels of each panel; ``PANEL_PIXELS`` each by default.
        gap: pixels between two panels. Below ``GAP_PIXELS`` only the last panel has tick labels.
    """
    heights = list(heights or [PANEL_PIXELS] * len(titles))
    inner = sum(heights) + gap * (len(titles) - 1)
    figure = make_subplots(
        figure=go.Figure(layout={"template": template(), "height": inner + FRAME_PIXELS}),
        rows=len(titles),
        cols=1,
        shared_xaxes=True,
        subplot_titles=list(titles),
        row_heights=heights,
        vertical_spacing=gap / inner if len(titles) > 1 else None,
    )
    figure.update_annotations(x=0, xanchor="left", font={"size": 13}, align="left")
    if gap >= GAP_PIXELS:
        figure.update_xaxes(showticklabels=True)
    return figure


def size_axis(figure: go.Figure, sizes: Sequence[int], title: str = "Copy size (bytes, log scale)") -> None:
    """Make the shared x axis a logarithmic one of sizes in bytes, labelled in binary units."""
    low, high = min(sizes), max(sizes)
    # Labels in steps of 16 from a power of 16, so that five or six fit a phone: 4 KiB, 64 KiB, 1 MiB …
    steps = [16**k for k in range(16) if low <= 16**k <= high]
    ticks = steps if len(steps) > 1 else sorted({low, high})
    figure.update_xaxes(type="log", tickmode="array", tickvals=ticks, ticktext=[format_bytes(tick) for tick in ticks])
    figure.update_xaxes(unifiedhovertitle_text="%{x:,d} bytes")
    figure.update_xaxes(title_text=title, row=sum(1 for _ in figure.select_xaxes()), col=1)


def seconds_axis(figure: go.Figure, title: str = "Time") -> None:
    """Make every y axis a logarithmic one of seconds, from decade to decade: 1 µs, 10 µs …

    Of a long axis every second decade has a label; an axis within one decade has 1, 2, 5 and 10.
    """
    for row, axis in enumerate(figure.select_yaxes(), start=1):
        known = [value for value in panel_values(figure, axis) if value > 0]
        low, high = (math.log10(min(known)), math.log10(max(known))) if known else (-6.0, 0.0)
        ticks, ends = _decades(low, high)
        figure.update_yaxes(
            type="log",
            tickmode="array",
            tickvals=ticks,
            range=ends,
            title_text=f"{title} (log scale)",
            ticktext=[short_seconds(tick) for tick in ticks],
            row=row,
            col=1,
        )


def short_seconds(seconds: float) -> str:
    """As on an axis: ``100 µs``, ``0.5 s`` is ``500 ms``; no zeros behind the point."""
    return re.sub(r"(\.\d*?)0+(?= )", r"\1", format_seconds(seconds)).replace(". ", " ")


def _decades(low: float, high: float) -> tuple[list[float], list[float]]:
    """Ticks and ends of an axis from 10**low to 10**high, as powers of ten."""
    first, last = math.floor(low - 0.05), math.ceil(high + 0.05)
    if last - first == 1:
        return [step * 10.0**first for step in (1, 2, 5, 10)], [first - 0.03, last + 0.03]
    step = 1 if last - first <= 5 else 2
    return [10.0**power for power in range(first, last + 1, step)], [first - 0.05, last + 0.05]


def panel_values(figure: go.Figure, axis: Any) -> list[float]:
    """Of all lines of a panel, which its y axis names."""
    own = [trace for trace in figure.data if (trace.yaxis or "y") == axis.plotly_name.replace("axis", "")]
    return [float(value) for trace in own for value in trace.y if value is not None]


def seconds_unit(longest: float) -> tuple[float, str]:
    """Seconds of the unit that an axis from 0 to ``longest`` seconds reads best in, and its name."""
    return next((pair for pair in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if longest >= pair[0]), (1e-9, "ns"))
