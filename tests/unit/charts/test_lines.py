"""Names at the ends of lines."""

from __future__ import annotations

from pinscope.charts.marks import End, name_ends
from pinscope.charts.theme import panels


def test_lines_that_end_close_to_each_other_keep_their_own_values() -> None:
    figure = panels(["Rate"], [300])
    figure.add_scatter(x=[1, 2], y=[12.0, 12.8])
    ends = [
        End("pinned", "12.8 GB/s", 2, 12.8),
        End("mapped", "12.7 GB/s", 2, 12.7),
        End("pageable", "12.2 GB/s", 2, 12.2),
    ]
    name_ends(figure, 1, ends)
    assert [one.text for one in figure.layout.annotations if "GB/s" in one.text] == [
        "pinned 12.8 GB/s<br>mapped 12.7 GB/s<br>pageable 12.2 GB/s"
    ]
