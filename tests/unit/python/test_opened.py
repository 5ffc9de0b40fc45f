"""A run in a program of the user's own: its cells and rows as tables of pandas."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import pinscope
from pinscope.analysis.cells import labels_of, values_of
from pinscope.analysis.statistics import Summary
from pinscope.errors import BadInput, PathExists
from pinscope.experiments.registry import measured_run
from pinscope.records.run import ExperimentRun, Quantity, Run
from pinscope.report.facts import open_document
from pinscope.report.html import CONTENT_SECURITY_POLICY
from pinscope.store.recordings import recorded_observations, recorded_runs, recording_name
from pinscope.store.store import Store
from tests.data.recorded import reading
from tests.unit.store.runs import new_run

MEASURED = list({run.experiment: run for run in recorded_runs() if isinstance(run, ExperimentRun)}.values())
"""One recording of each experiment."""
KEPT = [run for run in recorded_runs() if not isinstance(run, ExperimentRun)]
recorded = cache(pinscope.open)
"""A recording, whose rows and cells are made once."""
WORDS = {"bytes": "bytes", "seconds": "seconds", "bytes/second": "bytes_per_second", "share": "share", "ratio": "ratio"}
"""Unit → what stands for it in a name."""


@cache
def declared(run_id: str) -> Any:
    """The first cell of a recording, of the type that its experiment declares."""
    return measured_run(recorded(run_id).record, recorded(run_id).observations[:600]).cells[0]


@pytest.mark.xdist_group("readings")
@pytest.mark.parametrize("step", [4, 1])
def test_cells_have_units_in_their_names_and_the_figures_of_the_run_s_own_table(step: int) -> None:
    for run in MEASURED[::step]:
        opened, kind = recorded(run.id), type(declared(run.id))
        columns = list(opened.cells.columns)
        assert columns[: len(labels_of(kind))] == list(labels_of(kind))
        assert set(values_of(kind)) <= set(columns)
        assert [name for name, value in values_of(kind).items() if WORDS.get(value.unit, "") not in name] == []
        if run.experiment == "scatter":
            continue
        titles = {value.title: name for name, value in values_of(kind).items()}
        table = max(reading(recording_name(run)).tables, key=lambda table: len(titles.keys() & set(table.columns)))
        shared = [title for title in titles if title in table.columns]
        read = pd.DataFrame(table.rows, columns=table.columns)[shared].map(plain)
        made = opened.cells[[titles[title] for title in shared]].map(plain)
        assert len(shared) > 1
        assert set(map(tuple, read.to_numpy())) <= set(map(tuple, made.to_numpy()))


def plain(value: Any) -> str:
    return "n/a" if pd.isna(value) else f"{float(value):.9g}" if isinstance(value, int | float) else str(value)


def medians(run: Run) -> dict[str, tuple[list[str], pd.Series[Any]]]:
    """Of values that are the median of a field of the rows: name → labels, and what pandas makes of the rows."""
    first = declared(run.id)
    kind = type(first)
    rows = pd.DataFrame(map(dict, recorded_observations(run.id)))
    rows = rows[~rows["warmup"]]
    labels: Sequence[str] = [name for name in labels_of(kind) if name in kind.__dataclass_fields__]
    fields = {name: value.row or name for name, value in values_of(kind).items()}
    rows = rows[rows["kind"] == "move"] if run.experiment == "scatter" else rows
    if run.experiment == "bandwidth":  # copies both ways count while both copy, also in older runs
        both = (rows["direction"] == "bidirectional") & (rows["one_more_copies"] == 1) & (rows["memory"] != "pageable")
        seconds = 2 / (1 / rows["h2d_seconds"] + 1 / rows["d2h_seconds"])
        rows = rows.assign(one_more_seconds=rows["one_more_seconds"].where(~both, seconds))
    if not set(labels) <= set(rows.columns):
        return {}
    groups = rows.groupby(list(labels), dropna=False, sort=False)
    return {
        name: (list(labels), groups[field].median().dropna())
        for name, field in fields.items()
        if isinstance(getattr(first, name), Summary) and field in rows.columns
    }


@pytest.mark.xdist_group("readings")
def test_medians_are_those_that_pandas_makes_of_the_rows() -> None:
    for experiment, at_least in [
        ("access", 2),
        ("bandwidth", 4),
        ("staging", 1),
        ("pinning_strategy", 1),
        ("scatter", 1),
    ]:
        run = next(run for run in MEASURED if run.experiment == experiment)
        computed, cells = medians(run), recorded(run.id).cells
        assert len(computed) >= at_least
        for name, (labels, expected) in computed.items():
            made = cells.set_index(labels)[name].dropna()
            assert by_labels(made) == pytest.approx(by_labels(expected))


def by_labels(values: pd.Series[Any]) -> dict[tuple[str, ...], float]:
    return {tuple(map(plain, labels)): value for labels, value in values.items()}  # type: ignore[call-overload]


@pytest.mark.parametrize("run", KEPT, ids=recording_name)
def test_rows_are_all_observations_and_cells_are_the_whole_and_its_lines_or_holders(run: Run) -> None:
    opened = pinscope.open(run.id)
    assert len(opened.rows) == run.observations
    assert set(opened.rows.columns) == {name for row in recorded_observations(run.id) for name in row}
    name, value = {"trace": ("text", "seconds"), "timeline": ("name", "peak_bytes")}[run.kind]
    assert opened.cells[name].isna().tolist() == [True, *[False] * (len(opened.cells) - 1)]
    assert len(opened.cells) > 1
    assert (opened.cells[value] > 0).all()


H200 = "20261122-080338"
"""The recorded run of bandwidth."""
SERVING = "20261123-034919"
"""A smaller one."""


def test_figures_are_found_by_key_and_are_numbers_with_an_interval() -> None:
    figure = pinscope.open(H200).figures["pinned.h2d.rate"]
    assert float(figure) == figure.value
    assert (figure.low, figure.high) == pytest.approx(
        (figure.value * (1 - figure.spread), figure.value * 1.0293), rel=1e-3
    )
    assert (str(figure), repr(figure)) == ("55.0 GB/s ± 2.9 %", "<Pinned to GPU, 1 GiB: 55.0 GB/s ± 2.9 %>")


def test_a_figure_that_is_not_known_is_no_number_and_says_why() -> None:
    unknown = Quantity(name="Rate", value=None, unit="bytes/second", reason="its repeats vary too much")
    assert (unknown.low, unknown.high, str(unknown)) == (None, None, "n/a")
    with pytest.raises(ValueError, match="Rate is not known: its repeats vary too much"):
        float(unknown)


def test_findings_tables_and_charts_are_those_of_the_report() -> None:
    run = pinscope.open(SERVING)
    document = open_document(run.record, run.observations)
    assert run.verdict == document.reading.verdict == run.record.verdict
    assert sorted(finding.rule for finding in run.findings) == sorted(f.rule for f in document.reading.findings)
    assert list(run.charts) == [chart.key for chart in document.charts]
    table = run.tables["Every combination"]
    assert {"chunk (bytes)", "total (seconds)", "rate (bytes/second)"} <= set(table.columns)
    assert len(table) == len(run.cells)


def test_a_notebook_shows_the_report_in_a_frame_that_reaches_nothing(tmp_path: Path) -> None:
    run = pinscope.open(SERVING)
    shown = run._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert re.findall(r' sandbox="(.*?)"', shown) == ["allow-scripts allow-downloads"]
    page = unescape(re.fullmatch(r'<iframe srcdoc="(.*?)" title.*', shown, re.S)[1])  # type: ignore[index]
    assert CONTENT_SECURITY_POLICY in unescape(page)
    assert str(run.verdict) in unescape(page)
    assert "application/gzip" not in page, "the observations stay out"
    assert run.save(tmp_path / "run.md").read_text().startswith(run._repr_markdown_().rstrip())


def test_a_run_is_saved_as_a_bundle_and_opened_from_it_as_from_the_database(tmp_path: Path) -> None:
    run, file = pinscope.open("20261123-225633"), tmp_path / "trace.pinscope"
    run.save(file)
    again = pinscope.open(file)
    assert again.record == run.record.model_copy(update={"recording": False})
    assert again.observations == run.observations
    assert list(again.charts) == list(run.charts), "also those of its attachments"
    assert [opened.id for opened in pinscope.runs("trace", file=file)] == [run.id]
    assert list(pinscope.runs("bandwidth", file=file)) == []
    with pytest.raises(PathExists):
        run.save(file)
    with pytest.raises(BadInput, match="the suffix tells the format"):
        run.save(tmp_path / "run.docx")


def test_runs_are_chosen_named_and_the_latest_taken() -> None:
    with Store() as store:
        for number in range(3):
            store.add(new_run(f"run-{number}", status="done"))
    edited = pinscope.open("@-1").edit(name="driver 575", tags=["before"], baseline=True)
    assert (edited.id, edited.name, edited.record.baseline) == ("run-1", "driver 575", True)
    assert pinscope.runs(tag="before").latest.id == pinscope.open("driver 575").id == "run-1"
    assert [run.id for run in pinscope.runs("bandwidth")[:2]] == ["run-2", "run-1"]
    assert len(pinscope.runs("bandwidth", recordings=True)) == 5
    assert repr(edited).startswith("<pinscope bandwidth, run-1, ★ driver 575 #before, host model (no GPU), done: ")
    with pytest.raises(LookupError, match="there is no such run"):
        _ = pinscope.runs(tag="after").latest
    with pytest.raises(BadInput, match="is a recording that ships with PinScope"):
        pinscope.open(H200).edit(name="mine")
    with pytest.raises(BadInput, match="a tag has 1 to 40"):
        edited.edit(tags=["a b"])


def test_a_trace_says_which_limits_it_exceeds_and_by_which_line() -> None:
    trace = pinscope.open("20261123-225633")
    (line,) = trace.exceeded(pageable="64KiB", idle="90%")
    assert line.startswith("pageable=64KiB: 2.34 GiB were copied from or to pageable memory (loader_loop.py:33")
    assert trace.exceeded(pageable="3GiB") == []
    with pytest.raises(BadInput, match="the limits are error; pageable"):
        trace.exceeded(size="1GiB")
    with pytest.raises(BadInput, match=r"limits are those of a trace, and .* is of kind experiment"):
        pinscope.open(H200).exceeded(pageable="1GiB")
