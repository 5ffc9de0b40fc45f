"""On which NUMA node a run's threads and host buffers are.

Memory on another node than the GPU's crosses the link between processors on its way. A run is bound as a whole,
before it takes memory or starts a thread: threads and processes inherit the policy and the processors of the one that
starts them (set_mempolicy(2), sched_setaffinity(2)).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pinscope.errors import InvalidParameter
from pinscope.probes.host_memory import BIND, MOST_NODES, node_mask, page_nodes, system_call
from pinscope.probes.proc import Answer, ranges
from pinscope.records.environment import Environment, NumaNode
from pinscope.records.run import LabKind

SAMPLED_PAGES = 16
"""So many pages of each buffer are asked about: the first, the last and some in between."""


class HostNodes:
    """Host buffers that are held now, and the nodes on which they were seen.

    To look costs some microseconds: never within a timed part.
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._seen: set[int] = set()
        self._ever: set[int] = set()
        self.reason: str | None = None
        """Why the kernel does not tell; ``None`` while it does."""

    @contextmanager
    def holding(self, address: int, nbytes: int) -> Iterator[None]:
        """A buffer is there meanwhile. Not looked at yet: its pages need not be."""
        self._held[address] = nbytes
        try:
            yield
        finally:
            self._held.pop(address, None)

    def look(self, buffers: Iterable[tuple[int, int]] = ()) -> None:
        """See where the held buffers lie now, and others that are no lab's: (address, bytes) of each.

        To be called for buffers that are gone before the next observation.
        """
        pages = [page for buffer in (*self._held.items(), *buffers) for page in _sample(*buffer)]
        if not pages or self.reason is not None:
            return
        nodes = page_nodes(pages)
        self.reason = nodes.reason
        self.add(node for node in nodes.value or () if node is not None)

    def add(self, nodes: Iterable[int]) -> None:
        """Buffers were seen on these nodes, by another process of this run."""
        self._seen.update(nodes)

    def take(self) -> tuple[int, ...]:
        """The nodes of all buffers that were held since this was last asked, as far as they can be known."""
        self.look()
        nodes = tuple(sorted(self._seen))
        self._ever.update(nodes)
        self._seen.clear()
        return nodes

    @property
    def ever(self) -> tuple[int, ...]:
        """All nodes that :meth:`take` has returned."""
        return tuple(sorted(self._ever))


