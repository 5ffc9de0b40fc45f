"""Now: what the page shows of a moment, on SYNTHETIC hosts, and that a browser which is told what changed knows all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Router

from pinscope.analysis import rules
from pinscope.dashboard import live_board, now, routes
from pinscope.dashboard.live_board import MOST_VIEWS, Board, Json, document, holder_key, patch
from pinscope.dashboard.pages import NOW
from pinscope.live.findings import snapshot_verdict
from pinscope.live.sampler import History
from pinscope.live.series import changes, sample_of
from pinscope.manual.site import Site
from pinscope.records.snapshot import Snapshot
from tests.data.synthetic_live import GIB, LOCKER, MIB, TRAINER, WORKER, empty, full, with_locked
from tests.unit.dashboard.conftest import Open

WINDOW = 300.0


@pytest.fixture
def taken(tmp_path: Path) -> Snapshot:
    return full(tmp_path)


def seen(snapshots: Sequence[Snapshot], seconds: float = 1.0) -> History:
    """What a sampler knows that took these, one after the other."""
    taken = [
        snapshot.model_copy(update={"taken_at": snapshots[0].taken_at + timedelta(seconds=seconds * number)})
        for number, snapshot in enumerate(snapshots)
    ]
    samples = []
    for number, snapshot in enumerate(taken):
        samples.append(sample_of(snapshot, seconds * number, samples[-1] if samples else None))
    events = [event for before, after in pairwise(taken) for event in changes(before, after)]
    return History(taken[-1], tuple(samples), tuple(events), interval_seconds=seconds)


def page_of(*snapshots: Snapshot) -> Json:
    return document(seen(snapshots), WINDOW)


def holder(page: Json, pid: int) -> Json:
    return next(row for row in page["holders"].values() if row["pid"] == pid)


def merged(old: Any, news: Any) -> Any:
    """As the page's script does it."""
    if not isinstance(news, dict) or not isinstance(old, dict):
        return news
    kept = {name: value for name, value in old.items() if news.get(name, value) is not None}
    return kept | {name: merged(kept.get(name), value) for name, value in news.items() if value is not None}


def test_a_host_with_holders_and_gpus_is_told_in_full(taken: Snapshot) -> None:
    page = page_of(taken)

    assert page["verdict"] == snapshot_verdict(taken)
    figures = {card["label"]: card for card in page["figures"].values()}
    assert figures["Pinned, whole host"]["text"] == "14 GiB"
    assert figures["Pinned, whole host"]["below"] == "11.1 % of memory"
    assert figures["Pinned, process known"]["text"] == "8.50 GiB"
    assert figures["Pinned, process unknown"]["text"] == "~5.50 GiB"
    on_gpu = {card["label"]: card for card in page["devices"]["1"]["figures"].values()}
    assert page["devices"]["1"]["title"] == "GPU 1: NVIDIA H200"
    assert (on_gpu["Page tables"]["text"], on_gpu["Page tables"]["below"]) == ("≥18 MiB", "0.013 % of its memory")
    assert (on_gpu["Received over PCIe"]["text"], on_gpu["Unattributed"]["text"]) == ("27.6 GB/s", "78 MiB")
    by_rank = sorted(page["holders"].values(), key=lambda row: int(row["rank"]))
    assert [row["pid"] for row in by_rank] == [TRAINER, LOCKER, WORKER]
    assert holder(page, TRAINER)["cells"]["host_alloc_bytes"] == [int(8.5 * GIB), "8.50 GiB"]
    assert holder(page, WORKER)["cells"]["inherited_bytes"] == [int(8.5 * GIB), "8.50 GiB"]
    assert holder(page, TRAINER)["cells"]["page_table_bytes"] == [36 * MIB, "≥36 MiB"]
    assert holder(page, TRAINER)["gpus"] == "0, 1"
    assert {row["pid"] for row in by_rank if row["only_locked"]} == {LOCKER}
    assert "registered_bytes" not in page["columns"]
    assert page["events"] == {}


