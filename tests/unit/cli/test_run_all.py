"""``pinscope run all``: at its end one table tells what each experiment came to."""

from __future__ import annotations

from pinscope.cli.run import _summary
from tests.data import synthetic


def test_each_experiment_has_its_verdict_and_the_figure_that_decides_or_why_there_is_none() -> None:
    title, verdict, figure = _summary(synthetic.document("bandwidth"))
    assert (title, verdict.split()[0]) == ("Bandwidth", "Pin")
    assert figure.startswith("Pinned to GPU, ")
    failed = synthetic.document_of("bandwidth", [], status="failed", error="no GPU answered")
    assert _summary(failed) == ("Bandwidth", "no GPU answered", "")
