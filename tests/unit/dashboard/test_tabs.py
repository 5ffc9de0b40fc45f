"""Tabs: a closed one is given back after a while, and a page says when it is drawn less often."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from pinscope.dashboard import tabs


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> tabs._Tabs:
    """No tab was seen before."""
    shared = tabs._Tabs()
    monkeypatch.setattr(tabs, "_TABS", shared)
    return shared


def test_a_session_is_closed_some_time_after_its_tab_and_not_before(
    fresh: tabs._Tabs, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected, closed = {"open", "closing"}, []
    server = SimpleNamespace(is_active_session=connected.__contains__, close_session=closed.append)
    monkeypatch.setattr(tabs.runtime, "get_instance", lambda: server)
    monkeypatch.setattr(tabs, "CLOSED_SECONDS", 0.3)
    monkeypatch.setattr(tabs, "_LOOK_SECONDS", 0.02)
    fresh.connected_at |= dict.fromkeys(connected, 0.0)
    fresh.pace.drawn("closing", 60.0, 0.01)

    async def serve() -> None:
        async with tabs.closing_tabs(None):
            await asyncio.sleep(0.1)
            connected.discard("closing")
            await asyncio.sleep(0.1)
            assert closed == []
            await asyncio.sleep(1.0)

    with ThreadPoolExecutor(1) as pool:  # Playwright's loop may run in this thread
        pool.submit(asyncio.run, serve()).result()
    assert closed == ["closing"]
    assert set(fresh.connected_at) == {"open"}
    assert fresh.pace.pages == 0
