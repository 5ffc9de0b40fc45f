"""Errors on a link while a run measured: counted between before and after, told, and absent where nothing rose."""

from __future__ import annotations

import pytest

from pinscope.analysis.models import link_error_findings, rises
from pinscope.experiments.registry import read_run
from pinscope.records.environment import Device, LinkErrors
from tests.data import synthetic

NONE = LinkErrors(replays=3, correctable=0, nonfatal=0, fatal=0)


def gpu(before: LinkErrors | None, after: LinkErrors | None) -> Device:
    device = synthetic.document("bandwidth").run.environment.devices[0]
    return device.model_copy(update={"link_errors": before, "link_errors_after": after})


@pytest.mark.parametrize(
    ("before", "after", "risen"),
    [
        (NONE, NONE, {}),
        (NONE, NONE.model_copy(update={"replays": 5}), {"replays": 2}),
        (NONE, NONE.model_copy(update={"correctable": 1, "fatal": 2}), {"correctable": 1, "fatal": 2}),
        (NONE, NONE.model_copy(update={"replays": 1}), {}),  # the driver was loaded anew
        (NONE, NONE.model_copy(update={"replays": None, "missing": {"replays": "Not Supported"}}), {}),
        (NONE, None, {}),
        (None, NONE, {}),
    ],
)
def test_only_what_rose_is_counted(before: LinkErrors | None, after: LinkErrors | None, risen: dict[str, int]) -> None:
    assert rises(gpu(before, after)) == risen


@pytest.mark.parametrize(
    ("kind", "severity"), [("replays", "note"), ("correctable", "note"), ("nonfatal", "warning"), ("fatal", "warning")]
)
def test_a_run_whose_link_made_errors_says_so_with_both_counts(kind: str, severity: str) -> None:
    document = synthetic.document("bandwidth")
    before = NONE.model_copy(update={kind: 7})
    device = gpu(before, before.model_copy(update={kind: 1207}))
    environment = document.run.environment.model_copy(update={"devices": (device,)})
    (finding,) = link_error_findings(environment)
    assert finding.severity == severity
    assert finding.title.startswith("GPU 0: 1,200 ")
    assert [quantity.value for quantity in finding.evidence] == [7, 1207]
    run = document.run.model_copy(update={"environment": environment})
    assert read_run(run, document.rows).findings[-1] == finding


def test_a_run_without_errors_has_no_such_finding() -> None:
    document = synthetic.document("bandwidth")
    environment = document.run.environment.model_copy(update={"devices": (gpu(NONE, NONE),)})
    run = document.run.model_copy(update={"environment": environment})
    assert "link-errors" not in {finding.rule for finding in read_run(run, document.rows).findings}
