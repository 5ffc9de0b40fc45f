"""Hosts to take snapshots of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data.synthetic_host import SyntheticHost

GIB = 2**30


@pytest.fixture
def host(tmp_path: Path) -> SyntheticHost:
    """A host with 25 GiB pinned and no process yet."""
    return SyntheticHost(tmp_path, pinned_bytes=25 * GIB)
