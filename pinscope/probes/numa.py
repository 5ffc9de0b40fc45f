"""The host's NUMA nodes, and on which of them memory lies. No libnuma: sysfs and two system calls."""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Mapping, Sequence

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc, ranges
from pinscope.records.environment import NumaNode

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
    return numbers.then(lambda found: _with_host_memory(proc, [_node(proc, number) for number in found]))


def _with_host_memory(proc: Proc, nodes: Sequence[NumaNode]) -> tuple[NumaNode, ...]:
    """A host's only node has all of its memory. Virtual machines that grow on demand tell less in the node's file."""
    meminfo = proc.fields("/proc/meminfo")
    total, available = meminfo.amount("MemTotal").value, meminfo.amount("MemAvailable").value
    if len(nodes) > 1 or total is None or available is None:
        return tuple(nodes)
    changes = {"memory_bytes": total, "available_bytes": min(available, total)}
    return tuple(node.model_copy(update=changes) for node in nodes)


def _numbers(text: str) -> list[int] | None:
    found = ranges(text)
    if found is None or any(last >= MOST_NODES for _, last in found):
        return None
    return [number for first, last in found for number in range(first, last + 1)]


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
    pages, found = (ctypes.c_void_p * count)(*addresses), (ctypes.c_int * count)()
    asked = system_call("move_pages", ctypes.c_long(0), ctypes.c_ulong(count), pages, None, found, ctypes.c_long(0))
    return asked.then(lambda _: tuple(node if node >= 0 else None for node in found))


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
