"""A run that measures nothing for a while: a test that watches it depends on no one's speed, nor takes a processor."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import psutil
from sqlalchemy import make_url

from pinscope.store.store import Store

_SECONDS = 60.0
"""A stopped process that is in the middle of writing goes on and is stopped again, for so long."""


@contextmanager
def standing_still(store: Store, run_id: str) -> Iterator[None]:
    """The run's process is stopped while the block runs. It keeps its turn and holds no lock of the database."""
    process = store.run(run_id).process
    assert process is not None
    try:
        deadline = time.monotonic() + _SECONDS
        while not _is_stopped(process.pid, store):
            assert time.monotonic() < deadline, "it always writes"
            time.sleep(0.05)
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def _is_stopped(pid: int, store: Store) -> bool:
    """Stop it where it does not write; else let it go on."""
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    free = _is_free(store)
    if not free:
        os.kill(pid, signal.SIGCONT)
    return free


def _is_free(store: Store) -> bool:
    """Whether the database can be written at once."""
    database = make_url(store.url).database
    assert database is not None
    with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        return True
