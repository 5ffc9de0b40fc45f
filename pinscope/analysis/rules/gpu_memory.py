"""How much GPU memory may go to page tables, or to nobody, before it is worth a word?"""

from __future__ import annotations

from pinscope.records.finding import Severity

MIB, GIB = 2**20, 2**30

TABLES_WARNING, TABLES_CRITICAL = 0.01, 0.1
"""Share of a GPU's memory that page tables take."""
UNATTRIBUTED_NOTE, UNATTRIBUTED_WARNING = 512 * MIB, 2 * GIB
"""GPU memory that neither processes nor page tables explain. With ten CUDA processes an H200 showed 61 MiB of it; a
context that was left behind takes about 520 MiB there."""


def page_table_severity(share: float) -> Severity | None:
    """How grave it is that page tables take this share of a GPU's memory."""
    if share < TABLES_WARNING:
        return None
    return "critical" if share >= TABLES_CRITICAL else "warning"


def unattributed_severity(unexplained_bytes: int, *, sure: bool) -> Severity | None:
    """How grave it is that nothing explains so much GPU memory.

    Args:
        unexplained_bytes: used by no process, page table or context.
        sure: no process was hidden that may have it.
    """
    if unexplained_bytes < UNATTRIBUTED_NOTE:
        return None
    return "warning" if sure and unexplained_bytes >= UNATTRIBUTED_WARNING else "note"
