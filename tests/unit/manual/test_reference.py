"""The reference says all of it: every option, every key of real documents, every metric, each with its meaning."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import pinscope
from pinscope.cli.main import command_line, main
from pinscope.experiments.registry import EXPERIMENTS, method, readers
from pinscope.live.findings import snapshot_findings
from pinscope.manual.reference import (
    command_reference,
    commands,
    documented_records,
    keys_of,
    metrics,
    metrics_reference,
    python_reference,
)
from pinscope.manual.site import Site
from pinscope.report.write import snapshot_document
from pinscope.store.recordings import recorded_observations, recorded_runs
from pinscope.store.store import Imported
from tests.data.synthetic_live import full

BY_NAME = ("missing", "estimates", "bounds", "params", "packages")
"""Keys whose value is an object of names that are no keys of ours: fields, parameters, packages."""


SMALL = min(recorded_runs(), key=lambda run: run.observations).id


@pytest.fixture(scope="module")
def reference() -> str:
    return Site(str).markdown("reference/json")


def keys_in(document: Any) -> Iterator[str]:
    """Every key at any depth."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield key
            yield from () if key in BY_NAME else keys_in(value)
    elif isinstance(document, list):
        for item in document:
            yield from keys_in(item)


def undocumented(document: Any, reference: str) -> list[str]:
    return sorted({key for key in keys_in(document) if f"| `{key}` |" not in reference})


def test_every_option_and_argument_of_every_command_is_in_the_reference_and_says_what_it_does() -> None:
    root = command_line()
    reference = command_reference(root)
    by_name = dict(commands(root))
    assert "pinscope runs list" in by_name
    for name, command in by_name.items():
        section = reference.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            assert parameter.help, f"{name} {parameter.name}"
            for option in (*parameter.opts, *parameter.secondary_opts):
                written = option if option.startswith("-") else parameter.metavar
                assert re.search(rf"^  .*(?<!\S){re.escape(written)}(?![\w-])", section, re.MULTILINE), (
                    f"{name} {option}"
                )


def test_every_name_of_python_is_in_the_reference_with_all_that_it_takes_or_has() -> None:
    reference = python_reference()
    for name in set(pinscope.__all__) - {"__version__"}:
        offered = getattr(pinscope, name)
        head = rf"^## pinscope\.{name}(?:\(\))?\n\n```text\n"
        section = re.search(rf"{head}(.*?)^```", reference, re.MULTILINE | re.DOTALL)
        assert section, name
        if inspect.isclass(offered):
            members = {member for member in dir(offered) if not member.startswith("_")}
            assert members <= set(re.findall(rf"^{name}\.(\w+).*\n  \S", section[1], re.MULTILINE)) | {"count", "index"}
        elif inspect.isfunction(offered):
            for parameter in inspect.signature(offered).parameters:
                assert f"{parameter}: " in section[1], f"{name}: {parameter}"


def test_every_key_that_a_command_prints_is_in_the_reference(
    reference: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in [("doctor",), ("plan", "--pinned", "1GiB"), ("runs", "list"), ("docs",), ("runs", "show", SMALL)]:
        assert main([*command, "--json"]) == 0
        assert undocumented(json.loads(capsys.readouterr().out), reference) == []


def test_every_key_of_every_recorded_run_is_in_the_reference(reference: str) -> None:
    for run in recorded_runs():
        keys = {key for row in recorded_observations(run.id) for key in row}
        assert undocumented([run.model_dump(mode="json"), dict.fromkeys(keys)], reference) == []


def test_every_key_of_a_snapshot_is_in_the_reference(tmp_path: Path, reference: str) -> None:
    seen = full(tmp_path)
    assert undocumented(json.loads(json.dumps(snapshot_document(seen, snapshot_findings(seen)))), reference) == []
    assert undocumented(asdict(Imported([], [], [])), reference) == []


def test_every_key_says_what_it_means_and_has_a_type() -> None:
    for record in (*documented_records(), *(reader.kind.Observation for reader in readers())):
        for key in keys_of(record):
            assert key.meaning, f"{record.__name__}: {key.name} has no docstring"
            assert "<class" not in key.type, f"{record.__name__}: {key.name}: {key.type}"


def test_units_follow_from_the_keys(reference: str) -> None:
    assert "| `rx_bytes_per_second` | number or null | bytes/second |" in reference
    assert "| `host_alloc_bytes` | integer or null | bytes |" in reference
    assert "| `busy_share` | number or null | share, 0 to 1 |" in reference


def test_every_metric_is_in_the_reference_with_type_and_meaning() -> None:
    reference = metrics_reference()
    for metric in metrics():
        assert f"| `{metric.name}` | {metric.type} |" in reference
        assert metric.help
    named = {metric.name for metric in metrics()}
    assert {"pinscope_up", "pinscope_probe_lost_events_total", "pinscope_gpu_memory_unattributed_bytes"} <= named


def test_every_parameter_of_an_experiment_is_on_its_page() -> None:
    site = Site(str)
    for entry in EXPERIMENTS:
        page = site.markdown(f"experiments/{entry.experiment.name}")
        assert entry.experiment.question in page
        assert method(entry.experiment) in page
        for name in entry.experiment.Params.model_fields:
            assert f"| `{name}` |" in page
