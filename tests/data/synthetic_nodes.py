"""SYNTHETIC trees of /sys for hosts with several NUMA nodes, in the kernel's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pinscope.probes.proc import Proc

GIB = 2**30
FOLDER = "sys/devices/system/node"


@dataclass(frozen=True)
class Node:
    """One node of the host."""

    processors: str
    memory_bytes: int
    free_bytes: int
    cached_bytes: int = 0


TWO_SOCKETS = (Node("0-15,32-47", 256 * GIB, 100 * GIB, 20 * GIB), Node("16-31,48-63", 256 * GIB, 200 * GIB))
WITH_EXPANDER = (*TWO_SOCKETS, Node("", 128 * GIB, 128 * GIB), Node("64-65", 0, 0))
"""A third node is memory without processors (CXL), a fourth processors without memory."""


def host(folder: Path, nodes: Sequence[Node], gpu_node: int | None = None, address: str = "0000:1b:00.0") -> Proc:
    """Write the tree; its reader. ``gpu_node`` is that of the GPU at ``address``."""
    place = folder / FOLDER
    place.mkdir(parents=True)
    (place / "online").write_text(f"0-{len(nodes) - 1}\n" if len(nodes) > 1 else "0\n")
    for number, node in enumerate(nodes):
        own = place / f"node{number}"
        own.mkdir()
        (own / "cpulist").write_text(f"{node.processors}\n")
        lines = {
            "MemTotal": node.memory_bytes, "MemFree": node.free_bytes, "Active(file)": node.cached_bytes // 2,
            "Inactive(file)": node.cached_bytes - node.cached_bytes // 2, "SReclaimable": 0,
        }  # fmt: skip
        (own / "meminfo").write_text(
            "".join(f"Node {number} {name + ':':<16}{amount // 1024:>9} kB\n" for name, amount in lines.items())
        )
    (folder / "proc").mkdir()
    total = sum(node.memory_bytes for node in nodes)
    available = sum(node.free_bytes + node.cached_bytes for node in nodes)
    (folder / "proc" / "meminfo").write_text(f"MemTotal: {total // 1024} kB\nMemAvailable: {available // 1024} kB\n")
    if gpu_node is not None:
        device = folder / "sys/bus/pci/devices" / address
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{gpu_node}\n")
    return Proc.below(folder)
