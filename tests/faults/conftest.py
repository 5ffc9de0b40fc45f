"""Each test of this folder is a campaign; at the end its attempts and failures are printed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.terminal import TerminalReporter

from tests.faults.campaign import Campaign
from tests.faults.forked import forks

__all__ = ["forks"]

_PROPERTY = "campaign"
"""What a campaign found, in the report of its test: that comes back from a worker process too."""


@pytest.fixture
def campaign(request: pytest.FixtureRequest) -> Iterator[Campaign]:
    """Named as the test's function; the test fails at its end if an attempt failed."""
    one = Campaign(request.node.originalname.removeprefix("test_"))
    yield one
    request.node.user_properties.append((_PROPERTY, {**vars(one), "counted": dict(one.counted)}))
    if one.failures:
        shown = "\n".join(one.failures[:20])
        pytest.fail(f"{len(one.failures)} of {sum(one.counted.values())} attempts failed:\n{shown}", pytrace=False)


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    ended = [one for some in terminalreporter.stats.values() for one in some if getattr(one, "when", "") == "teardown"]
    campaigns = [Campaign(**found) for one in ended for name, found in one.user_properties if name == _PROPERTY]
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
