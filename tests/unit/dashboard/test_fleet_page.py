"""Fleet: who is worse, why, the map by a label, a figure's spread, and the runs behind."""

from __future__ import annotations

from pinscope.dashboard.pages import FLEET
from pinscope.dashboard.widgets import plain
from pinscope.report import fleet as report
from pinscope.store.store import Store
from tests.data.synthetic_fleet import SyntheticFleet
from tests.unit.dashboard.conftest import Open


def test_the_page_names_who_is_worse_and_leads_to_its_run(store: Store, open_page: Open) -> None:
    made = SyntheticFleet(40, 1, seed=3, kinds=("link",))
    store.import_runs((run, []) for run, _ in made.runs())
    (guilty,) = made.faults
    app = open_page(FLEET, label="rack")
    assert not app.exception
    (verdict,) = app.subheader
    assert verdict.value.replace("\\", "").startswith(f"1 of 40 GPUs is worse than others like them, {guilty} GPU 0 by")
    (link,) = (link for link in app.get("page_link") if "others 16" in link.proto.label.replace("\\", ""))
    assert f"run=bandwidth-{guilty}-2" in link.proto.query_string
    assert len(app.get("plotly_chart")) == 2
    assert [box.label for box in app.selectbox] == ["Experiment", "Label", "Figure", "Runs of"]
    assert app.code[0].value == "pinscope fleet show bandwidth --label rack"
    *_, runs_of = app.selectbox
    assert runs_of.options[0] == f"{guilty} GPU 0"
    assert [link.proto.label for link in app.get("page_link")[-3:]] == [
        plain(f"bandwidth-{guilty}-{number}") for number in (2, 1, 0)
    ]


def test_any_gpu_of_many_can_be_asked_for_by_its_name(store: Store, open_page: Open) -> None:
    store.import_runs((run, []) for run, _ in SyntheticFleet(report.MOST_ROWS + 20, 0, seed=3).runs())
    host = f"node{report.MOST_ROWS + 9:05}"
    app = open_page(FLEET, gpu=f"{host} GPU 0")
    *_, runs_of = app.selectbox
    assert len(runs_of.options) == report.MOST_ROWS
    assert runs_of.value == f"{host} GPU 0"
    assert len([link for link in app.get("page_link") if f"run=bandwidth-{host}" in link.proto.query_string]) == 3
    app = open_page(FLEET, gpu="nobody")
    assert not app.exception
    assert "No GPU of the fleet is called nobody." in [caption.value for caption in app.caption]


def test_a_label_that_all_share_is_not_offered(store: Store, open_page: Open) -> None:
    store.import_runs((run, []) for run, _ in SyntheticFleet(8, 0, seed=3).runs())
    app = open_page(FLEET)
    assert app.selectbox[1].options == ["host"]
    (verdict,) = app.subheader
    assert verdict.value == plain("None of 8 GPUs is worse than others like it, as far as so few tell.")


def test_without_runs_it_says_so(open_page: Open) -> None:
    app = open_page(FLEET)
    assert not app.exception
    assert "No finished run" in app.info[0].value
