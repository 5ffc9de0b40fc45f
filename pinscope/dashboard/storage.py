"""What a page says of the place where runs are kept, when something is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pinscope.dashboard.plain import plain, sentence
from pinscope.store.damage import DamagedRun
from pinscope.store.store import Store


def storage_note(store: Store) -> None:
    """Say that nothing can be stored, if the last reading found it so."""
    if store.refusal:
        st.warning(
            plain(sentence(f"{store.name}: {store.refusal}")),
            title="Nothing can be stored here", icon=":material/lock:",
        )  # fmt: skip


def damaged_list(damaged: Sequence[DamagedRun]) -> None:
    """One line for each run that cannot be read."""
    for run in damaged:
        st.error(plain(sentence(str(run))), icon=":material/broken_image:")
