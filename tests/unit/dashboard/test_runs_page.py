"""Runs: found, opened, brought in, taken away."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.runs import RUNS_A_PAGE
from pinscope.dashboard.widgets import plain, prose, title
from pinscope.experiments.registry import GONE
from pinscope.probes.process import current_process
from pinscope.records.run import Progress, Run
from pinscope.report.facts import FIRST, open_document
from pinscope.store import choice
from pinscope.store.bundle import read_bundle, write_bundle
from pinscope.store.store import Store
from tests.data import synthetic, synthetic_timeline
from tests.unit.dashboard.conftest import Open, all_opened
from tests.unit.dashboard.test_pages import texts as said


def listed(app: AppTest) -> list[str]:
    """Titles of the runs in the list, as one reads them."""
    return [link.label.replace("\\", "").strip("*") for link in app.get("page_link") if "·" in link.label]


def test_runs_are_listed_newest_first_and_filtered(full_store: Store, open_page: Open) -> None:
    newest_first = sorted(full_store.runs(), key=lambda run: run.created_at, reverse=True)
    page = [plain(title(run)).replace("\\", "") for run in newest_first[:RUNS_A_PAGE]]
    app = open_page(RUNS)
    assert listed(app) == page

    def chosen(**choices: str) -> list[str]:
        for name in ("experiment", "lab", "status"):
            app.selectbox(key=f"filter-{name}").set_value(choices.get(name))
        app.run()
        return listed(app)

    for choices, expected in (({"experiment": "overlap"}, "Overlap"), ({"lab": "host"}, "host model (no GPU)")):
        assert (fitting := chosen(**choices))
        assert all(expected in title for title in fitting)
    assert chosen(status="failed") == ["Overlap · Synthetic GPU"]
    assert chosen(status="failed", experiment="bandwidth") == []
    assert "No run fits" in said(app)


def test_of_more_runs_than_a_page_looks_at_the_newest_are_listed(
    store: Store, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [datetime(2026, 11, day, tzinfo=UTC) for day in (3, 1, 2)]
    store.import_runs([(synthetic.run("bandwidth", id=f"{day:%d}-run", created_at=day), []) for day in days])
    assert [run.id for run in store.runs(recordings=False, most=2)] == ["03-run", "02-run"]
    shipped = len(store.runs()) - len(days)
    assert "the newest ones" not in said(open_page(RUNS))
    monkeypatch.setattr(choice, "NEWEST", 2)
    assert f"{shipped + 2} of {shipped + 2} runs, the newest ones: " in said(open_page(RUNS))


def test_many_runs_come_in_pages(store: Store, open_page: Open) -> None:
    store.import_runs([(synthetic.run("bandwidth", id=f"run-{number:02}"), []) for number in range(30)])
    app = open_page(RUNS)
    first = said(app)
    assert len(listed(app)) == RUNS_A_PAGE
    before, rest = divmod(len(store.runs()) - 1, RUNS_A_PAGE)
    app.pagination[0].set_value(before + 1).run()
    assert len(listed(app)) == rest + 1
    assert plain("run-29") in first
    assert plain("run-29") not in said(app)

    app = open_page(RUNS, page="2", search="run")  # all of them
    assert len(listed(app)) == RUNS_A_PAGE
    for search, number in (("run-0", 10), ("run", RUNS_A_PAGE)):
        app.text_input(key="search").set_value(search).run()
        assert not app.exception
        assert len(listed(app)) == number
    assert len(listed(open_page(RUNS, page="999"))) == RUNS_A_PAGE


def test_a_run_opens_with_its_verdict_three_figures_a_chart_and_three_findings_and_the_rest_is_one_click_away(
    full_store: Store, open_page: Open
) -> None:
    address = "syntheticover"  # the beginning of an id will do
    run = full_store.run(address)
    document = open_document(run, full_store.observations(run.id))
    reading = document.reading
    app = open_page(RUNS, run=address)
    assert not app.exception
    assert not app.error
    assert app.title[0].value == plain(title(run))
    assert [header.value for header in app.subheader] == [prose(reading.verdict or "")]
    assert len(app.metric) == FIRST
    assert len(app.get("plotly_chart")) == 1
    assert sum(prose(finding.title) in said(app) for finding in reading.findings) == min(FIRST, len(reading.findings))
    assert not app.dataframe

    all_opened(app)
    assert not app.exception
    assert [metric.label for metric in app.metric] == [plain(quantity.name) for quantity in reading.headline]
    assert len(app.get("plotly_chart")) == len(document.charts)
    assert len(app.dataframe) == len(reading.tables) > 0
    assert {table.proto.placeholder for table in app.dataframe} == {"n/a"}
    for finding in reading.findings:
        assert prose(finding.title) in said(app)


def test_an_address_that_names_no_run_is_one_clear_line(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="no-such-run")
    for run_id in ("no-such-run", "synthetic", "", "../../etc/passwd", "<script>"):
        app.query_params["run"] = run_id
        app.run()
        assert not app.exception
        assert len(app.error) == 1
        assert "\n" not in app.error[0].value


def test_a_run_without_observations_says_so(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="a-interrupted")
    assert not app.exception
    assert "nothing was measured until then" in said(app)
    assert "the child is gone" in said(app)


def test_a_run_of_a_newer_version_shows_its_raw_data(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="of-the-future")
    assert not app.exception
    assert "no experiment 'pinning'" in said(app).replace("\\", "")


def test_a_run_of_an_experiment_that_is_no_more_says_what_became_of_it_and_shows_its_rows(
    store: Store, open_page: Open
) -> None:
    ((run, rows),) = read_bundle(Path(__file__).parents[2] / "data" / "bundles" / "gone-brim.pinscope")
    store.import_runs([(run.model_copy(update={"id": "old"}), rows)])
    app = open_page(RUNS, run="old")
    assert not app.exception
    assert prose(GONE["brim"]) in said(app)
    assert any("Raw observations (307)" in part.label for part in app.expander)


def test_a_run_that_queues_says_for_what_and_one_that_goes_on_how_far_it_is(store: Store, open_page: Open) -> None:
    run = store.add(synthetic.run("bandwidth", status="running", finished_at=None))
    store.update(run.id, process=current_process(), progress=Progress(waiting_for="run xyz"))
    app = open_page(RUNS, run=run.id)
    assert "Waiting for run xyz" in app.get("progress")[0].text
    store.update(run.id, progress=Progress(fraction=0.25, message="pinned h2d 1 MiB"))
    app.run()
    assert not app.exception
    assert app.get("progress")[0].value == 25
    assert app.get("progress")[0].text.startswith("25% · pinned h2d 1 MiB")
    assert any(button.label == "Cancel" for button in app.button)
    store.update(run.id, process=current_process().model_copy(update={"pid": 2**22}))
    app.run()
    assert store.run(run.id).status == "interrupted"


def test_a_bundle_is_imported_once_and_a_file_that_is_none_is_one_clear_line(
    tmp_path: Path, store: Store, open_page: Open
) -> None:
    app = open_page(RUNS)

    def upload(content: bytes) -> None:
        app.file_uploader[0].set_value(("a.pinscope", content, "application/octet-stream")).run()
        assert not app.exception

    newer = Path(__file__).parents[2] / "data" / "bundles" / "format-999.pinscope"
    for unusable in (b"", b"no bundle at all", newer.read_bytes()):
        upload(unusable)
        assert len(app.error) == 1
        assert not store.runs(recordings=False)
    write_bundle(tmp_path / "a.pinscope", [(synthetic.run("bandwidth", id="carried"), [])])
    content = (tmp_path / "a.pinscope").read_bytes()
    upload(content)
    assert "Imported 1" in said(app)
    assert store.run("carried").status == "done"
    upload(content)
    assert "1 were here already" in said(app)


def test_a_run_is_not_deleted_without_a_question(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="a-failed")
    next(button for button in app.button if button.label == "Delete").click().run()
    assert "cannot be undone" in said(app)
    assert {"Keep it", "Delete"} <= {button.label for button in app.button}
    assert full_store.run("a-failed")


def test_a_recording_says_what_it_is_cannot_be_deleted_and_can_be_left_out_of_the_list(
    shipped: Run, full_store: Store, open_page: Open
) -> None:
    app = open_page(RUNS, run=shipped.id)
    assert "not measured on your machine" in said(app)
    assert app.metric
    assert "Delete" not in {button.label for button in app.button}
    app = open_page(RUNS)
    with_recordings = len(listed(app))
    app.toggle(key="filter-recordings").set_value(False).run()
    assert len(listed(app)) == with_recordings - 1


def test_a_timeline_that_goes_on_says_how_long_it_will(store: Store, open_page: Open) -> None:
    run = synthetic_timeline.run(
        id="going-on", status="running", finished_at=None, process=current_process(),
        progress=Progress(fraction=0.2, message="120 s, 121 samples"),
    )  # fmt: skip
    store.add(run.model_copy(update={"params": {**run.params, "for_seconds": 600.0}}))
    store.append(run.id, synthetic_timeline.growing(samples=10))
    app = open_page(RUNS, run=run.id)
    assert not app.exception
    assert "roughly 600 s in all" in said(app)
    assert len(app.get("plotly_chart")) == 1


def test_filters_search_and_order_are_taken_from_the_link(full_store: Store, open_page: Open) -> None:
    full_store.update("a-failed", name="zebra", tags=("nightly",))
    full_store.update("a-cancelled", name="ant", tags=("nightly", "ci"))
    for search, number in (("#nightly", 2), ("#nightly zebra", 1), ("#ci", 1), ("#night", 0), ("night", 2)):
        assert len(listed(open_page(RUNS, search=search))) == number
    names = [text.value for text in open_page(RUNS, search="#nightly", sort="Name").markdown if "nightly" in text.value]
    assert [name.split()[0] for name in names] == ["ant", "zebra"]
    assert listed(open_page(RUNS, **{"filter-status": "failed"})) == ["Overlap · Synthetic GPU"]
    assert len(listed(open_page(RUNS, **{"filter-status": "no such"}))) == RUNS_A_PAGE


def edited() -> None:
    """The script under test: a dialog that stays open, as one does in a browser."""
    from pinscope.dashboard import run_view, state

    run_view._edit(state.store(), state.store().run("a-failed"))


def test_a_run_is_named_tagged_and_starred_in_the_page(full_store: Store, open_page: Open) -> None:
    app = AppTest.from_function(edited, default_timeout=60).run()

    def save(**texts: str) -> None:
        for box in (*app.text_input, *app.text_area):
            box.set_value(texts[box.label.split()[0]])
        app.toggle[0].set_value(True)
        app.button[0].click().run()

    save(Name="before", Tags="ci, rack 7", Note="old driver")
    assert "a tag has" in app.error[0].value
    assert full_store.run("a-failed").name is None
    save(Name="before", Tags="ci, rack-7, ci", Note="old driver")
    run = full_store.run("a-failed")
    assert (run.name, run.tags, run.note, run.baseline) == ("before", ("ci", "rack-7"), "old driver", True)
    shown = said(open_page(RUNS, run="before"))
    assert plain("★ before #ci #rack-7") in shown
    assert "old driver" in shown
    save(Name="", Tags="", Note="")
    assert full_store.run("a-failed").model_copy(update={"baseline": False}).tags == ()
    assert full_store.run("a-failed").name is None


def test_ticked_runs_lead_to_their_comparison_the_older_first(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS)
    for run_id in ("syntheticbandwidthcuda", "of-the-future"):
        assert not any("ticked" in link.label for link in app.get("page_link"))
        app.checkbox(key=f"tick-{run_id}").check().run()
    app.text_input(key="search").set_value("no run has this").run()
    assert not app.checkbox
    (link,) = [link for link in app.get("page_link") if link.label == "Compare the 2 ticked runs"]
    assert parse_qs(link.proto.query_string) == {"a": ["of-the-future"], "b": ["syntheticbandwidthcuda"]}
