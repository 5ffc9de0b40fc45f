"""What a way of an experiment is called stands in its table of ways, and nowhere else in the package.

Another experiment may call a way of its own the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from pinscope.analysis.cells import Way
from pinscope.experiments.scatter.ways import WAYS as SCATTER
from pinscope.experiments.staging.ways import WAYS as STAGING

PACKAGE = Path(__file__).parents[3] / "pinscope"
TABLES: Mapping[str, Mapping[str, Way]] = {"scatter": SCATTER, "staging": STAGING}


def literals(source: str) -> Iterator[str]:
    """Texts in a module, and the fixed parts of its formatted ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.strip(" ,.:;").lower()


@cache
def places() -> Mapping[str, list[str]]:
    """Text → the modules in which it stands, as often as it does."""
    known: dict[str, list[str]] = {}
    titles = {way.title.lower() for ways in TABLES.values() for way in ways.values()}
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        if any(title in source.lower() for title in titles):  # to parse all takes seconds
            for text in literals(source):
                known.setdefault(text, []).append(path.relative_to(PACKAGE).as_posix())
    return known


@pytest.mark.parametrize("name", TABLES)
def test_no_title_of_a_way_stands_in_a_second_place(name: str) -> None:
    def is_here(path: str) -> bool:
        return path.startswith(f"experiments/{name}/") or not path.startswith("experiments/")

    titles = [way.title for key, way in TABLES[name].items() if way.title != key]
    second = {title: own for title in titles if len(own := [*filter(is_here, places()[title.lower()])]) > 1}
    assert second == {}


@pytest.mark.parametrize("name", TABLES)
def test_every_way_says_what_it_does_and_is_called_as_no_other(name: str) -> None:
    ways = TABLES[name].values()
    assert all(way.title and way.help for way in ways)
    assert len({way.title for way in ways}) == len({way.words for way in ways}) == len(ways)
