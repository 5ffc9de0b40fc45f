"""Fleet: who is worse, why, the map by a label, a figure's spread, and the runs behind."""

from __future__ import annotations

from pinscope.dashboard.pages import FLEET
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


def test_without_runs_it_says_so(open_page: Open) -> None:
    app = open_page(FLEET)
    assert not app.exception
    assert "No finished run" in app.info[0].value
