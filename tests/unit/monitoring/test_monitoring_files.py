"""The dashboard and the rules that ship: well-formed, and about metrics that exist."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pinscope.analysis import rules
from pinscope.cli.live import ALERTS, DASHBOARD
from pinscope.cli.main import main
from tests.unit.monitoring.test_metrics import names

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "pinscope" / "monitoring"
RULES = (FOLDER / ALERTS).read_text()
BOARD: dict[str, Any] = json.loads((FOLDER / DASHBOARD).read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
UNITS = {"bytes", "Bps", "percentunit", "s", "short", "bool_yes_no"}


def expressions() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def test_every_metric_of_the_dashboard_exists() -> None:
    queries = [
        *expressions(),
        *(variable["query"]["query"] for variable in BOARD["templating"]["list"] if variable["type"] == "query"),
    ]
    used = set(re.findall(r"pinscope_\w+", " ".join(queries)))
    assert used <= names()
    assert len(used) > 20


def test_every_metric_of_the_rules_exists_and_every_alert_has_a_test() -> None:
    assert set(re.findall(r"pinscope_\w+", RULES)) <= names()
    alerts = re.findall(r"- alert: (\w+)", RULES)
    tested = (ROOT / "tests" / "data" / "alerts" / "alerts_test.yaml").read_text()
    for alert in alerts:
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts", tested), alert


def test_rules_have_the_thresholds_of_the_findings() -> None:
    thresholds = {
        "PinnedMemoryHigh": rules.SAFE_SHARE,
        "PinnedMemoryVeryHigh": rules.END_SHARE,
        "HolderNearControlGroupLimit": rules.GROUP_WARNING,
        "ContainerNearControlGroupLimit": rules.GROUP_WARNING,
        "PageTablesTakeGpuMemory": rules.TABLES_WARNING,
        "GpuLinkSlow": rules.BUSY_SHARE,
    }
    for alert, threshold in thresholds.items():
        rule = re.search(rf"- alert: {alert}\n(.*?)\n        labels:", RULES, re.S)
        assert rule is not None
        assert re.search(rf"[<>] {threshold}\n", rule[1]), alert
    assert RULES.count(f"> {rules.MUCH_OF_GROUP} * ") == 3
    assert RULES.count(f">= {rules.RAM_NOTE}\n") == 2
    assert RULES.count(f"< {rules.SCARCE_SHARE}\n") == 1
    assert rules.UNATTRIBUTED_WARNING == 2 * 2**30
    assert rules.ALERT_BYTES == 2**30
    for limit in (
        f"offset {rules.ALERT_HOURS}h > 2^30",
        f"offset {rules.ALERT_HOURS * 60 // rules.LEAK_PARTS}m >= {rules.LEAK_PART_SHARE} * (",
        f"[{rules.ALERT_HOURS}h]) >= {rules.LEAK_RISES}\n",
    ):
        assert RULES.count(limit) == 2, limit
    assert "> 2 * 2^30" in RULES


def test_panels_that_promise_the_sum_of_the_others_show_it() -> None:
    promising = [panel for panel in PANELS if "are summed as" in panel["description"]]
    assert promising
    assert not any("topk" in target["expr"] for panel in promising for target in panel["targets"])


def test_panels_have_sources_units_descriptions_and_places_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["description"], panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            assert 'instance=~"$instance"' in target["expr"]
    for panel, other in itertools.combinations((panel["gridPos"] for panel in PANELS), 2):
        apart = panel["x"] + panel["w"] <= other["x"] or other["x"] + other["w"] <= panel["x"]
        assert apart or panel["y"] + panel["h"] <= other["y"] or other["y"] + other["h"] <= panel["y"], (panel, other)
    assert max(panel["gridPos"]["x"] + panel["gridPos"]["w"] for panel in PANELS) <= 24
    assert [variable["name"] for variable in BOARD["templating"]["list"]] == ["datasource", "instance"]


@pytest.mark.parametrize(("option", "name"), [("--print-rules", ALERTS), ("--print-dashboard", DASHBOARD)])
def test_the_command_prints_what_ships(option: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exporter", option]) == 0
    assert capsys.readouterr().out == (FOLDER / name).read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--print-rules", "--print-dashboard"], 2, "exclude each other"),
        (["--interval", "0"], 2, "'--interval': Input should be greater than or equal to 0.1"),
        (["--address", "192.0.2.1", "--no-gpu"], 3, "cannot listen on port 10435 of 192.0.2.1"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    arguments: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["exporter", *arguments]) == code
    out, errors = capsys.readouterr()
    assert out == ""
    assert len(errors.splitlines()) == 1
    assert complaint in errors
