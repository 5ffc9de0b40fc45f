"""Adding a figure of the live view is one entry at its field, and a probe: it then appears wherever figures do.

Both are put into a copy of PinScope, which then looks at the files of a real host.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.experiments.test_adding_an_experiment import ROOT, Copy
from tests.unit.test_architecture import modules, violations

RECORD, PROBE = "pinscope/records/snapshot.py", "pinscope/live/holder.py"
HELP = "Host memory for the page tables of the process (VmPTE)."
ENTRY = f"""
    pte_bytes: Annotated[int | None, Figure(
        label="Its page tables", help="{HELP}", short="own tables", page="shown",
        metric="pinscope_holder_pte_bytes", timeline=True,
    )] = None
"""
PROBED = '    "pte_bytes": "VmPTE",\n'
HOST = ROOT / "tests" / "data" / "proc" / "h200-holders"
PID, VM_PTE_BYTES = 753, 508 * 1024

LOOK = f"""
import json, sys
from pathlib import Path

sys.path.append({str(ROOT)!r})
import pinscope
from prometheus_client import CollectorRegistry, generate_latest
from tests.data.snapshot_checks import captured
from pinscope.cli.live_view import View, whole
from pinscope.dashboard.live_board import document
from pinscope.live.sampler import History
from pinscope.live.series import Moment, TimelineRows
from pinscope.monitoring.server import SnapshotCollector
from pinscope.records.timeline import TimelineRow
from pinscope.report.snapshot_facts import holder_facts
from pinscope.report.write import snapshot_document

seen = captured(Path({str(HOST)!r}))
holder = next(holder for holder in seen.holders if holder.pid == {PID})
registry = CollectorRegistry(auto_describe=False)
registry.register(SnapshotCollector(lambda: History(latest=seen), lambda: seen.taken_at))
page = document(History(latest=seen), 300.0)
(name,) = (name for name, column in page["columns"].items() if column["label"] == "Its page tables")
print(json.dumps({{
    "package": pinscope.__file__,
    "document": snapshot_document(seen, ()),
    "terminal": [line.text for line in whole(View(seen))],
    "metrics": generate_latest(registry).decode(),
    "timeline": TimelineRows().of(seen, Moment(0, 0.0), 0.0),
    "row": TimelineRow.model_json_schema()["properties"].get("pte_bytes"),
    "facts": dict(holder_facts(holder)),
    "page": {{row["pid"]: row["cells"][name][0] for row in page["holders"].values()}},
}}))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    made = Copy(tmp_path_factory.mktemp("adding"))
    for name, before, added in (
        (RECORD, "    rss_anon_bytes: int", ENTRY),
        (PROBE, '    "locked_bytes": "VmLck"', PROBED),
    ):
        path = made.root / name
        text = path.read_text()
        assert text.count(before) == 1
        path.write_text(text.replace(before, added.lstrip("\n") + before))
    return made


@pytest.fixture(scope="module")
def looked(copy: Copy) -> dict[str, Any]:
    """What the copy makes of the captured host."""
    found: dict[str, Any] = json.loads(copy.python("-c", LOOK))
    assert Path(found["package"]).is_relative_to(copy.root)
    return found


def test_it_is_one_entry_and_one_probe_and_the_house_still_stands(copy: Copy) -> None:
    assert copy.changes() == {RECORD, PROBE}
    assert violations(modules(copy.root)) == []


def test_json_has_its_key(looked: dict[str, Any]) -> None:
    (one,) = (holder for holder in looked["document"]["holders"] if holder["pid"] == PID)
    assert one["pte_bytes"] == VM_PTE_BYTES


def test_the_terminal_has_its_column(looked: dict[str, Any]) -> None:
    heading = next(line for line in looked["terminal"] if line.startswith("pid "))
    assert heading.split()[-2:] == ["tables", "program"]
    assert any("own" in line for line in looked["terminal"])
    assert "508 KiB" in next(line for line in looked["terminal"] if line.startswith(f"{PID} "))


def test_the_exporter_has_its_metric_with_its_help(looked: dict[str, Any]) -> None:
    assert f"# HELP pinscope_holder_pte_bytes {HELP}" in looked["metrics"].splitlines()
    assert any(
        line.startswith("pinscope_holder_pte_bytes{")
        and f'pid="{PID}"' in line
        and float(line.split()[-1]) == VM_PTE_BYTES
        for line in looked["metrics"].splitlines()
    )


def test_a_timeline_keeps_it_and_says_what_it_is(looked: dict[str, Any]) -> None:
    row = next(row for row in looked["timeline"] if row["kind"] == "holder" and row["pid"] == PID)
    assert row["pte_bytes"] == VM_PTE_BYTES
    assert looked["row"]["description"] == f"Of a holder: {HELP}"


def test_all_that_is_known_of_a_holder_lists_it(looked: dict[str, Any]) -> None:
    assert looked["facts"]["Its page tables"] == "508 KiB"


def test_the_page_has_its_column(looked: dict[str, Any]) -> None:
    assert looked["page"][str(PID)] == VM_PTE_BYTES
