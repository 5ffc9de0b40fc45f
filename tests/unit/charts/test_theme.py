"""Colours are legible on light and dark pages, apart for colour-blind readers, and never the only channel."""

from __future__ import annotations

from itertools import combinations
from typing import get_args

import numpy as np
import plotly.graph_objects as go
import pytest
from numpy.typing import NDArray

from pinscope.charts.theme import (
    COLOURS,
    DASHES,
    DIRECTION_TITLES,
    SCHEMES,
    dressed,
    ink,
    luminance,
    panels,
    seconds_axis,
    size_axis,
)
from pinscope.records.run import Direction, HostMemory

PAGES = {"light": "#ffffff", "dark": "#0e1117"}
TOGETHER = (
    get_args(HostMemory),
    ("compute", "copy", "stall"),
    ("stall", "issue"),
    ("intact", "corrupted"),
    ("pinned", "pageable", "corrupted"),
    ("pinned", "pageable", "reference"),
    ("pinned", "pageable", "cached", "reference"),
    ("stall", "cached"),
    ("pinned", "registered", "reference", "locked", "driver"),
    ("touch", "pinned", "registered"),
    ("workers", "pinned", "copy", "compute"),
    ("device", "page_table", "reference"),
)
"""Meanings that one figure shows side by side."""

# Severe colour vision deficiency in linear RGB: Machado, Oliveira & Fernandes, "A Physiologically-based Model for
# Simulation of Color Vision Deficiency" (2009), table 1, severity 1.0.
VISION = {
    "usual": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.119192, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def seen(colour: str, vision: str) -> NDArray[np.float64]:
    """CIELAB coordinates of a colour as somebody with that vision sees it."""
    parts = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    ratio = _TO_XYZ @ np.clip(VISION[vision] @ linear, 0, 1) / _WHITE
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2, definition of contrast ratio)."""
    dark, bright = sorted((luminance(first), luminance(second)))
    return (bright + 0.05) / (dark + 0.05)


def test_every_colour_stands_out_from_light_and_dark_pages() -> None:
    assert min(contrast(colour, page) for colour in COLOURS.values() for page in PAGES.values()) >= 3


def test_colours_shown_together_are_apart_for_every_kind_of_vision() -> None:
    for vision in VISION:
        for group in TOGETHER:
            distances = {
                pair: np.linalg.norm(seen(COLOURS[pair[0]], vision) - seen(COLOURS[pair[1]], vision))
                for pair in combinations(group, 2)
            }

            assert min(distances.values()) >= 12, distances


def test_no_two_meanings_share_a_colour() -> None:
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_every_direction_has_a_dash_of_its_own() -> None:
    assert set(DIRECTION_TITLES) == set(get_args(Direction))
    assert len({DASHES[way] for way in (*DIRECTION_TITLES, "reference")}) == 4


def test_text_is_legible_on_its_page_and_that_of_an_undressed_figure_on_both() -> None:
    assert min(contrast(SCHEMES[name].text, page) for name, page in PAGES.items()) >= 7  # type: ignore[index]
    assert min(contrast(SCHEMES["neutral"].text, page) for page in PAGES.values()) >= 4.2


def test_text_on_filled_shapes_takes_the_better_of_black_and_white() -> None:
    assert ink("#ffffff") != ink("#000000") == "#ffffff"
    assert all(contrast(ink(colour), colour) >= 4.5 for colour in COLOURS.values())


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_a_dressed_figure_is_a_copy_for_another_page() -> None:
    figure = panels(["one", "two"])
    dark = dressed(figure, "dark").layout.template.layout
    assert dark.font.color == SCHEMES["dark"].text
    assert figure.layout.template.layout.font.color == SCHEMES["neutral"].text
    assert {dark.paper_bgcolor, dark.plot_bgcolor, dark.legend.bgcolor} == {"rgba(0,0,0,0)"}


def test_panels_stand_apart_by_the_gap_whatever_their_heights() -> None:
    figure = panels(["a", "b", "c"], [100, 200, 300], gap=50)

    upper, middle, lower = (figure.layout[name].domain for name in ("yaxis", "yaxis2", "yaxis3"))
    inner = 100 + 200 + 300 + 2 * 50
    assert (upper[1] - upper[0]) * inner == pytest.approx(100)
    assert (middle[1] - middle[0]) * inner == pytest.approx(200)
    assert (upper[0] - middle[1]) * inner == pytest.approx(50)
    assert (middle[0] - lower[1]) * inner == pytest.approx(50)


@pytest.mark.parametrize(
    ("sizes", "labels"),
    [
        ([4096, 2**30], ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB")),
        ([2**20], ("1 MiB",)),
        ([3 * 2**20, 2 * 2**20], ("2 MiB", "3 MiB")),
    ],
)
def test_the_size_axis_is_labelled_in_binary_units(sizes: list[int], labels: tuple[str, ...]) -> None:
    figure: go.Figure = panels(["one"])

    size_axis(figure, sizes)

    assert figure.layout.xaxis.type == "log"
    assert figure.layout.xaxis.ticktext == labels


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        ((5e-3, 4e-2), ("1 ms", "10 ms", "100 ms")),
        ((2e-3, 8e-3), ("1 ms", "2 ms", "5 ms", "10 ms")),
        ((4e-6, 0.13), ("1 µs", "100 µs", "10 ms", "1 s")),
    ],
)
def test_an_axis_of_seconds_has_a_handful_of_decades_and_never_two(
    seconds: tuple[float, float], labels: tuple[str, ...]
) -> None:
    figure = panels(["one"])
    figure.add_scatter(y=seconds, row=1, col=1)
    seconds_axis(figure)
    assert figure.layout.yaxis.ticktext == labels
    low, high = figure.layout.yaxis.range
    assert 10**low < min(seconds)
    assert max(seconds) < 10**high
