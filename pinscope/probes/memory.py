"""How much memory is pinned on this host, and what the kernel's page tables of this process take."""

from __future__ import annotations

import os

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc

_ACQUIRED, _RELEASED = "nr_foll_pin_acquired", "nr_foll_pin_released"


def pinned_bytes(proc: Proc = HERE) -> Answer[int]:
    """Bytes pinned for device access on this host now: by CUDA, RDMA, VFIO, io_uring …

    Pages pinned (FOLL_PIN) since boot less those released, from /proc/vmstat (Linux 5.7 and later). A page pinned
    twice counts twice. The kernel counts per processor and sums up now and then: some tens of pages may be missing.
    """
    vmstat = proc.fields("/proc/vmstat")
    acquired, released = vmstat.amount(_ACQUIRED), vmstat.amount(_RELEASED)
    if acquired.value is None or released.value is None:
        return Answer.missing(acquired.reason or released.reason or "")
    return Answer(max(acquired.value - released.value, 0) * os.sysconf("SC_PAGE_SIZE"))


def page_table_bytes(proc: Proc = HERE) -> Answer[int]:
    """Bytes of the kernel's page tables that map this process's memory (VmPTE)."""
    return proc.fields("/proc/self/status").amount("VmPTE")
