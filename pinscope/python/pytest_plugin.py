"""``@pytest.mark.pinscope(pageable="64KiB")``: a test that fails where its trace exceeds a limit."""

from __future__ import annotations

from collections.abc import Generator

import pytest

import pinscope

MARKER = (
    "pinscope(pageable=SIZE, held=DURATION|PERCENT, idle=DURATION|PERCENT, error=True): trace the test, and fail it "
    "where it exceeds a limit, as `pinscope trace --fail-on` does"
)


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a marked test inside ``pinscope.trace``."""
    marker = item.get_closest_marker("pinscope")
    if marker is None:
        return (yield)
    with pinscope.trace(item.name) as part:
        outcome = yield
    trace = part.result
    if trace is None:
        pytest.skip("nothing was recorded, so no limit was checked; a line on stderr says why")
    if lines := trace.exceeded(**marker.kwargs):
        pytest.fail("\n".join([*lines, f"pinscope runs show {trace.id}"]), pytrace=False)
    return outcome
