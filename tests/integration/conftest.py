"""What tests of traces share: a stand-in for CUPTI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pinscope.probes.environment import capture_environment
from pinscope.runner import tracing
from pinscope.runner.tracing import pinned_rates
from pinscope.store.store import Store
from tests.data.fake_cupti import built, variables


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in."""
    return built(tmp_path_factory.mktemp("cupti"))


@pytest.fixture(scope="session")
def rates() -> dict[str, Any]:
    """What the shipped recordings say of pinned copies, which takes as long as a short trace."""
    with Store() as store:
        return pinned_rates(store, capture_environment())


@pytest.fixture
def _cupti(library: Path, rates: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, for what this process starts."""
    monkeypatch.setattr(tracing, "pinned_rates", lambda *_: rates)
    for name in ("FAKE_CUPTI", "PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, variables(library)[name])
