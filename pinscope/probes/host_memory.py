"""Memory of the host and of a control group at this moment, its NUMA nodes, and PCI devices as sysfs shows them."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter

from pinscope.probes.containers import GroupHeadrooms, hypervisor, memory_headroom, read_mounts
from pinscope.probes.proc import (
    HERE,
    IPC_LOCK,
    Answer,
    Fields,
    Proc,
    all_of,
    has_capability,
    in_initial_user_namespace,
    ranges,
    whole,
)
from pinscope.records.environment import Iommu, Limits, NumaNode
from pinscope.records.figure import about
from pinscope.records.snapshot import HostTotals, Pressure
from pinscope.units import format_bytes

MOST_NODES = 1024
"""The kernel's maximum (MAX_NUMNODES)."""
BIND = 2
"""MPOL_BIND of set_mempolicy(2): memory from these nodes or none."""
_MODE_FLAGS = 0xE000
"""What get_mempolicy(2) may add to a mode."""
_FOLDER = "/sys/devices/system/node"
_SYSTEM_CALLS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279, "perf_event_open": 298, "bpf": 321},
    "aarch64": {"set_mempolicy": 237, "get_mempolicy": 236, "move_pages": 239, "perf_event_open": 241, "bpf": 280},
}
"""Numbers of Linux's system calls: glibc has no functions for these."""
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def read_nodes(proc: Proc = HERE) -> Answer[tuple[NumaNode, ...]]:
    """The nodes that are online, by number."""
    path = f"{_FOLDER}/online"
    numbers = proc.line(path).then(_numbers, f"{path} is no list of nodes")
    return numbers.then(lambda online: _with_host_memory(proc, [_node(proc, number) for number in online]))


def _with_host_memory(proc: Proc, nodes: Sequence[NumaNode]) -> tuple[NumaNode, ...]:
    """A host's only node has all of its memory. Virtual machines that grow on demand tell less in the node's file."""
    meminfo = proc.fields("/proc/meminfo")
    total, available = meminfo.amount("MemTotal").value, meminfo.amount("MemAvailable").value
    if len(nodes) > 1 or total is None or available is None:
        return tuple(nodes)
    changes = {"memory_bytes": total, "available_bytes": min(available, total)}
    return tuple(node.model_copy(update=changes) for node in nodes)


def _numbers(text: str) -> list[int] | None:
    listed = ranges(text)
    if listed is None or any(last >= MOST_NODES for _, last in listed):
        return None
    return [number for first, last in listed for number in range(first, last + 1)]


def _node(proc: Proc, number: int) -> NumaNode:
    """A node without memory has a ``meminfo`` of zeros, or none."""
    meminfo = proc.fields(f"{_FOLDER}/node{number}/meminfo")

    def amount(name: str) -> int:
        return meminfo.amount(f"Node {number} {name}").value or 0

    total = amount("MemTotal")
    free = sum(amount(name) for name in ("MemFree", "Active(file)", "Inactive(file)", "SReclaimable"))
    processors = proc.line(f"{_FOLDER}/node{number}/cpulist").value or ""
    return NumaNode(number=number, processors=processors, memory_bytes=total, available_bytes=min(free, total))


def page_nodes(addresses: Sequence[int]) -> Answer[tuple[int | None, ...]]:
    """The node of the page at each address of this process (move_pages(2), which moves nothing here).

    ``None`` where no page is there yet, or none that the kernel manages: it hands out no node of memory that a
    driver mapped by itself.
    """
    count = len(addresses)
    pages, statuses = (ctypes.c_void_p * count)(*addresses), (ctypes.c_int * count)()
    asked = system_call("move_pages", ctypes.c_long(0), ctypes.c_ulong(count), pages, None, statuses, ctypes.c_long(0))
    return asked.then(lambda _: tuple(node if node >= 0 else None for node in statuses))


