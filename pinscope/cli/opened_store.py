"""The database as the commands that only read open it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pinscope.cli.terminal import complain

if TYPE_CHECKING:
    from pinscope.store.store import Store


@contextmanager
def store_to_read() -> Iterator[Store]:
    """The store, with runs marked whose child is gone. Says in one line if nothing can be stored in it."""
    from pinscope.runner.jobs import reconcile
    from pinscope.store.store import Store

    with Store() as store:
        reconcile(store)
        if store.refusal:
            complain(f"nothing can be stored in {store.name}: {store.refusal}")
        yield store
