"""What a run's end says to do next, and that of ``pinscope run all`` of each experiment."""

from __future__ import annotations

import pytest

from pinscope.cli.outcome import print_outcome
from pinscope.cli.run import _summary
from pinscope.report.facts import open_document
from tests.data import synthetic


@pytest.mark.parametrize(("observations", "said"), [(0, "measured nothing."), (1, "a report: pinscope report")])
def test_a_report_is_recommended_on_what_was_measured_only(
    observations: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = synthetic.run("bandwidth", "host", status="interrupted", observations=observations)
    print_outcome(open_document(ended, []))
    last = capsys.readouterr().out.splitlines()[-1]
    assert said in last
    assert ("report" in last) == (observations > 0)


def test_each_experiment_has_its_verdict_and_the_figure_that_decides_or_why_there_is_none() -> None:
    title, verdict, figure = _summary(synthetic.document("bandwidth"))
    assert (title, verdict.split()[0]) == ("Bandwidth", "Pin")
    assert figure.startswith("Pinned to GPU, ")
    failed = synthetic.document_of("bandwidth", [], status="failed", error="no GPU answered")
    assert _summary(failed) == ("Bandwidth", "no GPU answered", "")