def test_without_a_gpu_the_host_part_stands_and_says_what_is_missing(tmp_path: Path) -> None:
    page = page_of(full(tmp_path, gpus=0))

    assert page["figures"]["pinned_bytes"]["text"] == "14 GiB"
    assert page["devices"] == {}
    assert "No NVIDIA driver is installed here" in page["no_gpu"]
    assert "The rest of this page works without a GPU" in page["no_gpu"]
    assert holder(page, TRAINER)["cells"]["page_table_bytes"] == [None, "n/a"]


def test_a_host_that_cannot_be_read_is_one_clear_line(taken: Snapshot) -> None:
    trouble = "reading failed 3 times: Input/output error"
    assert document(History(trouble=trouble), WINDOW)["trouble"] == (
        "Reading failed 3 times: Input/output error. PinScope keeps trying."
    )
    page = document(History(taken, trouble=trouble), WINDOW)
    assert page["trouble"].endswith("Below is the last reading that succeeded.")
    assert page["figures"]["pinned_bytes"]["text"] == "14 GiB"


def test_events_tell_who_took_and_gave_back(taken: Snapshot) -> None:
    events = list(page_of(*(with_locked(taken, amount * MIB) for amount in (96, 128, 32)))["events"].values())

    assert [row["event"] for row in events] == ["▼ released", "▲ grew"]
    assert [row["change"] for row in events] == ["− 96 MiB", "+ 32 MiB"]
    assert {row["name"] for row in events} == {"postgres"}


def test_growing_processes_are_marked(taken: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LEAK_SECONDS", 10.0)
    page = page_of(*(with_locked(taken, amount * MIB) for amount in range(1, 60)))
    assert [row["pid"] for row in page["holders"].values() if row["grows"]] == [LOCKER]
    assert holder(page, LOCKER)["trend"][-1] == 100


def test_what_changed_makes_the_new_document_of_the_old_and_is_small(tmp_path: Path, taken: Snapshot) -> None:
    history = [with_locked(taken, 96 * MIB), with_locked(taken, 97 * MIB), empty(tmp_path / "empty"), taken]
    documents = [page_of(*history[: number + 1]) for number in range(len(history))]
    documents.insert(0, document(History(trouble="it failed"), WINDOW))
    for old, new in pairwise(documents):
        assert merged(old, json.loads(json.dumps(patch(old, new)))) == json.loads(json.dumps(new))
    assert len(json.dumps(patch(documents[1], documents[2]))) < 1000
    assert patch(documents[1], documents[1]) == {}


class Told:
    """A tab: what it was told, put together."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.answer: Json = {}
        self.document: Json = {}
        self.moments: list[list[int]] = []

    def ask(self, window: float = WINDOW, chosen: str = "") -> Json:
        self.answer = json.loads(self.board.answer(window, self.answer.get("tag", ""), chosen))
        news = self.answer["document"]
        new = news.pop("moments", [])
        whole = "base" not in self.answer
        self.document = news if whole else merged(self.document, news)
        self.moments = new if whole else self.moments + new
        return self.answer


def test_tabs_share_a_moment_that_is_made_once(taken: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(live_board, "document", lambda *seen: made.append(seen) or document(*seen))
    history = [seen([taken])]
    tab, other = (Told(Board(lambda: history[0])) for _ in range(2))
    other.board = tab.board
    for count in range(1, 4):
        history[0] = seen([with_locked(taken, amount * MIB) for amount in range(1, count + 1)])
        assert tab.ask()["tag"] == other.ask()["tag"]
        assert len(made) == count
        assert tab.document == other.document == json.loads(json.dumps(document(history[0], WINDOW)))
        assert len(tab.moments) == count
    nothing = tab.ask()
    assert nothing["document"] == {}
    assert nothing["base"] == nothing["tag"]
    assert "base" not in tab.ask(window=60.0)  # through another window everything is told anew


def test_a_tab_that_missed_too_much_is_told_everything(taken: Snapshot) -> None:
    history = [seen([taken])]
    late, busy = (Told(Board(lambda: history[0])) for _ in range(2))
    busy.board = late.board
    late.ask()
    for count in range(1, MOST_VIEWS + 2):
        history[0] = seen([with_locked(taken, count * MIB)] * count)
        busy.ask()
    assert "base" not in late.ask()
    assert late.document == busy.document
    assert late.moments == busy.moments


def test_a_page_that_stands_still_gets_its_own_moment(taken: Snapshot) -> None:
    history = [seen([with_locked(taken, 5 * MIB)])]
    tab = Told(Board(lambda: history[0]))
    tag = tab.ask()["tag"]
    history[0] = seen([with_locked(taken, 5 * MIB), with_locked(taken, 6 * MIB)])
    Told(tab.board).ask()

    file = json.loads(tab.board.snapshot(tag) or b"")
    assert [row["locked_bytes"] for row in file["holders"] if row["pid"] == LOCKER] == [5 * MIB]
    assert file["holders"][0]["host_alloc_bytes"] == 8.5 * GIB
    assert file["findings"]
    facts = json.loads(tab.board.facts(tag) or b"")
    assert dict(facts[holder_key(taken.holders[1])])["Locked (VmLck)"] == "5 MiB"
    assert tab.board.snapshot("unknown") is None
    assert tab.board.facts("unknown") is None


Ask = Callable[..., tuple[int, dict[str, str], bytes]]


@pytest.fixture
def ask(taken: Snapshot, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Asks the dashboard's feed of a host with holders."""
    history = seen([taken])
    told = Board(lambda: history)
    monkeypatch.setattr(routes, "board", lambda: told)

    def ask(path: str, method: str = "GET", query: str = "") -> tuple[int, dict[str, str], bytes]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def ended() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": []}
        answering = Router(routes.routes(lambda: Site(str)))(scope, ended, send)
        with ThreadPoolExecutor(1) as thread:  # Playwright's loop may run in this one
            thread.submit(asyncio.run, answering).result()
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent)

    return ask


