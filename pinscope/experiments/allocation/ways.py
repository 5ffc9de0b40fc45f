"""WAYS to get a host buffer, each timed from asking to giving back."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from pinscope.analysis.cells import LineStyle, Way
from pinscope.errors import NotEnoughMemory
from pinscope.lab.backing import GIGANTIC_PAGE, PAGE, OwnMemory, touch, why_not_backing
from pinscope.lab.harness import Clock, driver_memory, why_not_driver_memory
from pinscope.lab.pinning import touch_pages
from pinscope.lab.protocol import HostBuffer, Lab
from pinscope.records.run import Backing, DriverMemory, HostMemory, LabKind
from pinscope.units import format_bytes


@dataclass(frozen=True)
class BufferWay(Way):
    """A way to get a buffer.

    Attributes:
        memory: what the lab is asked for, of buffers that it makes itself.
        backing: pages under memory that is mapped anew.
        driver: kind of memory of the driver's own calls.
    """

    memory: HostMemory | None = None
    backing: Backing | None = None
    driver: DriverMemory | None = None

    def title_on(self, lab: LabKind) -> str:
        """What it is called; on the host model pinning is mlock."""
        if lab != "host":
            return self.title
        return "map + mlock" if self.memory == "pinned" else self.title.replace("register", "mlock")

    @property
    def base(self) -> str:
        """The pageable buffer that it stands in place of, or is a registration of: by default the usual one."""
        return "fresh_thp" if self.backing in ("thp", "hugetlb", "hugetlb_1g") else BASE


def _way(
    title: str,
    kinds: str,
    style: str,
    backing: Backing | None = None,
    memory: HostMemory | None = None,
    driver: DriverMemory | None = None,
    help: str = "",
) -> BufferWay:
    colour, symbol, dash = style.split()
    line = LineStyle(colour, symbol, dash)
    return BufferWay(title, "", line, frozenset(kinds.split()), help or title, memory, backing, driver)


BASE = "fresh_4k"
"""The usual pageable buffer that a fresh pinned one is compared with."""
WAYS: Mapping[str, BufferWay] = {
    "malloc": _way("malloc", "quick host", "pageable circle-open dot", help="malloc, not touched"),
    "malloc_touch": _way("malloc + touch, may reuse", "quick host", "pageable diamond-open dash"),
    "fresh_4k": _way("fresh, touched, 4 KiB pages", "quick host fresh", "pageable diamond solid", "4k"),
    "fresh_thp": _way("fresh, touched, huge pages", "quick host fresh", "pageable hexagon dashdot", "thp"),
    "pinned": _way("cudaHostAlloc", "quick host", "pinned circle solid", memory="pinned"),
    "write_combined": _way(
        "cudaHostAlloc, write-combined", "quick", "write_combined square solid", memory="write_combined"
    ),
    "registered_4k": _way(
        "touch + register, 4 KiB pages", "quick host registered", "registered triangle-down solid", "4k"
    ),
    "registered_thp": _way(
        "touch + register, huge pages", "quick host registered", "registered triangle-up dash", "thp"
    ),
    "registered_hugetlb": _way(
        "touch + register, hugetlb pages", "quick host registered", "registered pentagon dot", "hugetlb"
    ),
    "pool": _way("reused, from a pool", "quick host pool keeps", "pinned star dash"),
    "cupy_pool": _way("reused, from CuPy's pool", "quick pool keeps", "pinned cross dot"),
    "registered_portable": _way("touch + register, portable", "registered", "registered triangle-left dash", "4k"),
    "registered_shm_open": _way("touch + register, POSIX segment", "host registered", "registered x dot", "shm_open"),
    "registered_hugetlb_1g": _way(
        "touch + register, hugetlb pages of 1 GiB", "host registered", "registered hexagon2 dashdot", "hugetlb_1g"
    ),
    "created": _way("cuMemCreate", "driver", "driver square solid", driver="created"),
    "host_pool": _way(
        "CUDA's host pool", "driver", "driver diamond solid", driver="pool_granted", help="CUDA's, which keeps nothing"
    ),
    "host_pool_kept": _way("reused, from CUDA's host pool", "keeps", "driver star dash", driver="pool_granted"),
}
"""Kinds: ``quick``, in a quick run; ``host``, on the host model; ``fresh``, pageable memory mapped anew;
``registered``; ``driver``, fresh memory of the driver's own calls; ``pool``, reused;
``keeps``, holds a buffer of each size."""
if TYPE_CHECKING:
    WayName = str
else:
    WayName = Literal[tuple(WAYS)]

_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype = ctypes.c_void_p
_LIBC.malloc.argtypes = [ctypes.c_size_t]
_LIBC.free.argtypes = [ctypes.c_void_p]


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long one buffer took, in seconds, as an observation names it."""

    get_seconds: float
    touch_seconds: float | None = None
    register_seconds: float | None = None
    unregister_seconds: float | None = None
    give_back_seconds: float
    page_faults: int | None


def why_not_way(lab: Lab, name: str, nbytes: int) -> str | None:
    """Why a buffer cannot be had this way here; ``None`` if it can."""
    way = WAYS[name]
    if way.memory:
        return lab.why_not(way.memory)
    if way.driver:
        return why_not_driver_memory(lab, way.driver)
    if name == "registered_portable" and lab.kind != "cuda":
        return "The host model has one context: there is none to be portable to."
    if name == "cupy_pool" and lab.kind != "cuda":
        return "CuPy's pool needs a GPU"
    if not way.backing:
        return None
    unregistered = lab.why_not("registered", backing=way.backing) if "registered" in way.kinds else None
    return unregistered or why_not_backing(way.backing, nbytes)


