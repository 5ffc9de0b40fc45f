"""Which unit tests ``scripts/test --quick`` leaves out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.lab.cgroup_sandbox import find_place

SLOW = (
    "analysis/test_link_errors.py",
    "dashboard",
    "experiments/bandwidth/test_charts.py",
    "experiments/bandwidth/test_experiment.py",
    "experiments/pressure/test_group.py",
    "experiments/dataloader/test_steady_state.py",
    "experiments/overlap/test_charts.py",
    "experiments/pinning_strategy/test_neighbours.py",
    "experiments/pressure/test_experiment.py",
    "experiments/registration/test_across.py",
    "experiments/registration/test_arithmetic.py",
    "experiments/registration/test_member.py",
    "experiments/test_adding_an_experiment.py",
    "experiments/test_registry.py",
    "experiments/topology/test_charts.py",
    "experiments/topology/test_measure.py",
    "lab/test_coverage.py",
    "lab/test_hostmodel.py",
    "lab/test_pinned_array.py",
    "lab/test_pinning.py",
    "lab/test_placement.py",
    "lab/test_recommended_strategy.py",
    "live/test_broken_entries.py",
    "live/test_holders.py",
    "live/test_ownership.py",
    "live/test_sampler.py",
    "live/timeline/test_charts.py",
    "planning/test_prices.py",
    "probes/test_environment.py",
    "probes/test_child_lifetime.py",
    "probes/test_proc.py",
    "probes/test_process.py",
    "recordings/test_headlines.py",
    "report/test_code.py",
    "report/test_readable.py",
    "report/test_tables_round_trip.py",
    "runner/test_recording.py",
    "store/test_anonymous.py",
    "store/test_attachments.py",
    "store/test_bundle.py",
    "store/test_read_only.py",
    "store/test_store.py",
    "test_adding_a_figure.py",
)
"""Folders and files that start processes or pages, draw figures by the hundred, or simulate: each takes about two
seconds of a core or more."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    files = {path for name in SLOW for path in ((here / name).rglob("*.py") if "." not in name else (here / name,))}
    for item in items:
        if item.path in files:
            item.add_marker(pytest.mark.slow)


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
