"""The host's memory at this moment: totals, pins, driver memory, huge pages, pressure."""

from __future__ import annotations

import os
import re

from pinscope.probes.answer import Answer
from pinscope.probes.cgroup import GroupHeadrooms
from pinscope.probes.limits import host_memory
from pinscope.probes.memory import pinned_bytes
from pinscope.probes.proc import HERE, Fields, Proc
from pinscope.records.bound import about
from pinscope.records.snapshot import HostTotals, Pressure

NOT_JOINED = "the processes have not been looked at"
_LEFT_OVER = about("what the kernel's accounts leave over, with other drivers' memory and the kernel's own")
_ACCOUNTS = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "PageTables", "Percpu")
"""Lines of /proc/meminfo that together have every page of an idle host but those that a driver allocated for itself;
none counts a page of another (proc_meminfo(5); measured on H100 and H200 hosts)."""
_NEWER_ACCOUNTS = ("Hugetlb", "SecPageTables", "Zswap", "Balloon")
"""The same, where the kernel has them; huge pages have had a line of their own since Linux 4.19."""
_STACKS = ("VmallocUsed", "KernelStack")
"""Kernel stacks lie in the first as a rule, where the driver keeps its lists too: 12 MiB for each GiB that it pins or
takes. Linux before 5.3 writes 0 there."""
_KEPT_PAGES = re.compile(r"^ +count: +([0-9]{1,12})$", re.MULTILINE | re.ASCII)
"""In /proc/zoneinfo: free pages that one processor keeps of one zone."""
_POOLS = "/sys/kernel/mm/hugepages"
_POOL = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)
_PRESSURE = "/proc/pressure/memory"
_PRESSURE_LINE = re.compile(
    r"^(?P<who>some|full) avg10=(?P<ten>[0-9]{1,3}\.[0-9]+) avg60=(?P<sixty>[0-9]{1,3}\.[0-9]+) "
    r"avg300=[0-9.]+ total=(?P<total>[0-9]{1,20})$",
    re.MULTILINE | re.ASCII,
)


def read_host(proc: Proc = HERE, groups: GroupHeadrooms | None = None) -> HostTotals:
    """The host's totals. What holders explain of them is for whoever knows the holders.

    Args:
        proc: where /proc and /sys are read.
        groups: what this reading knows of control groups already.
    """
    missing: dict[str, str] = {"explained_bytes": NOT_JOINED, "other_pinned_bytes": NOT_JOINED}
    total, available = host_memory(proc)
    group = (groups or GroupHeadrooms(proc)).of("self")
    meminfo = proc.fields("/proc/meminfo")
    pool, used = _huge_pages(proc, meminfo)
    driver = driver_memory(meminfo, proc)
    return HostTotals(
        total_bytes=total,
        available_bytes=available,
        cgroup_limit_bytes=group.then(lambda level: level.limit_bytes, "").note(missing, "cgroup_limit_bytes"),
        cgroup_headroom_bytes=group.then(lambda level: level.bytes, "").note(missing, "cgroup_headroom_bytes"),
        pinned_bytes=pinned_bytes(proc).note(missing, "pinned_bytes"),
        explained_bytes=None,
        other_pinned_bytes=None,
        driver_memory_bytes=driver.note(missing, "driver_memory_bytes"),
        mlocked_bytes=meminfo.amount("Mlocked").note(missing, "mlocked_bytes"),
        unevictable_bytes=meminfo.amount("Unevictable").note(missing, "unevictable_bytes"),
        hugetlb_pool_bytes=pool.note(missing, "hugetlb_pool_bytes"),
        hugetlb_used_bytes=used.note(missing, "hugetlb_used_bytes"),
        shmem_bytes=meminfo.amount("Shmem").note(missing, "shmem_bytes"),
        pressure=memory_pressure(proc).note(missing, "pressure"),
        missing=missing,
        estimates={"driver_memory_bytes": _LEFT_OVER} if driver.value is not None else {},
    )


def driver_memory(meminfo: Fields, proc: Proc) -> Answer[int]:
    """Bytes of memory that none of the kernel's accounts has: an estimate of driver memory.

    The driver takes pages straight from the kernel's allocator, so write-combined memory, ``cuMemCreate`` on the host
    and host pools are in no account. On an H200 host with driver 580 it grew by 2048.9 MiB where 2048.0 MiB were taken
    write-combined, by 2049.9 for 2050.0 of ``cuMemCreate``, by 2082.4 for a pool's 2082.0, and by less than 0.1 for
    2 GiB of cudaHostAlloc or registered memory. Other drivers' pages are in it too.

    Args:
        meminfo: /proc/meminfo.
        proc: where /proc/zoneinfo is read: processors keep free pages for themselves, up to hundreds of MiB.
    """
    total = meminfo.amount("MemTotal")
    accounts = [meminfo.amount(name) for name in _ACCOUNTS]
    unknown = next((one.reason for one in (total, *accounts) if one.value is None), None)
    if total.value is None or unknown is not None:
        return Answer.missing(unknown or "")
    newer = sum(meminfo.amount(name).value or 0 for name in _NEWER_ACCOUNTS)
    stacks = max(meminfo.amount(name).value or 0 for name in _STACKS)
    kept = sum(map(int, _KEPT_PAGES.findall(proc.read("/proc/zoneinfo").value or ""))) * os.sysconf("SC_PAGE_SIZE")
    return Answer(max(0, total.value - sum(one.value or 0 for one in accounts) - newer - stacks - kept))


def memory_pressure(proc: Proc = HERE) -> Answer[Pressure]:
    """How long tasks stalled for lack of memory."""
    return proc.read(_PRESSURE).then(_pressure, f"{_PRESSURE} makes no sense")


def _pressure(text: str) -> Pressure | None:
    lines = {match["who"]: match for match in _PRESSURE_LINE.finditer(text)}
    if lines.keys() != {"some", "full"}:
        return None
    some, full = lines["some"], lines["full"]
    return Pressure(
        # The kernel writes per cent and microseconds.
        some_10s_share=float(some["ten"]) / 100,
        some_60s_share=float(some["sixty"]) / 100,
        some_total_seconds=int(some["total"]) / 1e6,
        full_10s_share=float(full["ten"]) / 100,
        full_60s_share=float(full["sixty"]) / 100,
        full_total_seconds=int(full["total"]) / 1e6,
    )


def _huge_pages(proc: Proc, meminfo: Fields) -> tuple[Answer[int], Answer[int]]:
    """(pool, used) in bytes over all page sizes; meminfo alone counts pages of the default size only."""
    pool = used = 0
    pools = [match for match in map(_POOL.fullmatch, proc.names(_POOLS)) if match is not None]
    for match in pools:
        page = int(match[1]) * 1024
        total, free = (proc.number(f"{_POOLS}/{match[0]}/{name}_hugepages") for name in ("nr", "free"))
        if total.value is None or free.value is None:
            unknown: Answer[int] = Answer.missing(total.reason or free.reason or "")
            return unknown, unknown
        pool += total.value * page
        used += max(0, total.value - free.value) * page
    if pools:
        return Answer(pool), Answer(used)
    total, free, size = (meminfo.amount(key) for key in ("HugePages_Total", "HugePages_Free", "Hugepagesize"))
    if total.value is None or free.value is None or size.value is None:
        unknown = Answer.missing(total.reason or free.reason or size.reason or "")
        return unknown, unknown
    return Answer(total.value * size.value), Answer(max(0, total.value - free.value) * size.value)
