"""What all pages and all browser tabs share: the open store, and what is known of this machine."""

from __future__ import annotations

import os

import streamlit as st

from pinscope.probes.environment import capture_environment
from pinscope.records.environment import Environment
from pinscope.runner.jobs import reconcile
from pinscope.store.store import Store


def store() -> Store:
    """The store, opened once per server; runs whose child is gone are marked then.

    Raises:
        StoreFailed: the database cannot be used; the next call tries again.
    """
    return _open_store(os.environ.get("PINSCOPE_DATABASE"))


@st.cache_resource(show_spinner=False, on_release=Store.close)
def _open_store(address: str | None) -> Store:
    opened = Store(address)
    reconcile(opened)
    return opened


@st.cache_resource(show_spinner="Looking at this machine …", ttl=30)
def environment() -> Environment:
    """This machine as it was up to half a minute ago, for display and for the budget line."""
    return capture_environment()
