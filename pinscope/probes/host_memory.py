"""The host's memory at this moment: totals, pins, huge pages, pressure."""

from __future__ import annotations

import re

from pinscope.probes.answer import Answer
from pinscope.probes.cgroup import GroupHeadrooms
from pinscope.probes.limits import host_memory
from pinscope.probes.memory import pinned_bytes
from pinscope.probes.proc import HERE, Fields, Proc
from pinscope.records.snapshot import HostTotals, Pressure

NOT_JOINED = "the processes have not been looked at"
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
    return HostTotals(
        total_bytes=total,
        available_bytes=available,
        cgroup_limit_bytes=group.then(lambda level: level.limit_bytes, "").note(missing, "cgroup_limit_bytes"),
        cgroup_headroom_bytes=group.then(lambda level: level.bytes, "").note(missing, "cgroup_headroom_bytes"),
        pinned_bytes=pinned_bytes(proc).note(missing, "pinned_bytes"),
        explained_bytes=None,
        other_pinned_bytes=None,
        mlocked_bytes=meminfo.amount("Mlocked").note(missing, "mlocked_bytes"),
        unevictable_bytes=meminfo.amount("Unevictable").note(missing, "unevictable_bytes"),
        hugetlb_pool_bytes=pool.note(missing, "hugetlb_pool_bytes"),
        hugetlb_used_bytes=used.note(missing, "hugetlb_used_bytes"),
        shmem_bytes=meminfo.amount("Shmem").note(missing, "shmem_bytes"),
        pressure=memory_pressure(proc).note(missing, "pressure"),
        missing=missing,
    )


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
