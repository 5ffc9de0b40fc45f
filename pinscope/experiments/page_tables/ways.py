"""The ways to pin that are compared, and what pins one step more in each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast, get_args

from pinscope.analysis.cells import LineStyle, Way, of_kind, way
from pinscope.lab.backing import GIGANTIC_PAGE, HUGE_PAGE, PAGE, free_gigantic_pages, touch, why_not_backing
from pinscope.lab.harness import Clock, driver_memory, why_not_driver_memory
from pinscope.lab.protocol import HostBuffer, Lab
from pinscope.probes.environment import read_huge_pages
from pinscope.records.environment import Environment
from pinscope.records.run import Backing, DriverMemory, HostMemory

Pinning = Literal[
    "pinned", "write_combined", "registered", "portable", "created", "created_pieces", "pool", "pool_granted"
]


def _style(symbol: str, colour: str = "registered") -> LineStyle:
    return LineStyle(colour, symbol, size=7)


_DRIVER = partial(_style, colour="driver")
WAYS: Mapping[str, Way] = {
    "pinned": way("allocated pinned", style=_style("circle", "pinned"), help="cudaHostAlloc"),
    "write_combined": way(
        "allocated write-combined",
        style=_style("square", "write_combined"),
        help="the same with cudaHostAllocWriteCombined",
    ),
    "registered": way("registered", help="ordinary memory and cudaHostRegister"),
    "portable": way(
        "registered", style=_style("triangle-up-open"), help="the same for all contexts, over the first of the backings"
    ),
    "created": way("cuMemCreate", style=_DRIVER("hexagon"), help="cuMemCreate on the host's NUMA node"),
    "created_pieces": way(
        "cuMemCreate in small handles", style=_DRIVER("hexagon-open"), help="the same in many handles"
    ),
    "pool": way("host pool without access", style=_DRIVER("star-open"), help="cuMemPoolCreate, and no GPU has access"),
    "pool_granted": way("host pool", style=_DRIVER("star"), help="the same, with access for the GPU"),
}
"""In the order of :data:`Pinning`."""
BACKINGS: Mapping[str, Way] = {
    "4k": way("4 KiB pages", style=_style("triangle-down-open")),
    "thp": way("huge pages", style=_style("square-open"), kinds="huge"),
    "shm": way("shared memory", style=_style("cross-open")),
    "shm_open": way("POSIX shared memory", style=_style("x-open")),
    "hugetlb": way("hugetlb pages", style=_style("diamond-open"), kinds="huge reserved"),
    "hugetlb_1g": way("hugetlb pages of 1 GiB", style=_style("diamond-tall-open"), kinds="huge reserved"),
}
"""Pages under registered memory. Of the kind ``reserved``: root set them aside, they take none of the free memory."""
RESERVED = of_kind(BACKINGS, "reserved")
Pin = Callable[[ExitStack], tuple[float | None, float]]
"""Pins one step more, held by the stack: seconds of touching, where that is a part of its own, and of pinning."""


@dataclass(frozen=True)
class Labels:
    """One way of pinning."""

    memory: Pinning
    backing: Backing | None

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.memory} ({self.backing})" if self.backing else self.memory


def ways(memory: Sequence[Pinning], backings: Sequence[Backing]) -> list[Labels]:
    """Registered memory over each backing, portable registration over the first; the others have none."""
    under: Mapping[str, Sequence[Backing]] = {"registered": backings, "portable": backings[:1]}
    return [Labels(pinning, backing) for pinning in memory for backing in under.get(pinning, (None,))]


@dataclass(frozen=True)
class Steps:
    """In which steps a way pins its memory."""

    bytes: int
    count: int

    @property
    def whole(self) -> int:
        """All of them."""
        return self.bytes * self.count


def steps_of(labels: Labels, asked: Steps) -> Steps:
    """As asked; over pages of 1 GiB one page a step, as many as are free."""
    if labels.backing != "hugetlb_1g":
        return asked
    size = max(asked.bytes // GIGANTIC_PAGE, 1) * GIGANTIC_PAGE
    return Steps(size, min(max(asked.whole // size, 1), max(free_gigantic_pages() * GIGANTIC_PAGE // size, 1)))


def taken_bytes(labels: Labels, asked: Steps, environment: Environment | None) -> int:
    """What all steps of one way take: whole pages for each, however little of them it pins."""
    huge = labels.backing in ("thp", "hugetlb") or labels.memory in ("created", "created_pieces")
    reserved = environment.huge_pages.hugetlb_page_bytes if environment and labels.backing == "hugetlb" else None
    page = reserved or (HUGE_PAGE if huge else PAGE)
    return -(-asked.bytes // page) * page * asked.count


def why_not(lab: Lab, labels: Labels, asked: Steps) -> str | None:
    """Why this way is not possible here; ``None`` if it is."""
    if labels.memory in get_args(DriverMemory):
        return why_not_driver_memory(lab, cast("DriverMemory", labels.memory))
    if labels.backing is None:
        return lab.why_not(cast("HostMemory", labels.memory))
    if labels.memory == "portable" and lab.kind != "cuda":
        return "the host model has one context: there is none to be portable to"
    if labels.backing == "hugetlb_1g" and asked.whole < GIGANTIC_PAGE:
        return "A page is 1 GiB, more than was asked for."
    steps = steps_of(labels, asked)
    page = (read_huge_pages().hugetlb_page_bytes if labels.backing == "hugetlb" else None) or PAGE
    whole = -(-steps.bytes // page) * page * steps.count
    return why_not_backing(labels.backing, whole) or lab.why_not("registered", backing=labels.backing)


@contextmanager
def pinning(lab: Lab, labels: Labels, nbytes: int, clock: Clock) -> Iterator[Pin]:
    """Pins ``nbytes`` at each call; what a pool keeps is freed when it closes."""
    if labels.backing is not None:
        yield partial(_register, lab, labels, nbytes, clock)
    elif labels.memory in get_args(DriverMemory):
        with driver_memory(lab, cast("DriverMemory", labels.memory)) as take:
            yield partial(_allocate, partial(take, nbytes), clock)
    else:
        yield partial(_allocate, partial(lab.host_buffer, nbytes, cast("HostMemory", labels.memory)), clock)


def _allocate(
    make: Callable[[], AbstractContextManager[HostBuffer]], clock: Clock, stack: ExitStack
) -> tuple[float | None, float]:
    begun = clock()
    stack.enter_context(make())
    return None, clock() - begun


def _register(lab: Lab, labels: Labels, nbytes: int, clock: Clock, stack: ExitStack) -> tuple[float | None, float]:
    memory = stack.enter_context(lab.ordinary_memory(nbytes, labels.backing))
    begun = clock()
    touch(memory)
    touched = clock()
    stack.enter_context(lab.register(memory, portable=labels.memory == "portable"))
    return touched - begun, clock() - touched
