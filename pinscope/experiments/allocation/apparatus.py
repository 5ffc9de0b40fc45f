"""Ways to get a host buffer, each timed from asking to giving back."""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from pinscope.errors import NotEnoughMemory
from pinscope.lab.backing import GIGANTIC_PAGE, OwnMemory, touch, why_not_backing
from pinscope.lab.driver_memory import driver_memory, why_not_driver_memory
from pinscope.lab.harness import Clock
from pinscope.lab.pinning import PAGE, touch_pages
from pinscope.lab.protocol import HostBuffer, Lab
from pinscope.records.run import Backing, DriverMemory, HostMemory
from pinscope.units import format_bytes

Way = Literal[
    "malloc",
    "malloc_touch",
    "fresh_4k",
    "fresh_thp",
    "pinned",
    "write_combined",
    "registered_4k",
    "registered_thp",
    "registered_hugetlb",
    "pool",
    "cupy_pool",
    "registered_portable",
    "registered_shm_open",
    "registered_hugetlb_1g",
    "created",
    "host_pool",
    "host_pool_kept",
]
FRESH: Mapping[Way, Backing] = {"fresh_4k": "4k", "fresh_thp": "thp"}
REGISTERED: Mapping[Way, Backing] = {
    "registered_4k": "4k",
    "registered_thp": "thp",
    "registered_hugetlb": "hugetlb",
    "registered_portable": "4k",
    "registered_shm_open": "shm_open",
    "registered_hugetlb_1g": "hugetlb_1g",
}
DRIVER: Mapping[Way, DriverMemory] = {
    "created": "created",
    "host_pool": "pool_granted",
    "host_pool_kept": "pool_granted",
}
_PINNED: Mapping[Way, HostMemory] = {"pinned": "pinned", "write_combined": "write_combined"}

_LIBC = ctypes.CDLL(None)
_LIBC.malloc.restype = ctypes.c_void_p
_LIBC.malloc.argtypes = [ctypes.c_size_t]
_LIBC.free.argtypes = [ctypes.c_void_p]


@dataclass(frozen=True, kw_only=True)
class Times:
    """How long one buffer took, in seconds.

    Attributes:
        get_seconds: until it was there, all parts together.
        touch_seconds: of that, writing to every page; ``None`` where that is no step of its own.
        register_seconds: of that, pinning memory that was there already; ``None`` likewise.
        unregister_seconds: of giving back, unpinning memory that stays; ``None`` likewise.
        give_back_seconds: until it was gone.
        page_faults: of this process while it got the buffer; ``None`` where the kernel does not count them.
    """

    get_seconds: float
    touch_seconds: float | None = None
    register_seconds: float | None = None
    unregister_seconds: float | None = None
    give_back_seconds: float
    page_faults: int | None


def why_not_way(lab: Lab, way: Way, nbytes: int) -> str | None:
    """Why a buffer cannot be had this way here; ``None`` if it can."""
    reason = None
    if way in _PINNED:
        reason = lab.why_not(_PINNED[way])
    elif way in FRESH:
        reason = why_not_backing(FRESH[way], nbytes)
    elif way in DRIVER:
        reason = why_not_driver_memory(lab, DRIVER[way])
    elif way == "registered_portable" and lab.kind != "cuda":
        reason = "The host model has one context: there is none to be portable to."
    elif way in REGISTERED:
        reason = lab.why_not("registered", backing=REGISTERED[way]) or why_not_backing(REGISTERED[way], nbytes)
    elif way == "cupy_pool" and lab.kind != "cuda":
        reason = "CuPy's pool needs a GPU"
    return reason


def least_bytes(way: Way) -> int:
    """The smallest buffer that is worth measuring: a page, where that is as large as most buffers."""
    return GIGANTIC_PAGE if way == "registered_hugetlb_1g" else 1


class Source(Protocol):
    """Gives out one buffer at a time."""

    def once(self, nbytes: int, clock: Clock) -> Times:
        """Get a buffer and give it back, timed."""
        ...


@contextmanager
def source(lab: Lab, way: Way) -> Iterator[Source]:
    """Where buffers of one way come from; what a pool keeps is freed when it closes."""
    if way in ("malloc", "malloc_touch"):
        yield _Malloc(lab, touched=way == "malloc_touch")
    elif way in FRESH:
        yield _Touched(lab, FRESH[way], registered=False)
    elif way in REGISTERED:
        yield _Touched(lab, REGISTERED[way], registered=True, portable=way == "registered_portable")
    elif way in _PINNED:
        yield _Pinned(lab, partial(lab.host_buffer, memory=_PINNED[way]))
    elif way in DRIVER:
        with driver_memory(lab, DRIVER[way], kept=way == "host_pool_kept") as take:
            yield _Pinned(lab, take)
    else:
        with ExitStack() as stack:
            yield _Pool(_cupy_pool(stack) if way == "cupy_pool" else _own_pool(lab, stack))


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


