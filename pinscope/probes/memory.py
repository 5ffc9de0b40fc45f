"""How much memory is pinned on this host, and what the kernel's page tables of this process take."""

from __future__ import annotations

import os

from pinscope.probes.answer import Answer, all_of
from pinscope.probes.proc import HERE, Proc

PIN_COUNTERS_ADVICE = "Use Linux 5.7 or newer; sandboxed kernels such as gVisor have no such counters."


def pinned_bytes(proc: Proc = HERE) -> Answer[int]:
    """Bytes pinned for device access on this host now: by CUDA, RDMA, VFIO, io_uring …

    Pages pinned (FOLL_PIN) since boot less those released, from /proc/vmstat (Linux 5.7 and later). A page pinned
    twice counts twice. The kernel counts per processor and sums up now and then: some tens of pages may be missing.
    """
    vmstat = proc.fields("/proc/vmstat")
    counts = all_of(vmstat.amount("nr_foll_pin_acquired"), vmstat.amount("nr_foll_pin_released"))
    return counts.then(lambda pages: max(pages[0] - pages[1], 0) * os.sysconf("SC_PAGE_SIZE"))


def page_table_bytes(proc: Proc = HERE) -> Answer[int]:
    """Bytes of the kernel's page tables that map this process's memory (VmPTE)."""
    return proc.fields("/proc/self/status").amount("VmPTE")
