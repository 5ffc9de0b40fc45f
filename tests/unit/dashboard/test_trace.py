"""A trace on the pages: it opens and is found like any run, and cannot be started."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.dashboard.pages import TRACES
from pinscope.dashboard.widgets import plain, prose
from pinscope.probes.process import current_process
from pinscope.records.run import Progress, Run
from pinscope.report.facts import open_document
from pinscope.report.write import render
from pinscope.store.store import Store
from tests.data import synthetic_trace
from tests.unit.dashboard.conftest import Open


@pytest.fixture
def kept(store: Store) -> Run:
    run = synthetic_trace.run()
    store.import_runs(
        [(run, [synthetic_trace.program(), synthetic_trace.site(33), synthetic_trace.site(40, "pinned")])]
    )
    return run


def test_the_page_traces_shows_the_newest_with_its_lines_and_how_to_make_one(kept: Run, open_page: Open) -> None:
    app = open_page(TRACES)
    assert not app.exception
    assert app.code[0].value == "pinscope trace train.py small.yaml"
    labels = app.selectbox[0].options
    assert labels[0].startswith("train.py · 2030-01-01")
    assert "recorded on h200" in labels[-1]
    assert app.subheader[0].value.startswith(prose("Pin what train.py:33 copies, where it is made: "))
    assert any("train.py:40" in str(frame.value) for frame in app.dataframe)


def test_one_that_goes_on_says_what_ends_it_and_shows_no_share_of_an_unknown_length(
    store: Store, open_page: Open
) -> None:
    going_on = {"status": "running", "process": current_process(), "progress": Progress(message="9 events recorded")}
    run = store.add(synthetic_trace.run().model_copy(update=going_on))
    app = open_page(TRACES)
    assert not app.exception
    assert app.button(key=f"cancel-{run.id}").label == "End program"
    words = " ".join(str(element.value) for kind in (app.markdown, app.caption) for element in kind)
    assert "9 events recorded" in words
    assert "until the program ends" in words
    assert "observations so far" not in words
    assert not app.get("progress")


def test_the_timeline_of_the_recorded_trace_is_looked_at_closer_and_closer(open_page: Open) -> None:
    app = open_page(TRACES)
    assert len(app.get("plotly_chart")) == 2
    assert app.button(key="timeline-Whole").disabled

    def events() -> int:
        captions = (str(caption.value).replace("\\", "") for caption in app.caption)
        caption = next(caption for caption in captions if "calls, copies and kernels" in caption)
        return int("".join(filter(str.isdigit, caption.split("calls")[0])))

    whole = events()
    app.button(key="timeline-Closer").click().run()
    closer = events()
    assert app.get("download_button")[-1].proto.label == "This stretch for Perfetto"
    app.button(key="timeline-Whole").click().run()
    assert not app.exception
    assert whole == events() == 1204 + 16417 + 1611
    assert closer < whole


def test_what_a_trace_did_not_record_stands_once_and_before_its_figures(store: Store, open_page: Open) -> None:
    note = "The recording ended before the program did: one trace holds at most 1,000 records"
    run = synthetic_trace.run().model_copy(update={"notes": (note,)})
    rows = [synthetic_trace.program(), synthetic_trace.site(33)]
    store.import_runs([(run, rows)])
    app = open_page(TRACES)
    assert [warning.value for warning in app.warning] == [plain(note)]
    assert not [caption for caption in app.caption if plain(note) in str(caption.value)]
    report = render([open_document(run, rows)], ".md").decode()
    assert report.count("ended before the program did") == 1
    assert report.index("ended before the program did") < report.index("## Answer")


@pytest.mark.parametrize(
    ("params", "words"),
    [({"part": "training"}, "part training"), ({"what_if": ["/srv/train.py:33"]}, "with lines pinned by --what-if")],
)
@pytest.mark.usefixtures("kept")
def test_the_list_tells_a_part_and_a_second_run_from_the_whole_program(
    params: dict[str, Any], words: str, store: Store, open_page: Open
) -> None:
    other = synthetic_trace.run(**params).model_copy(update={"id": "20300101-000001-second"})
    store.import_runs([(other, [synthetic_trace.program()])])
    labels = [label for label in open_page(TRACES).selectbox[0].options if label.startswith("train.py · ")]
    assert sorted(words in label for label in labels) == [False, True]
