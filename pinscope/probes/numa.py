"""Where memory and devices lie: the host's NUMA nodes, and PCI devices as sysfs shows them."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from pinscope.probes.answer import Answer
from pinscope.probes.containers import hypervisor
from pinscope.probes.proc import HERE, Proc, ranges, whole
from pinscope.records.environment import Iommu, NumaNode
from pinscope.units import format_bytes

MOST_NODES = 1024
"""The kernel's maximum (MAX_NUMNODES)."""
BIND = 2
"""MPOL_BIND of set_mempolicy(2): memory from these nodes or none."""
_MODE_FLAGS = 0xE000
"""What get_mempolicy(2) may add to a mode."""
_FOLDER = "/sys/devices/system/node"
_SYSTEM_CALLS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279},
    "aarch64": {"set_mempolicy": 237, "get_mempolicy": 236, "move_pages": 239},
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
    numbers = _SYSTEM_CALLS.get(platform.machine())
    if numbers is None:
        return Answer.missing(f"PinScope does not know the number of {name} on {platform.machine()}")
    result: int = _LIBC.syscall(ctypes.c_long(numbers[name]), *arguments)
    return Answer.missing(f"{name}: {os.strerror(ctypes.get_errno())}") if result < 0 else Answer(result)


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