def test_the_feed_answers_its_own_paths_only(ask: Ask) -> None:
    status, headers, body = ask("/live/now.json", query="window=60&known=&chosen=")
    assert (status, headers["cache-control"]) == (200, "no-store")
    tag = json.loads(body)["tag"]
    status, headers, body = ask("/live/snapshot.json", query=f"at={tag}")
    assert headers["content-disposition"] == 'attachment; filename="pinscope-snapshot.json"'
    assert json.loads(body)["holders"]
    assert ask("/live/facts.json", query=f"at={tag}")[0] == 200
    assert ask("/live/facts.json", query="at=other")[0] == 404
    assert ask("/live/../now.py")[0] == 404
    assert ask("/live/now.json", method="POST")[0] == 405
    assert ask("/nothing")[0] == 404
    status, headers, body = ask("/live/now.js")
    assert (status, headers["content-type"]) == (200, "text/javascript; charset=utf-8")


def test_the_page_asks_for_its_script_and_needs_no_database(open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PINSCOPE_DATABASE", "sqlite:////proc/no/such/place.sqlite")
    app = open_page(NOW)
    assert not app.exception
    assert not app.error
    assert f"/live/now.js?{routes.VERSION}" in now._mount()
    assert any("pinscope-now" in element.proto.body for element in app.get("html"))


def test_the_script_sets_text_from_outside_as_text_only() -> None:
    for name in ("now.js", "now_chart.js"):
        code = (Path(now.__file__).with_name(name)).read_text()
        assert "insertAdjacentHTML" not in code
        assert "outerHTML" not in code
        for line in code.splitlines():
            assert "innerHTML" not in line or line.split("innerHTML = ")[1].startswith("'<svg viewBox"), line
