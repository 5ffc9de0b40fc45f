"""The store's tests here use SQLite; tests/integration/test_store_postgresql.py runs them on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def url(tmp_path: Path) -> str:
    """An empty database."""
    return f"sqlite:///{tmp_path / 'store.db'}"
