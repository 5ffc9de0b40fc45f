"""Runs: found, opened, brought in, taken away."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard.pages import RUNS
from pinscope.dashboard.run_titles import title
from pinscope.dashboard.runs import RUNS_A_PAGE
from pinscope.dashboard.widgets import plain
from pinscope.probes.process import current_process
from pinscope.records.run import Progress, Run
from pinscope.report.document import open_document
from pinscope.report.facts import FIRST
from pinscope.store.bundle import write_bundle
from pinscope.store.store import Store
from tests.data import synthetic
from tests.unit.dashboard.conftest import Open, all_opened

HOSTILE = "![x](http://evil.example/x.png) <script>alert(1)</script> [y](javascript:alert(2)) :red[z] $a$ # b"


def listed(app: AppTest) -> list[str]:
    """Titles of the runs in the list, as one reads them."""
    return [link.label.replace("\\", "").strip("*") for link in app.get("page_link") if "·" in link.label]


def said(app: AppTest) -> str:
    """All that the page says in words, as Markdown."""
    kinds = (app.title, app.header, app.markdown, app.caption, app.info, app.warning, app.error, app.success)
    return "\n".join(str(element.value) for kind in kinds for element in kind)


def test_runs_are_listed_newest_first(full_store: Store, open_page: Open) -> None:
    newest_first = sorted(full_store.runs(), key=lambda run: run.created_at, reverse=True)
    page = [plain(title(run)).replace("\\", "") for run in newest_first[:RUNS_A_PAGE]]
    assert listed(open_page(RUNS)) == page


@pytest.mark.parametrize(
    ("box", "choice", "expected"),
    [("filter-experiment", "overlap", "Overlap"), ("filter-lab", "host", "host model (no GPU)")],
)
def test_runs_are_filtered(box: str, choice: str, expected: str, full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS)
    app.selectbox(key=box).set_value(choice).run()
    assert listed(app)
    assert all(expected in title for title in listed(app))


def test_runs_are_filtered_by_status(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS)
    app.selectbox(key="filter-status").set_value("failed").run()
    assert listed(app) == ["Overlap · Synthetic GPU"]


def test_a_filter_that_nothing_fits_says_so(store: Store, open_page: Open) -> None:
    store.import_runs([(synthetic.run("bandwidth"), [])])
    app = open_page(RUNS)
    app.selectbox(key="filter-status").set_value("failed")
    app.toggle(key="filter-recordings").set_value(False).run()
    assert "No run fits" in said(app)


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


@pytest.mark.parametrize("run_id", ["syntheticbandwidthcuda", "syntheticoverlapcuda"])
def test_a_run_opens_with_its_verdict_three_figures_a_chart_and_three_findings(
    run_id: str, full_store: Store, open_page: Open
) -> None:
    run = full_store.run(run_id)
    document = open_document(run, full_store.observations(run_id))
    app = open_page(RUNS, run=run_id)
    assert not app.exception
    assert not app.error
    assert [header.value for header in app.subheader] == [plain(document.reading.verdict or "")]
    assert len(app.metric) == FIRST
    assert len(app.get("plotly_chart")) == 1
    assert sum(plain(finding.title) in said(app) for finding in document.reading.findings) == FIRST
    assert not app.dataframe


@pytest.mark.parametrize("run_id", ["syntheticbandwidthcuda", "syntheticoverlapcuda"])
def test_the_rest_of_a_run_is_one_click_away(run_id: str, full_store: Store, open_page: Open) -> None:
    run = full_store.run(run_id)
    document = open_document(run, full_store.observations(run_id))
    app = all_opened(open_page(RUNS, run=run_id))
    assert not app.exception
    assert [metric.label for metric in app.metric] == [plain(quantity.name) for quantity in document.reading.headline]
    assert len(app.get("plotly_chart")) == len(document.charts)
    assert len(app.dataframe) == len(document.reading.tables)
    for finding in document.reading.findings:
        assert plain(finding.title) in said(app)


def test_the_beginning_of_an_id_opens_the_run(full_store: Store, open_page: Open) -> None:
    assert "Overlap" in open_page(RUNS, run="syntheticover").title[0].value


@pytest.mark.parametrize("run_id", ["no-such-run", "synthetic", "", "../../etc/passwd", "<script>"])
def test_an_address_that_names_no_run_is_one_clear_line(run_id: str, full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run=run_id)
    assert not app.exception
    assert len(app.error) == 1
    assert "\n" not in app.error[0].value


def test_a_run_without_observations_says_so(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="a-interrupted")
    assert not app.exception
    assert "nothing was measured until then" in said(app)
    assert "the child is gone" in said(app)


def test_tables_say_n_a_where_nothing_is_known(full_store: Store, open_page: Open) -> None:
    run = full_store.runs(experiment="bandwidth", lab="cuda", status="done")[0]
    tables = all_opened(open_page(RUNS, run=run.id)).dataframe
    assert tables
    assert {table.proto.placeholder for table in tables} == {"n/a"}


def test_a_run_of_a_newer_version_shows_its_raw_data(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="of-the-future")
    assert not app.exception
    assert "no experiment 'pinning'" in said(app).replace("\\", "")


def test_nothing_in_a_run_is_read_as_markdown(store: Store, open_page: Open) -> None:
    run = synthetic.run("bandwidth", id="hostile", status="failed", error=HOSTILE, notes=(HOSTILE,))
    run = run.model_copy(update={"environment": run.environment.model_copy(update={"host": HOSTILE, "cpu": HOSTILE})})
    store.import_runs([(run, [])])
    for app in (open_page(RUNS), open_page(RUNS, run="hostile")):
        assert "evil" in said(app)
        for active in ("![x](", "<script>", "[y](", ":red[z]", "$a$"):
            assert active not in said(app)


def test_a_run_that_goes_on_shows_how_far_it_is(store: Store, open_page: Open) -> None:
    run = store.add(synthetic.run("bandwidth", status="running", finished_at=None))
    progress = Progress(fraction=0.25, message="pinned h2d 1 MiB")
    store.update(run.id, process=current_process(), progress=progress)
    app = open_page(RUNS, run=run.id)
    assert not app.exception
    assert app.get("progress")[0].value == 25
    assert app.get("progress")[0].text.startswith("25% · pinned h2d 1 MiB")
    assert any(button.label == "Cancel" for button in app.button)


def test_a_run_that_queues_says_for_what(store: Store, open_page: Open) -> None:
    run = store.add(synthetic.run("bandwidth", status="running", finished_at=None))
    store.update(run.id, process=current_process(), progress=Progress(waiting_for="run xyz"))
    assert "Waiting for run xyz" in open_page(RUNS, run=run.id).get("progress")[0].text


def test_a_bundle_is_imported_once(tmp_path: Path, store: Store, open_page: Open) -> None:
    write_bundle(tmp_path / "a.pinscope", [(synthetic.run("bandwidth", id="carried"), [])])
    content = (tmp_path / "a.pinscope").read_bytes()
    app = open_page(RUNS)
    app.file_uploader[0].set_value(("a.pinscope", content, "application/octet-stream")).run()
    assert "Imported 1" in said(app)
    assert store.run("carried").status == "done"
    app.file_uploader[0].set_value(("a.pinscope", content, "application/octet-stream")).run()
    assert "1 were here already" in said(app)


@pytest.mark.parametrize("content", [b"", b"no bundle at all", "newer"])
def test_a_file_that_is_no_usable_bundle_is_one_clear_line(content: bytes | str, store: Store, open_page: Open) -> None:
    if isinstance(content, str):
        bundles = Path(__file__).parents[2] / "data" / "bundles"
        content = (bundles / "format-999.pinscope").read_bytes()
    app = open_page(RUNS)
    app.file_uploader[0].set_value(("a.pinscope", content, "application/octet-stream")).run()
    assert not app.exception
    assert len(app.error) == 1
    assert not store.runs(recordings=False)


def test_a_run_is_not_deleted_without_a_question(full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS, run="a-failed")
    next(button for button in app.button if button.label == "Delete").click().run()
    assert "cannot be undone" in said(app)
    assert {"Keep it", "Delete"} <= {button.label for button in app.button}
    assert full_store.run("a-failed")


def test_a_recording_says_what_it_is_and_cannot_be_deleted(shipped: Run, open_page: Open) -> None:
    app = open_page(RUNS, run=shipped.id)
    assert "not measured on your machine" in said(app)
    assert app.metric
    assert "Delete" not in {button.label for button in app.button}


def test_recordings_can_be_left_out_of_the_list(shipped: Run, full_store: Store, open_page: Open) -> None:
    app = open_page(RUNS)
    with_recordings = len(listed(app))
    app.toggle(key="filter-recordings").set_value(False).run()
    assert len(listed(app)) == with_recordings - 1
