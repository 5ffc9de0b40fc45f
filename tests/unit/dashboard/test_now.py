"""Now: the page in every state of the host, on made-up hosts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from pinscope.analysis.rules import growth
from pinscope.dashboard import live_watch, now
from pinscope.dashboard.live_watch import watch
from pinscope.dashboard.pages import NOW
from pinscope.live.verdict import snapshot_verdict
from pinscope.records.snapshot import Snapshot, Unreadable
from tests.data.synthetic_live import GIB, LOCKER, MIB, TRAINER, WORKER, Source, empty, full, stuck, with_locked
from tests.unit.dashboard.conftest import Open
from tests.unit.dashboard.test_pages import texts

HOSTILE = "<img src=http://evil.example/a.png> [c](http://evil.example) :red[d] $e$ `f`"
Host = Callable[[Callable[[], Snapshot]], Source]


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Makes the page look at a host that gives these snapshots."""

    def look_at(take: Callable[[], Snapshot]) -> Source:
        source = Source(take)
        monkeypatch.setattr(live_watch, "open_source", lambda interval_seconds: source)
        return source

    watch.clear()
    yield look_at
    watch.clear()


@pytest.fixture
def taken(tmp_path: Path) -> Snapshot:
    return full(tmp_path)


def opened(open_page: Open) -> AppTest:
    """The page with its first snapshot."""
    app = open_page(NOW)
    return drawn_until(app, lambda: bool(app.metric))


