"""What a run's end says to do next."""

from __future__ import annotations

import pytest

from pinscope.cli.outcome import print_outcome
from pinscope.report.facts import open_document
from tests.data.synthetic import run


@pytest.mark.parametrize(("observations", "said"), [(0, "measured nothing."), (1, "a report: pinscope report")])
def test_a_report_is_recommended_on_what_was_measured_only(
    observations: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run("bandwidth", "host", status="interrupted", observations=observations)
    print_outcome(open_document(ended, []))
    last = capsys.readouterr().out.splitlines()[-1]
    assert said in last
    assert ("report" in last) == (observations > 0)