def least_bytes(way: str) -> int:
    """The smallest buffer that is worth measuring: a page, where that is as large as most buffers."""
    return GIGANTIC_PAGE if way == "registered_hugetlb_1g" else 1


Take = Callable[[int], AbstractContextManager[HostBuffer]]
Once = Callable[[int, Clock], Times]
"""Gets one buffer of so many bytes and gives it back, timed."""


@contextmanager
def source(lab: Lab, name: str) -> Iterator[Once]:
    """Where buffers of one way come from; what a pool keeps is freed when it closes."""
    way = WAYS[name]
    if way.memory:
        yield partial(_pinned, lab, partial(lab.host_buffer, memory=way.memory))
    elif way.backing:
        yield partial(_touched, lab, way.backing, "registered" in way.kinds, name == "registered_portable")
    elif way.driver:
        with driver_memory(lab, way.driver, kept="keeps" in way.kinds) as take:
            yield partial(_pinned, lab, take)
    elif "pool" in way.kinds:
        with ExitStack() as stack:
            yield partial(_reused, *(_cupy_pool(stack) if name == "cupy_pool" else _own_pool(lab, stack)))
    else:
        yield partial(_malloc, lab, name == "malloc_touch")


def why_no_page_faults() -> str | None:
    """Why page faults of this process cannot be counted here; ``None`` if they can."""
    before = _page_faults()
    with OwnMemory(PAGE) as fresh:
        touch(fresh)
    return None if _page_faults() > before else "this kernel does not count the page faults of a process"


def _page_faults() -> int:
    """Page faults of all threads of this process so far, with and without reading from a disk (getrusage(2))."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


def _malloc(lab: Lab, is_touched: bool, nbytes: int, clock: Clock) -> Times:
    """The C library's memory, which may be what was freed before. Raises NotEnoughMemory."""
    touched = None
    faults = _page_faults()
    begun = clock()
    address = _LIBC.malloc(nbytes)
    if not address:
        raise NotEnoughMemory(f"malloc gives no {format_bytes(nbytes)}; ask for less")
    try:
        if is_touched:
            before = clock()
            touch_pages(address, nbytes)
            touched = clock() - before
        got = clock()
        faults = _page_faults() - faults
        lab.host_nodes.look([(address, nbytes)])
        released = clock()
    finally:
        _LIBC.free(address)
    return Times(
        get_seconds=got - begun, touch_seconds=touched, give_back_seconds=clock() - released, page_faults=faults
    )


def _pinned(lab: Lab, take: Take, nbytes: int, clock: Clock) -> Times:
    """Memory that comes pinned: cudaHostAlloc, or the driver's own calls; on the host model, mapped and locked."""
    faults = _page_faults()
    begun = clock()
    with take(nbytes):
        got = clock()
        faults = _page_faults() - faults
        lab.host_nodes.look()
        released = clock()
    return Times(get_seconds=got - begun, give_back_seconds=clock() - released, page_faults=faults)


def _touched(lab: Lab, backing: Backing, is_registered: bool, is_portable: bool, nbytes: int, clock: Clock) -> Times:
    """Memory mapped anew each time, touched by one thread, then pinned where it is or not; unmapped afterwards."""
    faults = _page_faults()
    begun = clock()
    with lab.ordinary_memory(nbytes, backing) as memory:
        mapped = clock()
        touch_pages(memory.address, nbytes)
        touched = got = clock()
        with lab.register(memory, is_portable) if is_registered else nullcontext():
            if is_registered:
                got = clock()
            faults = _page_faults() - faults
            lab.host_nodes.look()
            released = clock()
        unregistered = clock()
    gone = clock()
    return Times(
        get_seconds=got - begun,
        touch_seconds=touched - mapped,
        give_back_seconds=gone - released,
        register_seconds=got - touched if is_registered else None,
        unregister_seconds=unregistered - released if is_registered else None,
        page_faults=faults,
    )


def _reused(get: Callable[[int], None], give_back: Callable[[], None], nbytes: int, clock: Clock) -> Times:
    """A pool's, which kept the buffers it was given back and hands them out again."""
    faults = _page_faults()
    begun = clock()
    get(nbytes)
    got = clock()
    faults = _page_faults() - faults
    released = clock()
    give_back()
    return Times(get_seconds=got - begun, give_back_seconds=clock() - released, page_faults=faults)


def _cupy_pool(stack: ExitStack) -> tuple[Callable[[int], None], Callable[[], None]]:
    from pinscope.lab.cuda_memory import CupyPool  # noqa: PLC0415 - imports CuPy

    pool = CupyPool()
    stack.callback(pool.close)
    return pool.get, pool.give_back


def _own_pool(lab: Lab, stack: ExitStack) -> tuple[Callable[[int], None], Callable[[], None]]:
    """The simplest there can be: a list of free pinned buffers for each size."""
    free: dict[int, list[HostBuffer]] = {}
    lent: list[HostBuffer] = []
    make: Take = partial(lab.host_buffer, memory="pinned")

    def get(nbytes: int) -> None:
        kept = free.setdefault(nbytes, [])
        lent.append(kept.pop() if kept else stack.enter_context(make(nbytes)))

    def give_back() -> None:
        buffer = lent.pop()
        free[buffer.nbytes].append(buffer)

    return get, give_back