def _sample(address: int, nbytes: int) -> Iterator[int]:
    """Addresses in evenly spread pages; not at powers of two, which interleaved memory would put on one node."""
    first = address // mmap.PAGESIZE
    steps = (address + nbytes - 1) // mmap.PAGESIZE - first
    for page in sorted({first + steps * number // (SAMPLED_PAGES - 1) for number in range(SAMPLED_PAGES)}):
        yield page * mmap.PAGESIZE


NEAR, ANY = "near", "any"
_PREFERRED = 1
"""MPOL_PREFERRED of set_mempolicy(2)."""


@dataclass(frozen=True)
class Placement:
    """Where a run is to be.

    Attributes:
        node: the NUMA node; ``None`` for wherever the system puts it.
        only: memory comes from this node or none. Otherwise another node helps out when this one is full.
        why: where and why, a sentence for readers of the run.
    """

    node: NumaNode | None
    only: bool
    why: str


def placement(wanted: str, environment: Environment, lab: LabKind, device: int) -> Placement:
    """What ``node=WANTED`` means on this machine.

    Args:
        wanted: ``near`` (the GPU's node), ``any``, or a node's number.
        environment: of this machine.
        lab: where the run measures.
        device: on which GPU.

    Raises:
        InvalidParameter: no such node, or one without memory.
    """
    if wanted == ANY:
        return Placement(None, False, "Host buffers and the threads that copy were bound to no NUMA node (node=any).")
    nodes = {node.number: node for node in environment.nodes if node.memory_bytes}
    if wanted != NEAR:
        if int(wanted) not in nodes:
            those = ", ".join(map(str, nodes)) or f"not known ({environment.missing.get('nodes')})"
            raise InvalidParameter(f"node: this host has no NUMA node {wanted} with memory; those with memory: {those}")
        why = f"Host buffers and the threads that copy were bound to NUMA node {wanted}."
        return Placement(nodes[int(wanted)], True, why)
    gpu = environment.device(device) if lab == "cuda" else None
    number = gpu.numa_node if gpu else None
    if len(environment.nodes) == 1:
        why = f"This host has one NUMA node, {environment.nodes[0].number}: there was nothing to bind."
    elif not environment.nodes:
        reason = environment.missing.get("nodes", "unknown")
        why = f"Nothing was bound to a NUMA node: the nodes of this host are not known ({reason})."
    elif lab != "cuda":
        count = len(environment.nodes)
        why = f"Nothing was bound to one of the {count} NUMA nodes: the run uses no GPU that one could be near."
    elif number is None:
        reason = (gpu.missing.get("numa_node") if gpu else None) or "unknown"
        why = f"Nothing was bound: which NUMA node GPU {device} is near is not known ({reason})."
    elif number not in nodes:
        why = f"Nothing was bound: NUMA node {number}, which GPU {device} is near, has no memory."
    else:
        why = f"Host buffers and the threads that copy were placed on NUMA node {number}, near GPU {device}."
        return Placement(nodes[number], False, why)
    return Placement(None, False, why)


def place(chosen: Placement) -> list[str]:
    """Put the calling thread, and whatever it starts from now on, where it was chosen; what a reader must know of it.

    What the system refuses is said instead: a run elsewhere than asked for is still a run, and each of its rows tells
    on which node its buffers lay.
    """
    if chosen.node is None:
        return [chosen.why]
    bound = _set_policy(BIND if chosen.only else _PREFERRED, chosen.node.number)
    moved = _run_on(chosen.node)
    if bound.reason is None and moved is None:
        return [chosen.why]
    trouble = [] if bound.reason is None else [f"its memory could not be bound ({bound.reason})"]
    trouble += [] if moved is None else [f"its threads could not be moved there ({moved})"]
    hint = "; in a container it takes CAP_SYS_NICE" if bound.reason is not None else ""
    return [f"NUMA node {chosen.node.number} was chosen for the run, but {' and '.join(trouble)}{hint}."]


def residence(chosen: Placement, nodes: HostNodes) -> list[str]:
    """What a reader must know of where host buffers lay in the end, beyond :func:`place`."""
    if nodes.reason is not None:
        return [f"On which NUMA node host buffers lay is not known: {nodes.reason}."]
    elsewhere = [node for node in nodes.ever if chosen.node is not None and node != chosen.node.number]
    if not elsewhere:
        return []
    return [f"Some host buffers lay on NUMA node {', '.join(map(str, elsewhere))} instead (host_node of each row)."]


@contextmanager
def preferring(node: int | None) -> Iterator[None]:
    """Memory that this thread takes meanwhile comes from that node, as long as it has any; ``None`` changes nothing.

    Where the system refuses, it comes from where it came before.
    """
    if node is None:
        yield
        return
    mode, before = ctypes.c_int(), node_mask()
    most, nothing = ctypes.c_ulong(MOST_NODES), ctypes.c_void_p(None)
    known = system_call("get_mempolicy", ctypes.byref(mode), before, most, nothing, ctypes.c_ulong(0))
    changed = known.value is not None and _set_policy(_PREFERRED, node).reason is None
    try:
        yield
    finally:
        if changed:
            system_call("set_mempolicy", ctypes.c_long(mode.value), before, ctypes.c_ulong(MOST_NODES + 1))


def _set_policy(mode: int, node: int) -> Answer[int]:
    # The kernel takes the number of bits plus one.
    return system_call("set_mempolicy", ctypes.c_long(mode), node_mask(node), ctypes.c_ulong(MOST_NODES + 1))


def _run_on(node: NumaNode) -> str | None:
    """Run on the node's processors; why that is not possible, or ``None``."""
    listed = ranges(node.processors) or ()
    allowed = {cpu for cpu in os.sched_getaffinity(0) if any(first <= cpu <= last for first, last in listed)}
    if not allowed:
        return "this process may use none of its processors" if listed else "it has no processors"
    try:
        os.sched_setaffinity(0, allowed)
    except OSError as error:
        return error.strerror or str(error)
    return None
