"""Marks in rows, one row for each of several names, on one axis of seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.cells import LineStyle
from pinscope.charts.bars import AROUND_PIXELS, ROW_PIXELS, label, names_above
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.lines import line
from pinscope.charts.theme import panels, short_seconds
from pinscope.units import format_seconds

_DECADES = [10.0**power for power in range(-6, 3)]


@dataclass(frozen=True)
class Marks:
    """Marks of one look.

    Attributes:
        name: in the legend.
        look: colour and symbol.
        seconds: name of a row → where its mark lies; none where that is ``None``.
    """

    name: str
    look: LineStyle
    seconds: Mapping[str, float | None]


def marks_of_seconds(
    key: str,
    title: str,
    caption: str,
    names: Sequence[str],
    series: Iterable[Marks],
    axis: str,
    alt: str,
    ends: Iterable[tuple[str, str]],
) -> Chart:
    """A row of marks for each name.

    Args:
        key, title, caption: of the chart.
        names: of the rows, the first on top.
        series: the marks.
        axis: title of the x axis, which is logarithmic.
        alt: what is drawn, for those who do not see it.
        ends: what follows ``alt``: names with what they come to.
    """
    figure = panels([""], [AROUND_PIXELS + ROW_PIXELS * len(names)])
    for marks in series:
        points = [(at, label(name), format_seconds(at)) for name, at in marks.seconds.items() if at is not None]
        if points:
            hover = "%{fullData.name}: %{customdata}<extra></extra>"
            figure.add_trace(line(marks.name, marks.look, points, mode="markers", hovertemplate=hover))
    names_above(figure, 1, list(map(label, names)))
    figure.update_xaxes(
        type="log",
        tickmode="array",
        tickvals=_DECADES,
        ticktext=list(map(short_seconds, _DECADES)),
        title_text=f"{axis} (log scale)",
    )
    return Chart(key, title, caption, figure.update_layout(hovermode="y unified"), alt_text(alt, ends))
