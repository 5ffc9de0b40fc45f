"""What tests of traces and of the probe share: stand-ins for CUPTI, the driver and PyTorch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pinscope.probes.environment import capture_environment
from pinscope.runner import attach, tracing
from pinscope.runner.traced_program import ask_cupti
from pinscope.runner.tracing import pinned_rates
from pinscope.store.store import Store
from tests.data.fake_cupti import variables
from tests.data.fake_driver import build
from tests.data.stand_ins import PACKAGES


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for the driver's library."""
    return build(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def rates() -> dict[str, Any]:
    """What the shipped recordings say of pinned copies, which takes as long as a short trace."""
    with Store() as store:
        return pinned_rates(store, capture_environment())


@cache
def answered(cuda: str | None, library: str | None, path: Sequence[str], environment: Set[str]) -> Mapping[str, Any]:
    """What the stand-in answers, which takes an interpreter: asked once, and again where an answer may be another."""
    del environment
    return ask_cupti(cuda, library, path)


def ask(cuda: str | None, library: str | None = None, path: Sequence[str] = ()) -> Mapping[str, Any]:
    relevant = {f"{name}={value}" for name, value in os.environ.items() if re.match("FAKE|CUDA|LD|PYTHON", name)}
    return answered(cuda, library, tuple(path), frozenset(relevant))


@pytest.fixture
def _cupti(library: Path, rates: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, for what this process starts."""
    monkeypatch.setattr(tracing, "pinned_rates", lambda *_: rates)
    for module in (attach, tracing):
        monkeypatch.setattr(module, "ask_cupti", ask)
    for name in ("FAKE_CUPTI", "PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, variables(library)[name])


@pytest.fixture
def _packages(_cupti: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch and CuPy are there, too."""
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{PACKAGES}")