def bound_nodes() -> tuple[int, ...]:
    """The nodes to which memory of the calling thread is bound (get_mempolicy(2)); none if it is not."""
    mode, mask = ctypes.c_int(), node_mask()
    nothing = ctypes.c_void_p(None)
    most = ctypes.c_ulong(MOST_NODES)
    asked = system_call("get_mempolicy", ctypes.byref(mode), mask, most, nothing, ctypes.c_ulong(0))
    if asked.value is None or mode.value & ~_MODE_FLAGS != BIND:
        return ()
    return tuple(number for number in range(MOST_NODES) if mask[number // _WORD_BITS] >> number % _WORD_BITS & 1)


def node_mask(*nodes: int) -> ctypes.Array[ctypes.c_ulong]:
    """The nodes as the kernel's calls take them: a bit each."""
    mask = (ctypes.c_ulong * (MOST_NODES // _WORD_BITS))()
    for node in nodes:
        mask[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    return mask


def system_call(name: str, *arguments: object) -> Answer[int]:
    """Call the kernel; its result, or why it refuses.

    Filters of containers refuse these calls to a process without CAP_SYS_NICE (Docker's default profile).
    """
    if platform.machine() not in _SYSTEM_CALLS:
        return Answer.missing(f"PinScope does not know the number of {name} on {platform.machine()}")
    try:
        return Answer(kernel_call(name, *arguments))
    except OSError as error:
        return Answer.missing(f"{name}: {error.strerror}")


def kernel_call(name: str, *arguments: object) -> int:
    """Call the kernel. Raises OSError where it refuses."""
    result: int = _LIBC.syscall(ctypes.c_long(_SYSTEM_CALLS[platform.machine()][name]), *arguments)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


_BUS_ID = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_GROUP_TYPES: Mapping[str, Iommu] = {"identity": "passthrough", "DMA": "translating", "DMA-FQ": "translating"}
"""What the kernel writes into a group's ``type`` (Documentation/ABI/testing/sysfs-kernel-iommu_groups)."""
_AER_TOTALS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}
"""Kind of error → the line of ``aer_dev_KIND`` that sums them up (sysfs-bus-pci-devices-aer_stats)."""
# PCI Local Bus Specification 3.0, 6.7 (capability list), and PCI Express Base Specification, 7.5.3 (its capability).
_LIST_POINTER, _FIRST_CAPABILITY, _MOST_CAPABILITIES = 0x34, 0x40, 48
_PCI_EXPRESS, _DEVICE_CONTROL = 0x10, 0x08


def sysfs_folder(bus_id: str) -> str | None:
    """The folder of the device with this address; ``None`` if it is no PCI address.

    NVML writes the domain with eight digits, CUDA with four, sysfs with at least four.
    """
    match = _BUS_ID.fullmatch(bus_id)
    if match is None:
        return None
    return f"/sys/bus/pci/devices/{int(match['domain'], 16):04x}:{match['rest'].lower()}"


def iommu(proc: Proc, folder: str) -> Answer[Iommu]:
    """What stands between the device and host memory, as far as this kernel sees it: a hypervisor may add more."""
    group = proc.line(f"{folder}/iommu_group/type")
    if group.value is not None:
        return group.then(_GROUP_TYPES.get, f"the kernel calls the GPU's IOMMU group {group.value!r}")
    if proc.exists(f"{folder}/iommu_group"):
        return Answer(None, group.reason)
    return Answer("off") if proc.exists(folder) else Answer.missing(f"{folder} is not there")


def link_errors(proc: Proc, folder: str, kind: str) -> Answer[int]:
    """Errors of one kind (``correctable``, ``nonfatal``, ``fatal``) that the kernel counted since boot."""
    path, key = f"{folder}/aer_dev_{kind}", _AER_TOTALS[kind]
    if not proc.exists(path) and proc.exists(folder):
        return Answer.missing("the kernel counts no errors of this device (no Advanced Error Reporting)")
    return proc.fields(path).text(key).then(whole, f"{path} makes no sense")


@lru_cache(maxsize=64)
def max_payload(proc: Proc, folder: str) -> Answer[int]:
    """Most bytes of data in one packet of this device (Max_Payload_Size). Set at boot, so read once.

    A hypervisor makes up a guest's configuration space: what stands there need not be what the hardware does.
    """
    read = _device_control(proc, folder).then(_payload_bytes, "the device does not answer")
    name = hypervisor(proc)
    if name is None or read.value is None:
        return read
    return Answer.missing(f"the configuration space, made up by a hypervisor ({name}), says {format_bytes(read.value)}")


def _device_control(proc: Proc, folder: str) -> Answer[int]:
    """The Device Control register. Each read is a bus cycle: no more of them than it takes."""
    path = f"{folder}/config"
    place = proc.part(path, _LIST_POINTER, 1)
    for _ in range(_MOST_CAPABILITIES):
        if place.value is None:
            return Answer(None, place.reason)
        at = place.value[0] & 0xFC
        if at < _FIRST_CAPABILITY:
            return Answer.missing("the device has no PCI Express capability")
        head = proc.part(path, at, 2)
        if head.value is None:
            short = "ends before" in (head.reason or "")  # others see the first 64 bytes
            return Answer.missing(f"only root may read all of {path}" if short else head.reason or "")
        if head.value == b"\xff\xff":
            return Answer.missing("the device does not answer")
        if head.value[0] == _PCI_EXPRESS:
            return proc.part(path, at + _DEVICE_CONTROL, 2).then(lambda two: int.from_bytes(two, "little"))
        place = Answer(head.value[1:])
    return Answer.missing(f"the capabilities in {path} go round in a circle")


def _payload_bytes(control: int) -> int | None:
    code = control >> 5 & 7
    return 128 << code if code <= 5 else None


SHARED_MEMORY = "/dev/shm"  # noqa: S108 - asked for its free space, never written to

_MEMLOCK = re.compile(r"^Max locked memory +(?P<soft>\S+)", re.MULTILINE)


def read_limits(proc: Proc = HERE) -> Limits:
    """Total and available host memory, and what control groups, RLIMIT_MEMLOCK and /dev/shm leave, in bytes.

    Where the calling thread's memory is bound to one NUMA node, total and available are that node's.
    """
    missing: dict[str, str] = {"node": "memory is bound to no NUMA node"}
    total, available = host_memory(proc)
    group = memory_headroom(proc)
    limits = Limits(
        host_total_bytes=total,
        host_available_bytes=available,
        cgroup_limit_bytes=group.then(lambda level: level.limit_bytes).note(missing, "cgroup_limit_bytes"),
        cgroup_headroom_bytes=group.then(lambda level: level.bytes).note(missing, "cgroup_headroom_bytes"),
        memlock_headroom_bytes=memlock_headroom(proc).note(missing, "memlock_headroom_bytes"),
        shm_free_bytes=proc.free_bytes(SHARED_MEMORY).note(missing, "shm_free_bytes"),
        missing=missing,
    )
    bound = bound_nodes()
    nodes = read_nodes(proc).value or () if len(bound) == 1 else ()
    return next((limits.on_node(node) for node in nodes if node.number in bound), limits)


def host_memory(proc: Proc) -> tuple[int, int]:
    """(total, available) in bytes. psutil helps out where /proc/meminfo lacks a line: it knows how to estimate it."""
    meminfo = proc.fields("/proc/meminfo")
    total, available = meminfo.amount("MemTotal").value, meminfo.amount("MemAvailable").value
    if total is not None and available is not None:
        return total, min(total, available)
    import psutil  # noqa: PLC0415 - few kernels lack one

    memory = psutil.virtual_memory()
    return memory.total, memory.available


def memlock_headroom(proc: Proc) -> Answer[int]:
    """Bytes that this process may still mlock; missing, with the reason, where no limit applies.

    RLIMIT_MEMLOCK (soft) less VmLck. CAP_IPC_LOCK lifts it, but only in the initial user namespace: in a rootless
    container the capability shows in CapEff and does not count.
    """
    if has_capability(IPC_LOCK, proc) and in_initial_user_namespace(proc):
        return Answer.missing("no limit: this process has CAP_IPC_LOCK")
    match = _MEMLOCK.search(proc.read("/proc/self/limits").value or "")
    soft = whole(match["soft"]) if match is not None else resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft is None or soft == resource.RLIM_INFINITY:
        return Answer.missing("no limit: RLIMIT_MEMLOCK is unlimited")
    # Sandboxed kernels leave VmLck out. The limit itself is then the upper bound, and mlock fails cleanly above it.
    locked = proc.fields("/proc/self/status").amount("VmLck").value or 0
    return Answer(max(0, soft - locked))


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


NO_HOST = "the container has a /proc/meminfo of its own (lxcfs), and the kernel's count of pins is the whole host's"
_LEFT_OVER = about("memory in none of the kernel's accounts; it includes other drivers' memory and the kernel's own")
_ACCOUNTS = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "Slab", "PageTables", "Percpu")
"""Lines of /proc/meminfo that together have every page of an idle host but those that a driver allocated for itself;
none counts a page of another (proc_meminfo(5); measured on H100 and H200 hosts)."""
_NEWER_ACCOUNTS = ("Hugetlb", "SecPageTables", "Zswap", "Balloon")
"""Further ones, where the kernel has them; huge pages have had a line of their own since Linux 4.19."""
_STACKS = ("VmallocUsed", "KernelStack")
"""Kernel stacks lie in the first as a rule, where the driver keeps its lists too: 12 MiB for each GiB that it pins or
takes. Linux before 5.3 writes 0 there."""
_KEPT_PAGES = re.compile(r"^\s+count:\s+([0-9]{1,20})$", re.MULTILINE | re.ASCII)
"""In /proc/zoneinfo: free pages that one processor keeps of one zone."""
_POOLS = "/sys/kernel/mm/hugepages"
_POOL = re.compile(r"hugepages-([0-9]{1,12})kB", re.ASCII)
_PRESSURE, _IO_PRESSURE = "/proc/pressure/memory", "/proc/pressure/io"
_STALLED = re.compile(
    r"avg10=([0-9]{1,3}\.[0-9]+) avg60=([0-9]{1,3}\.[0-9]+) avg300=[0-9.]+ total=([0-9]{1,20})", re.ASCII
)


def read_host(proc: Proc = HERE, groups: GroupHeadrooms | None = None) -> HostTotals:
    """The host's totals. What holders explain of them is added where the holders are known."""
    missing: dict[str, str] = {}
    total, available = host_memory(proc)
    group = (groups or GroupHeadrooms(proc)).of("self")
    meminfo = proc.fields("/proc/meminfo")
    pool, used = _huge_pages(proc, meminfo)
    driver = driver_memory(meminfo, proc)
    mapped, *cached = (meminfo.amount(name).value or 0 for name in ("Mapped", "Active(file)", "Inactive(file)"))
    pins = pinned_bytes(proc)
    if any(mount.point == "/proc/meminfo" for mount in read_mounts(proc).value or ()):
        pins = Answer.missing(NO_HOST)
    pins.note(missing, "pins_bytes")
    return HostTotals(
        total_bytes=total,
        available_bytes=available,
        cgroup_limit_bytes=group.then(lambda level: level.limit_bytes).note(missing, "cgroup_limit_bytes"),
        cgroup_headroom_bytes=group.then(lambda level: level.bytes).note(missing, "cgroup_headroom_bytes"),
        pinned_bytes=pins.note(missing, "pinned_bytes"),
        mapped_file_bytes=min(mapped, sum(cached)),
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
    2 GiB of cudaHostAlloc or registered memory. Other drivers' pages are in it too. Free pages that processors keep for
    themselves, up to hundreds of MiB, stand in /proc/zoneinfo only.
    """
    newer = sum(meminfo.amount(name).value or 0 for name in _NEWER_ACCOUNTS)
    stacks = max(meminfo.amount(name).value or 0 for name in _STACKS)
    kept = proc.read("/proc/zoneinfo").then(_kept_by_processors).value or 0
    accounts = all_of(*(meminfo.amount(name) for name in ("MemTotal", *_ACCOUNTS)))
    return accounts.then(lambda amounts: max(0, amounts[0] - sum(amounts[1:]) - newer - stacks - kept))


def _kept_by_processors(zones: str) -> int | None:
    """Bytes of free pages that processors keep for themselves, by the text of /proc/zoneinfo."""
    counts = _KEPT_PAGES.findall(zones)
    return _bytes(sum(map(int, counts))) if counts else None


def memory_pressure(proc: Proc = HERE) -> Answer[Pressure]:
    """How long tasks stalled for lack of memory."""
    lines = [_stalled(proc, _PRESSURE, tasks) for tasks in ("some", "full")]
    return all_of(*lines).then(
        lambda both: Pressure(
            some_10s_share=both[0][0],
            some_60s_share=both[0][1],
            some_total_seconds=both[0][2],
            full_10s_share=both[1][0],
            full_60s_share=both[1][1],
            full_total_seconds=both[1][2],
        )
    )


def _stalled(proc: Proc, path: str, tasks: str) -> Answer[tuple[float, float, float]]:
    """Shares of the last 10 and 60 seconds, and seconds in all, for which ``some`` tasks stalled, or the ``full`` set.

    The kernel writes per cent and microseconds: ``some avg10=0.00 avg60=0.00 avg300=0.00 total=12345``.
    """
    match = proc.fields(path).text(tasks).then(_STALLED.fullmatch, f"{path} makes no sense")
    return match.then(lambda line: (float(line[1]) / 100, float(line[2]) / 100, int(line[3]) / 1e6))


def _huge_pages(proc: Proc, meminfo: Fields) -> tuple[Answer[int], Answer[int]]:
    """(pool, used) in bytes over all page sizes; meminfo alone counts pages of the default size only."""
    pool = used = 0
    pools = [match for match in map(_POOL.fullmatch, proc.names(_POOLS)) if match is not None]
    for match in pools:
        page = int(match[1]) * 1024
        counts = all_of(*(proc.number(f"{_POOLS}/{match[0]}/{name}_hugepages") for name in ("nr", "free")))
        if counts.value is None:
            return Answer(None, counts.reason), Answer(None, counts.reason)
        total, free = counts.value
        pool += total * page
        used += max(0, total - free) * page
    if pools:
        return Answer(pool), Answer(used)
    known = all_of(*(meminfo.amount(key) for key in ("HugePages_Total", "HugePages_Free", "Hugepagesize")))
    return known.then(lambda of: of[0] * of[2]), known.then(lambda of: max(0, of[0] - of[1]) * of[2])


@dataclass(frozen=True)
class HostPressure:
    """One reading. Bytes and seconds; ``None`` where ``missing`` says why.

    Attributes:
        available_bytes: what programs can still get without swapping (MemAvailable).
        cgroup_headroom_bytes: what this process's control groups leave; ``None`` where none limits it.
        free_bytes: used by nobody, not even for caching (MemFree).
        per_cpu_bytes: free pages that each processor has on a list of its own (/proc/zoneinfo); the kernel counts them
            neither as free nor as available, and takes them back within a minute or so.
        cached_bytes: the page cache, shared memory included (Cached).
        swap_in_bytes, swap_out_bytes: swapped in and out since boot.
        memory_some_seconds, memory_full_seconds: time since boot in which at least one task, or all of them, waited
            for memory (pressure stall information; Linux documentation, accounting/psi.rst).
        io_some_seconds, io_full_seconds: the same for input and output.
        missing: field name → why it is ``None``.
    """

    available_bytes: int
    cgroup_headroom_bytes: int | None
    free_bytes: int | None
    per_cpu_bytes: int | None
    cached_bytes: int | None
    swap_in_bytes: int | None
    swap_out_bytes: int | None
    memory_some_seconds: float | None
    memory_full_seconds: float | None
    io_some_seconds: float | None
    io_full_seconds: float | None
    missing: Mapping[str, str]

    @property
    def left_bytes(self) -> int:
        """What may still be taken here: the tighter of host and control group."""
        if self.cgroup_headroom_bytes is None:
            return self.available_bytes
        return min(self.available_bytes, self.cgroup_headroom_bytes)


def read_pressure(proc: Proc = HERE) -> HostPressure:
    """The figures of this moment; about half a millisecond."""
    missing: dict[str, str] = {}
    limits = read_limits(proc)
    if limits.cgroup_headroom_bytes is None:
        missing["cgroup_headroom_bytes"] = limits.missing["cgroup_headroom_bytes"]
    meminfo, vmstat = proc.fields("/proc/meminfo"), proc.fields("/proc/vmstat")

    def swapped(line: str, field: str) -> int | None:
        return vmstat.amount(line).then(_bytes).note(missing, field)

    def stalled(path: str, tasks: str, field: str) -> float | None:
        return _stalled(proc, path, tasks).then(itemgetter(2)).note(missing, field)

    return HostPressure(
        available_bytes=limits.host_available_bytes,
        cgroup_headroom_bytes=limits.cgroup_headroom_bytes,
        free_bytes=meminfo.amount("MemFree").note(missing, "free_bytes"),
        per_cpu_bytes=proc.read("/proc/zoneinfo")
        .then(_kept_by_processors, "/proc/zoneinfo has no lists of processors")
        .note(missing, "per_cpu_bytes"),
        cached_bytes=meminfo.amount("Cached").note(missing, "cached_bytes"),
        swap_in_bytes=swapped("pswpin", "swap_in_bytes"),
        swap_out_bytes=swapped("pswpout", "swap_out_bytes"),
        memory_some_seconds=stalled(_PRESSURE, "some", "memory_some_seconds"),
        memory_full_seconds=stalled(_PRESSURE, "full", "memory_full_seconds"),
        io_some_seconds=stalled(_IO_PRESSURE, "some", "io_some_seconds"),
        io_full_seconds=stalled(_IO_PRESSURE, "full", "io_full_seconds"),
        missing=missing,
    )


def _bytes(pages: int) -> int:
    return pages * os.sysconf("SC_PAGE_SIZE")


_PROCESSORS = "/sys/devices/system/cpu"
_PROCESSOR = re.compile(r"cpu[0-9]+", re.ASCII)


def last_level_cache_bytes(proc: Proc = HERE) -> Answer[int]:
    """Bytes of the last-level caches of all processors together; a virtual machine may be shown other caches.

    Each cache is counted once, whichever processors share it (Documentation/ABI/stable/sysfs-devices-system-cpu).
    """
    caches: dict[tuple[int, str], int] = {}
    for processor in proc.names(_PROCESSORS):
        if _PROCESSOR.fullmatch(processor) is None:
            continue
        folder = f"{_PROCESSORS}/{processor}/cache"
        for index in proc.names(folder):
            level = proc.number(f"{folder}/{index}/level").value
            size = proc.line(f"{folder}/{index}/size").then(lambda text: whole(text.removesuffix("K"))).value
            shared = proc.line(f"{folder}/{index}/shared_cpu_list").value
            if level is not None and size is not None:
                caches[level, shared or processor] = 1024 * size
    if not caches:
        return Answer.missing(f"{_PROCESSORS} shows no caches")
    last = max(level for level, _ in caches)
    return Answer(sum(size for (level, _), size in caches.items() if level == last))


@dataclass(frozen=True)
class GroupMemory:
    """One reading. Bytes, seconds and counts since the group was made; ``None`` where ``missing`` says why.

    Attributes:
        used_bytes: charged to the group in all.
        cache_bytes: of that, pages of files, which the kernel can drop.
        swap_bytes: of the group's memory, swapped out now.
        refaults: pages of files that were dropped and had to be read again.
        kills: processes that the kernel killed because the group had no memory left.
        stalled_seconds: time in which at least one task of the group waited for memory.
        missing: field name → why it is ``None``.
    """

    used_bytes: int | None
    cache_bytes: int | None
    swap_bytes: int | None
    refaults: int | None
    kills: int | None
    stalled_seconds: float | None
    missing: Mapping[str, str]


def read_group(kind: str, folder: str, proc: Proc = HERE) -> GroupMemory:
    """The figures of this moment; ``kind`` is the file system type of the hierarchy, ``cgroup`` or ``cgroup2``."""
    missing: dict[str, str] = {}
    first = kind == "cgroup"
    statistics = proc.fields(f"{folder}/memory.stat")
    refaults = statistics.amount("workingset_refault_file")
    if refaults.value is None and not first:
        refaults = statistics.amount("workingset_refault")  # Linux before 5.9
    used, events = ("usage_in_bytes", "oom_control") if first else ("current", "events")
    cache = _files(statistics.amount("cache" if first else "file"), statistics.amount("shmem"))
    swap = statistics.amount("swap") if first else proc.number(f"{folder}/memory.swap.current")
    stalled: Answer[float] = Answer.missing("control groups of version 1 do not report stalls")
    if not first:
        stalled = _stalled(proc, f"{folder}/memory.pressure", "some").then(itemgetter(2))
    return GroupMemory(
        used_bytes=proc.number(f"{folder}/memory.{used}").note(missing, "used_bytes"),
        cache_bytes=cache.note(missing, "cache_bytes"),
        swap_bytes=swap.note(missing, "swap_bytes"),
        refaults=refaults.note(missing, "refaults"),
        kills=proc.fields(f"{folder}/memory.{events}").amount("oom_kill").note(missing, "kills"),
        stalled_seconds=stalled.note(missing, "stalled_seconds"),
        missing=missing,
    )


def _files(cache: Answer[int], shared: Answer[int]) -> Answer[int]:
    """Shared memory is counted with the files, and cannot be dropped."""
    return all_of(cache, shared).then(lambda both: max(0, both[0] - both[1]))
