"""Each test of this folder is a campaign; at the end its attempts and failures are printed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.forked import forks

__all__ = ["forks"]

_CAMPAIGNS = pytest.StashKey[list[Campaign]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CAMPAIGNS] = []


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Iterator[Campaign]:
    """Named as the test's function; the test fails at its end if an attempt failed."""
    one = Campaign(request.node.originalname.removeprefix("test_"))
    request.config.stash[_CAMPAIGNS].append(one)
    yield one
    if one.failures:
        shown = "\n".join(one.failures[:20])
        pytest.fail(f"{len(one.failures)} of {sum(one.counted.values())} attempts failed:\n{shown}", pytrace=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    campaigns = config.stash[_CAMPAIGNS]
    if not campaigns:
        return
    terminalreporter.section("attempts at breaking PinScope")
    total: Counter[str] = Counter()
    for one in campaigns:
        total.update(one.counted)
        counted = ", ".join(f"{count} {kind}" for kind, count in one.counted.items())
        terminalreporter.line(f"{one.name}: {counted or 'none'}; {len(one.failures)} failed")
        for line in one.measured:
            terminalreporter.line(f"    {line}")
    failures = sum(len(one.failures) for one in campaigns)
    terminalreporter.line(f"in all: {', '.join(f'{n} {kind}' for kind, n in total.items())}; {failures} failed")
    if path := os.environ.get("PINSCOPE_FAULTS_REPORT"):
        Path(path).write_text(json.dumps({"attempts": total, "failures": failures}, indent=2) + "\n")
