"""Panels with axes of their own, rules beside what was measured, and linear axes with room at their ends."""

from __future__ import annotations

from pinscope.analysis.cells import LineStyle
from pinscope.charts.plot import RATE, Curve, Scale, Spot, curves, linear

SPOTS = [Spot(0.0, 1e9, "before"), Spot(10.0, 2e9, "10 GiB")]
RULE = Curve(LineStyle("reference", dash="dot"), [Spot(0.0, 1e9, "1 GB/s"), Spot(20.0, 1e9, "")], rule=True)


def test_each_panel_has_its_own_scale_and_rules_have_no_markers() -> None:
    held = Scale("Share (%)", 0.01, str, reach=1.0)
    panes = {
        "Read": {"limit": RULE, "rate": Curve(LineStyle("copy"), SPOTS)},
        "Held": {"share": Curve(LineStyle("cached"), [Spot(5.0, 0.5, "5 GiB")])},
    }
    figure = curves("key", "Title", "", panes, [RATE, held], linear("Pinned (GiB)", "%{x} GiB"), "Drawn").figure
    limit, rate, share = figure.data
    assert (limit.mode, rate.mode) == ("lines", "lines+markers")
    assert (list(rate.y), list(share.y)) == ([1.0, 2.0], [50.0])
    assert [figure.layout.yaxis.title.text, figure.layout.yaxis2.title.text] == ["Rate (GB/s)", "Share (%)"]
    assert figure.layout.yaxis2.range == (-4.0, 105.0)
    assert figure.layout.xaxis.range == (-0.8, 20.8)


def test_a_rule_of_one_spot_is_a_marker_with_its_words_alone_and_no_end() -> None:
    mark = Curve(LineStyle("corrupted", "x"), [Spot(10.0, 2e9, "killed here")], rule=True)
    panes = {"Read": {"rate": Curve(LineStyle("copy"), SPOTS), "killed": mark}}
    chart = curves("key", "Title", "", panes, RATE, linear("Pinned (GiB)", "%{x} GiB"), "Drawn")
    assert chart.figure.data[1].customdata == ("killed here",)
    assert chart.alt == "Drawn: rate 2.00 GB/s."
