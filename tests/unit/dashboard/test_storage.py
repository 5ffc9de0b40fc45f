"""Where runs cannot be stored, the pages show what there is, and say why nothing is added."""

from __future__ import annotations

import pytest

from pinscope.dashboard.pages import EXPERIMENTS, HOME, RUNS, PageEntry
from pinscope.records.run import Run
from tests.unit.dashboard.conftest import Open

NO_PLACE = "sqlite:////proc/pinscope/runs.db"
"""Not even root can make a file there."""


@pytest.fixture(autouse=True)
def _no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINSCOPE_DATABASE", NO_PLACE)


@pytest.mark.parametrize("page", [HOME, RUNS, EXPERIMENTS], ids=lambda page: page.title)
def test_a_page_says_that_nothing_can_be_stored_and_why(page: PageEntry, shipped: Run, open_page: Open) -> None:
    app = open_page(page)
    (note,) = app.warning
    assert "/proc/pinscope/runs.db" in note.value.replace("\\", "")
    assert not app.exception
    assert not app.error
