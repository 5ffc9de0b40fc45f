"""Which unit tests ``scripts/test --quick`` leaves out, and what those of several rooms share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinscope.lab.cgroup_sandbox import find_place

if TYPE_CHECKING:
    from pinscope.lab.hostmodel import HostModelLab

SLOW = (
    "analysis/test_check_campaign.py",
    "analysis/test_columns.py",
    "analysis/test_outliers.py",
    "cli/test_docs.py",
    "cli/test_errors.py",
    "cli/test_fleet_view.py",
    "cli/test_outcome.py",
    "cli/test_record.py",
    "cli/test_table.py",
    "dashboard",
    "experiments/bandwidth/test_charts.py",
    "experiments/bandwidth/test_experiment.py",
    "experiments/dataloader/test_steady_state.py",
    "experiments/overlap/test_charts.py",
    "experiments/page_tables/test_arithmetic.py",
    "experiments/pinning_strategy/test_neighbours.py",
    "experiments/pressure/test_bystander.py",
    "experiments/pressure/test_experiment.py",
    "experiments/pressure/test_group.py",
    "experiments/registration/test_across.py",
    "experiments/registration/test_arithmetic.py",
    "experiments/registration/test_member.py",
    "experiments/staging/test_ways.py",
    "experiments/test_adding_an_experiment.py",
    "experiments/test_registry.py",
    "experiments/test_ways_are_said_once.py",
    "experiments/topology/test_charts.py",
    "experiments/topology/test_measure.py",
    "experiments/while_serving/test_serving.py",
    "fleet/",
    "lab/test_harness.py",
    "lab/test_hostmodel.py",
    "lab/test_pinning.py",
    "lab/test_placement.py",
    "lab/test_recommended_strategy.py",
    "lab/test_shared_memory.py",
    "live/test_broken_entries.py",
    "live/test_holders.py",
    "live/test_ownership.py",
    "live/test_sampler.py",
    "live/timeline/test_charts.py",
    "manual/test_reference.py",
    "manual/test_site.py",
    "monitoring",
    "planning/test_prices.py",
    "probes/test_capabilities.py",
    "probes/test_child_lifetime.py",
    "probes/test_environment.py",
    "probes/test_proc.py",
    "probes/test_process.py",
    "probes/test_uprobes.py",
    "python/",
    "recordings",
    "report/test_comparison.py",
    "report/test_perfetto.py",
    "report/test_readable.py",
    "report/test_tables_round_trip.py",
    "runner/test_queue.py",
    "runner/test_suite.py",
    "runner/test_timeline.py",
    "runner/test_what_if.py",
    "store/test_anonymous.py",
    "store/test_attachments.py",
    "store/test_bundle.py",
    "store/test_private.py",
    "store/test_read_only.py",
    "store/test_recordings.py",
    "store/test_safe_writer.py",
    "store/test_store.py",
    "test_adding_a_figure.py",
    "test_isolation.py",
    "test_masks.py",
    "test_packaging.py",
    "tracing/test_lanes.py",
    "tracing/test_recorder.py",
    "tracing/test_redirect.py",
    "tracing/test_source_memory.py",
    "tracing/test_stretch.py",
)
"""Folders and files that start processes or pages, draw figures by the hundred, or simulate: each takes about two
seconds of a core or more."""
SAMPLED = (
    "dashboard/test_pages.py::test_a_page_stands_with_an_empty_store",
    "experiments/registration/test_member.py::test_a_process_killed_at_any_step",
    "experiments/test_registry.py",
    "experiments/test_ways_are_said_once.py",
    "recordings/test_findings.py",
    "recordings/test_partial_verdicts.py",
    "store/test_anonymous.py::test_a_recording_can_be_given_away",
    "store/test_read_only.py::test_on_a_read_only_file_system",
    "tracing/test_recorder.py::test_a_fault_of_ours",
    "tracing/test_recorder.py::test_what_a_signal_raises",
)
"""What asks the same of each recording, experiment or moment: of its parameters a plain run takes every fourth."""


_SLOW = tuple(str(Path(__file__).parent / name) for name in SLOW)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file that is left out is not imported either."""
    return True if "not slow" in config.option.markexpr and _is_slow(collection_path) else None


def _is_slow(path: Path) -> bool:
    return str(path).startswith(_SLOW)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {path: _is_slow(path) for path in {item.path for item in items}}
    number = dict.fromkeys(SAMPLED, 0)
    for item in items:
        if slow[item.path]:
            item.add_marker(pytest.mark.slow)
        node = item.nodeid.removeprefix("tests/unit/")
        if "[" in node and (name := next((name for name in SAMPLED if node.startswith(name)), None)):
            if number[name] % 4:
                item.add_marker(pytest.mark.release)
            number[name] += 1


@pytest.fixture
def lab() -> Iterator[HostModelLab]:
    """The host model."""
    from pinscope.lab.hostmodel import HostModelLab

    with HostModelLab() as lab:
        yield lab


@pytest.fixture
def place_apart() -> Iterator[tuple[str, str]]:
    """Where control groups can be made, and no other test's run removes what a killed one left there."""
    place = find_place().value
    if place is None:
        pytest.skip("no control group can be made here")
    kind, folder = place
    apart = Path(folder, f"apart-{os.getpid()}")
    apart.mkdir()
    if kind == "cgroup2":
        (apart / "cgroup.subtree_control").write_text("+memory")
    yield kind, str(apart)
    apart.rmdir()
