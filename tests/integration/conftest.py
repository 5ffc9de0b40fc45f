"""What tests of traces share: a stand-in for CUPTI."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.fake_cupti import built, variables


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in."""
    return built(tmp_path_factory.mktemp("cupti"))


@pytest.fixture
def _cupti(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, for what this process starts."""
    for name in ("FAKE_CUPTI", "PYTHONPATH"):
        monkeypatch.setenv(name, variables(library)[name])