class _Malloc:
    """The C library's memory, which may be what was freed before."""

    def __init__(self, lab: Lab, touched: bool) -> None:
        self._lab, self._touched = lab, touched

    def once(self, nbytes: int, clock: Clock) -> Times:
        """Raises NotEnoughMemory."""
        touched = None
        faults = _page_faults()
        begun = clock()
        address = _LIBC.malloc(nbytes)
        if not address:
            raise NotEnoughMemory(f"malloc gives no {format_bytes(nbytes)}; ask for less")
        try:
            if self._touched:
                before = clock()
                touch_pages(address, nbytes)
                touched = clock() - before
            got = clock()
            faults = _page_faults() - faults
            self._lab.host_nodes.look([(address, nbytes)])
            released = clock()
        finally:
            _LIBC.free(address)
        return Times(
            get_seconds=got - begun, touch_seconds=touched, give_back_seconds=clock() - released, page_faults=faults
        )


@dataclass(frozen=True)
class _Pinned:
    """Memory that comes pinned: cudaHostAlloc, or the driver's own calls; on the host model, mapped and locked."""

    lab: Lab
    take: Callable[[int], AbstractContextManager[HostBuffer]]

    def once(self, nbytes: int, clock: Clock) -> Times:
        faults = _page_faults()
        begun = clock()
        with self.take(nbytes):
            got = clock()
            faults = _page_faults() - faults
            self.lab.host_nodes.look()
            released = clock()
        return Times(get_seconds=got - begun, give_back_seconds=clock() - released, page_faults=faults)


@dataclass(frozen=True)
class _Touched:
    """Memory mapped anew each time, touched by one thread, then pinned where it is or not; unmapped afterwards."""

    lab: Lab
    backing: Backing
    registered: bool
    portable: bool = False

    def once(self, nbytes: int, clock: Clock) -> Times:
        faults = _page_faults()
        begun = clock()
        with self.lab.ordinary_memory(nbytes, self.backing) as memory:
            mapped = clock()
            touch_pages(memory.address, nbytes)
            touched = got = clock()
            with self.lab.register(memory, self.portable) if self.registered else nullcontext():
                if self.registered:
                    got = clock()
                faults = _page_faults() - faults
                self.lab.host_nodes.look()
                released = clock()
            unregistered = clock()
        gone = clock()
        return Times(
            get_seconds=got - begun,
            touch_seconds=touched - mapped,
            give_back_seconds=gone - released,
            register_seconds=got - touched if self.registered else None,
            unregister_seconds=unregistered - released if self.registered else None,
            page_faults=faults,
        )


@dataclass(frozen=True)
class _Pool:
    """A pool that kept the buffers it was given back, and hands them out again."""

    pool: tuple[Callable[[int], None], Callable[[], None]]

    def once(self, nbytes: int, clock: Clock) -> Times:
        get, give_back = self.pool
        faults = _page_faults()
        begun = clock()
        get(nbytes)
        got = clock()
        faults = _page_faults() - faults
        released = clock()
        give_back()
        return Times(get_seconds=got - begun, give_back_seconds=clock() - released, page_faults=faults)


def _cupy_pool(stack: ExitStack) -> tuple[Callable[[int], None], Callable[[], None]]:
    from pinscope.lab.cuda_pinning import CupyPool  # noqa: PLC0415 - imports CuPy

    pool = CupyPool()
    stack.callback(pool.close)
    return pool.get, pool.give_back


def _own_pool(lab: Lab, stack: ExitStack) -> tuple[Callable[[int], None], Callable[[], None]]:
    """The simplest there can be: a list of free pinned buffers for each size."""
    free: dict[int, list[HostBuffer]] = {}
    lent: list[HostBuffer] = []
    make: Callable[[int], AbstractContextManager[HostBuffer]] = partial(lab.host_buffer, memory="pinned")

    def get(nbytes: int) -> None:
        kept = free.setdefault(nbytes, [])
        lent.append(kept.pop() if kept else stack.enter_context(make(nbytes)))

    def give_back() -> None:
        buffer = lent.pop()
        free[buffer.nbytes].append(buffer)

    return get, give_back
