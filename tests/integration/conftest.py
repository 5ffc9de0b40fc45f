"""What tests of traces share: a stand-in for CUPTI."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pinscope.probes.environment import capture_environment
from pinscope.runner import tracing
from pinscope.runner.traced_program import ask_cupti
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


@cache
def asked(library: str) -> Mapping[str, Any]:
    """What the stand-in answers, which takes an interpreter; ``library``: where the environment says that it is."""
    del library
    return ask_cupti(None)


@pytest.fixture
def _cupti(library: Path, rates: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, for what this process starts."""
    monkeypatch.setattr(tracing, "pinned_rates", lambda *_: rates)
    monkeypatch.setattr(tracing, "ask_cupti", lambda *_: asked(os.environ["FAKE_CUPTI"]))
    for name in ("FAKE_CUPTI", "PYTHONPATH"):
        monkeypatch.setenv(name, variables(library)[name])


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, which is the driver, too."""
    return built(tmp_path_factory.mktemp("driver"), "-Wl,-soname,libcuda.so.1")