def drawn_until(app: AppTest, condition: Callable[[], bool], seconds: float = 10) -> AppTest:
    """Draw the page again, as the browser does every second, until it shows something."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, texts(app)
        time.sleep(0.05)
        app.run()
    assert not app.exception
    return app


def metric(app: AppTest, label: str) -> tuple[str, str]:
    """A figure and what stands below it."""
    return next((one.value.replace("\\", ""), one.delta) for one in app.metric if one.label == label)


def table(app: AppTest, column: str = "cudaHostAlloc") -> pd.DataFrame:
    """The one with this column; empty if there is none."""
    return next((one.value for one in app.dataframe if column in one.value), pd.DataFrame())


def words(app: AppTest) -> str:
    return texts(app).replace("\\", "")


def facts(app: AppTest) -> dict[str, str]:
    """All tables of facts on the page."""
    rows = [row for one in app.table for row in one.value.itertuples(index=False)]
    return {name.replace("\\", "").strip("*"): text.replace("\\", "") for name, text in rows}


def test_a_host_with_holders_and_gpus_is_told_in_full(host: Host, taken: Snapshot, open_page: Open) -> None:
    host(lambda: taken)
    app = opened(open_page)

    assert [header.value.replace("\\", "") for header in app.subheader] == [snapshot_verdict(taken)]
    assert metric(app, "Pinned, whole host") == ("14 GiB", "11.1 % of memory")
    assert metric(app, "Explained by holders")[0] == "8.50 GiB"
    assert metric(app, "Registered, or other pins")[0] == "~5.50 GiB"
    assert metric(app, "Page tables") == ("≥18 MiB", "0.013 % of its memory")
    assert metric(app, "Unattributed")[0] == "78 MiB"
    assert metric(app, "Received over PCIe") == ("27.6 GB/s", "47.9 % of the link")
    holders = table(app)
    assert holders["PID"].tolist() == [TRAINER, LOCKER, WORKER]
    assert holders["cudaHostAlloc"].tolist() == [8.5 * GIB, 0, 0]
    assert holders["Inherited"].tolist() == [0, 0, 8.5 * GIB]
    assert holders["Page tables"].tolist()[0] == 36 * MIB
    assert holders["GPUs"].tolist()[0] == "0, 1"
    assert "Registered" not in holders
    assert "GPU 1: NVIDIA H200" in words(app)
    assert app.get("vega_lite_chart")
    assert "Nothing happened in this window" in words(app)


def test_without_a_gpu_the_host_part_stands_and_says_what_is_missing(
    host: Host, tmp_path: Path, open_page: Open
) -> None:
    taken = full(tmp_path, gpus=0)
    host(lambda: taken)
    app = opened(open_page)

    assert metric(app, "Pinned, whole host")[0] == "14 GiB"
    assert "No NVIDIA driver is installed here" in words(app)
    assert "The rest of this page works without a GPU" in words(app)
    assert [one.label for one in app.metric if "PCIe" in one.label] == []
    assert table(app).set_index("PID")["Page tables"].isna().to_dict() == {TRAINER: True, LOCKER: False, WORKER: True}


def test_nobody_holds_anything(host: Host, tmp_path: Path, open_page: Open) -> None:
    taken = empty(tmp_path)
    host(lambda: taken)
    app = opened(open_page)

    assert metric(app, "Pinned, whole host")[0] == "0 B"
    assert "appear here as soon as there are any" in words(app)
    assert not app.dataframe


def test_until_the_first_snapshot_the_page_says_so(host: Host, open_page: Open) -> None:
    release = threading.Event()
    host(lambda: stuck(release))
    app = open_page(NOW)

    assert not app.exception
    assert "The first snapshot is being taken" in words(app)
    assert not app.metric
    assert app.get("download_button")[0].proto.disabled
    release.set()


def test_a_host_that_cannot_be_read_is_one_clear_line(host: Host, open_page: Open) -> None:
    def fail() -> Snapshot:
        raise OSError(5, "Input/output error")

    host(fail)
    app = open_page(NOW)
    drawn_until(app, lambda: bool(app.warning))

    assert "Input/output error" in words(app)
    assert "PinScope keeps trying" in words(app)
    assert not app.error


def test_figures_stay_when_reading_breaks_off_and_go_on_when_it_recovers(
    host: Host, taken: Snapshot, open_page: Open
) -> None:
    source = host(lambda: taken)
    app = opened(open_page)
    watch().set_interval(0.05)

    def fail() -> Snapshot:
        raise OSError(5, "Input/output error")

    source.take_one = fail
    drawn_until(app, lambda: bool(app.warning))
    assert "Below is the last reading that succeeded" in words(app)
    assert metric(app, "Pinned, whole host")[0] == "14 GiB"
    source.take_one = lambda: taken
    drawn_until(app, lambda: not app.warning)


def test_what_cannot_be_read_is_said_with_what_would_help(host: Host, taken: Snapshot, open_page: Open) -> None:
    gap = Unreadable(what="Processes of others", reason="they are protected", advice="Run as root.", hides_holders=True)
    host(lambda: taken.model_copy(update={"unreadable": (gap,)}))
    app = opened(open_page)

    assert "What cannot be read here" in [header.value for header in app.header]
    for text in ("Processes of others", "They are protected.", "Run as root.", "may hide holders"):
        assert text in words(app)


def test_a_figure_that_is_missing_says_why(host: Host, taken: Snapshot, open_page: Open) -> None:
    unknown = {"pinned_bytes": None, "missing": {"pinned_bytes": "needs Linux 5.7"}}
    host(lambda: taken.model_copy(update={"host": taken.host.model_copy(update=unknown)}))
    app = opened(open_page)

    shown = next(one for one in app.metric if one.label == "Pinned, whole host")
    assert metric(app, "Pinned, whole host")[0] == "n/a"
    assert "Needs Linux 5" in shown.help


def test_events_tell_who_took_and_gave_back(host: Host, taken: Snapshot, open_page: Open) -> None:
    amounts = iter([96 * MIB, 128 * MIB, 32 * MIB])
    last = [96 * MIB]

    def take() -> Snapshot:
        last[0] = next(amounts, last[0])
        return with_locked(taken, last[0])

    host(take)
    app = opened(open_page)
    watch().set_interval(0.05)
    drawn_until(app, lambda: len(table(app, "Event")) == 2)
    told = table(app, "Event")

    assert told["Event"].tolist() == ["▼ released", "▲ grew"]
    assert told["Change"].tolist() == [-96 * MIB, 32 * MIB]
    assert told["Process"].tolist() == ["postgres"] * 2


def test_growing_processes_are_marked_and_can_be_shown_alone(
    host: Host, taken: Snapshot, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "LEAK_SECONDS", 0.3)  # nobody waits half a minute for a test
    amount = [0]

    def take() -> Snapshot:
        amount[0] += 8 * MIB
        return with_locked(taken, amount[0])

    host(take)
    app = opened(open_page)
    watch().set_interval(0.05)
    drawn_until(app, lambda: "▲" in table(app)["Grows"].tolist())
    marked = table(app)
    assert marked["PID"][marked["Grows"] == "▲"].tolist() == [LOCKER]

    app.toggle(key="now-only-growing").set_value(True).run()
    assert table(app)["PID"].tolist() == [LOCKER]
    assert "1 of 3 holders · 1 growing" in words(app)


@pytest.mark.parametrize(
    ("text", "pids"), [("worker", [WORKER]), (str(TRAINER), [TRAINER]), ("ROOT post", [LOCKER]), ("nobody", [])]
)
def test_the_filter_finds_by_every_word(
    text: str, pids: list[int], host: Host, taken: Snapshot, open_page: Open
) -> None:
    host(lambda: taken)
    app = opened(open_page)
    app.text_input(key="now-filter").set_value(text).run()

    if pids:
        assert table(app)["PID"].tolist() == pids
    else:
        assert "No holder fits this filter" in words(app)
    assert f"{len(pids)} of 3 holders" in words(app)


def test_the_chosen_process_stays_chosen_when_another_overtakes_it(
    host: Host, taken: Snapshot, open_page: Open
) -> None:
    locked = [96 * MIB]
    host(lambda: with_locked(taken, locked[0]))
    app = opened(open_page)
    watch().set_interval(0.05)
    chosen = taken.holders[1]
    app.session_state["now-chosen-holder"] = (chosen.pid, chosen.started_at)
    app.run()
    assert app.session_state["now-holders"]["selection"]["rows"] == [1]
    assert facts(app)["Locked (VmLck)"] == "96 MiB"

    order = tuple(sorted(taken.holders, key=lambda one: one.pid))
    assert order[0].pid == LOCKER
    reordered = taken.model_copy(update={"holders": order})
    watch().look()
    locked[0] = 20 * GIB
    taken_later = with_locked(reordered, locked[0])
    live_watch.watch()._source.take_one = lambda: taken_later  # type: ignore[union-attr]
    drawn_until(app, lambda: table(app)["PID"].tolist()[0] == LOCKER)
    assert app.session_state["now-holders"]["selection"]["rows"] == [0]
    assert facts(app)["Locked (VmLck)"] == "20 GiB"


def test_details_say_of_each_figure_whether_it_is_exact(host: Host, taken: Snapshot, open_page: Open) -> None:
    host(lambda: taken)
    app = opened(open_page)
    trainer = taken.holders[0]
    app.session_state["now-chosen-holder"] = (trainer.pid, trainer.started_at)
    told = facts(app.run())

    assert told["cudaHostAlloc"] == "8.50 GiB"
    assert told["Its mappings"] == "2 × 4 GiB (a power of two), 1 × 512 MiB (a power of two)"
    assert told["Possible rounding waste"].startswith("≤4.25 GiB (at most")
    assert told["Inherited"] == f"0 B; its own is also mapped by pid {WORKER}"
    assert told["GPU 1"] == "memory 20 GiB, page tables ≥18 MiB"
    assert told["Page tables"].startswith("at least: 8 bytes for each page")
    assert told["Registered"].startswith("n/a (")


def test_a_chosen_process_that_ended_is_said_to_hold_nothing(host: Host, taken: Snapshot, open_page: Open) -> None:
    host(lambda: taken)
    app = opened(open_page)
    app.session_state["now-chosen-holder"] = (999, None)
    assert "Process 999 holds no pinned memory any more" in words(app.run())


def test_a_paused_page_stands_still_and_a_resumed_one_goes_on(host: Host, taken: Snapshot, open_page: Open) -> None:
    source = host(lambda: taken)
    app = opened(open_page)
    watch().set_interval(0.05)
    app.toggle(key="now-pause").set_value(True).run()
    shown = [one.value for one in app.caption if "As of" in one.value]
    assert "Paused" in shown[0]

    count = source.taken
    drawn_until(app, lambda: source.taken > count + 3)
    assert [one.value for one in app.caption if "As of" in one.value] == shown
    app.text_input(key="now-filter").set_value("worker").run()
    assert table(app)["PID"].tolist() == [WORKER]

    app.toggle(key="now-pause").set_value(False).run()
    assert [one.value for one in app.caption if "As of" in one.value] != shown


def test_a_page_paused_before_its_first_snapshot_still_gets_one(
    host: Host, taken: Snapshot, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    paces, fragment = [], now.st.fragment

    def seen(page: Callable[..., None], *, run_every: float | None) -> Callable[..., None]:
        paces.append(run_every)
        return fragment(page, run_every=run_every)

    monkeypatch.setattr(now.st, "fragment", seen)
    release = threading.Event()
    source = host(lambda: stuck(release))
    app = open_page(NOW)
    app.toggle(key="now-pause").set_value(True).run()
    assert paces[-1] is not None
    source.take_one = lambda: taken
    release.set()
    drawn_until(app, lambda: bool(app.metric))
    assert any("Paused" in one.value for one in app.caption)
    assert paces[-1] is None


def test_the_pace_is_that_of_the_one_sampler(host: Host, taken: Snapshot, open_page: Open) -> None:
    host(lambda: taken)
    app = opened(open_page)
    app.selectbox(key="now-interval").set_value(5.0).run()
    assert watch().look().interval_seconds == 5.0

    watch().set_interval(2.0)  # as another tab does
    app.run()
    assert app.selectbox(key="now-interval").value == 2.0


def test_the_snapshot_can_be_taken_away(host: Host, taken: Snapshot, open_page: Open) -> None:
    host(lambda: taken)
    app = opened(open_page)
    document = json.loads(app.session_state["now-shown"].as_file())

    assert [one["pid"] for one in document["holders"]] == [TRAINER, LOCKER, WORKER]
    assert document["holders"][0]["host_alloc_bytes"] == 8.5 * GIB
    assert document["holders"][1]["locked_bytes"] == 96 * MIB
    assert len(document["devices"]) == 2
    assert document["findings"]


def test_500_holders_are_drawn_within_the_pace(host: Host, tmp_path: Path, open_page: Open) -> None:
    taken = full(tmp_path, others=500)
    host(lambda: taken)
    app = opened(open_page)
    assert len(table(app)) == 503

    begun = time.thread_time()
    app.run()
    assert time.thread_time() - begun < 1.0


def test_names_from_outside_stay_text(host: Host, tmp_path: Path, open_page: Open) -> None:
    taken = full(tmp_path, gpus=0)
    trainer = taken.holders[0].model_copy(update={"name": HOSTILE, "command": HOSTILE, "user": HOSTILE})
    gap = Unreadable(what=HOSTILE, reason=HOSTILE, advice=HOSTILE)
    host(lambda: taken.model_copy(update={"holders": (trainer,), "unreadable": (gap,)}))
    app = opened(open_page)
    app.session_state["now-chosen-holder"] = (trainer.pid, trainer.started_at)
    app.run()

    assert HOSTILE not in texts(app) + "".join(str(one.value) for one in app.table)
    assert "evil" in words(app)


def test_the_page_stands_without_a_database(
    host: Host, taken: Snapshot, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PINSCOPE_DATABASE", "sqlite:////proc/no/such/place.sqlite")
    host(lambda: taken)
    app = opened(open_page)
    assert not app.error
