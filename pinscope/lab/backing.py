"""Memory of this process: what stands under it (small pages, huge pages of either sort, shared memory), and locking it.

Used by both labs: memory of each backing is mapped here, and pinned (or locked) there.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, Self

from pinscope.errors import NotEnoughMemory
from pinscope.probes.environment import read_huge_pages
from pinscope.records.environment import HugePages
from pinscope.records.run import Backing
from pinscope.units import format_bytes

HUGE_PAGE = 2**21
"""A transparent huge page covers what one entry of the second page-table level does: 2 MiB with 4 KiB pages."""
_MAP_HUGETLB = 0x40000
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Stretch(Protocol):
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


def touch(memory: _Stretch) -> None:
    """Write to every page, so that each is backed by memory. Other threads run meanwhile."""
    ctypes.memset(memory.address, 1, memory.nbytes)


def why_not_backing(backing: Backing, nbytes: int = 1, pages: HugePages | None = None) -> str | None:
    """Why no memory of that backing can be had here, and what to do; ``None`` if it can.

    Args:
        backing: what is to stand under the memory.
        nbytes: how much of it.
        pages: the machine's huge pages; read now by default.
    """
    if backing not in ("thp", "hugetlb"):
        return None
    pages = pages or read_huge_pages()
    if backing == "thp":
        return _why_not_transparent(pages)
    if pages.hugetlb_page_bytes is None:
        return f"this kernel has no hugetlb pages ({pages.missing.get('hugetlb_page_bytes', 'unknown')})"
    nbytes = max(nbytes, pages.hugetlb_page_bytes)
    free, total = pages.hugetlb_free_pages or 0, pages.hugetlb_total_pages or 0
    needed = -(-nbytes // pages.hugetlb_page_bytes)
    if needed <= free:
        return None
    page = format_bytes(pages.hugetlb_page_bytes)
    return (
        f"{format_bytes(nbytes)} of hugetlb memory takes {needed:,} page(s) of {page}, and {free:,} of {total:,} are "
        f"free; reserve them as root: sysctl vm.nr_hugepages={total - free + needed}"
    )


def _why_not_transparent(pages: HugePages) -> str | None:
    if pages.transparent in ("always", "madvise"):
        return None
    state = pages.transparent or pages.missing.get("transparent", "unknown")
    return (
        f"transparent huge pages are off here ({state}); as root: "
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    )


class OwnMemory:
    """Memory of this process, page-aligned; the system takes it back on ``close``.

    Args:
        nbytes: its length; the system rounds up to whole pages.
        backing: what stands under it; ``None`` leaves that to the system.
        descriptor: of shared memory to map instead of new memory; stays the caller's.

    Raises:
        NotEnoughMemory: the system gives no such memory, with the reason.
    """

    def __init__(self, nbytes: int, backing: Backing | None = None, descriptor: int | None = None) -> None:
        self.nbytes = nbytes
        if descriptor is None:
            self._memory, offset = _mapped(nbytes, backing)
        else:
            self._memory, offset = _mapped_file(descriptor, nbytes), 0
        # The exporting object must go at once: a mapping with exports cannot be closed.
        self._address: int | None = ctypes.addressof(ctypes.c_char.from_buffer(self._memory)) + offset

    @property
    def address(self) -> int:
        """Where it begins.

        Raises:
            ValueError: it has been closed.
        """
        if self._address is None:
            raise ValueError("this memory has been released")
        return self._address

    def lock(self) -> None:
        """Keep every page in RAM; undone by ``close``. Raises as :func:`lock`."""
        lock(self.address, self.nbytes)

    def close(self) -> None:
        """Give the memory back; ``munmap`` unlocks it as well. Closing twice is harmless."""
        self._address = None
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def lock(address: int, nbytes: int) -> None:
    """Keep pages in RAM (``mlock``, which also touches them).

    Raises:
        NotEnoughMemory: the limit on locked memory, or the memory itself, does not suffice.
    """
    if _LIBC.mlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes)) == 0:
        return
    reason = os.strerror(ctypes.get_errno())
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    allowed = "unlimited" if limit == resource.RLIM_INFINITY else format_bytes(limit)
    raise NotEnoughMemory(
        f"cannot lock {format_bytes(nbytes)} of memory ({reason}): RLIMIT_MEMLOCK is {allowed}, "
        "less what is locked already; raise it with 'ulimit -l' or 'memlock' in "
        "/etc/security/limits.conf, or give the process CAP_IPC_LOCK"
    )


def unlock(address: int, nbytes: int) -> None:
    """Undo :func:`lock`."""
    _LIBC.munlock(ctypes.c_void_p(address), ctypes.c_size_t(nbytes))


def _mapped(nbytes: int, backing: Backing | None) -> tuple[mmap.mmap, int]:
    """Untouched memory, and the offset in it at which ``nbytes`` bytes of the backing begin."""
    try:
        if backing == "shm":
            with shared_region(nbytes) as descriptor:
                return _mapped_file(descriptor, nbytes), 0
        if backing == "hugetlb":
            return _hugetlb(nbytes), 0
        if backing == "thp":
            return _transparent(nbytes)
        memory = mmap.mmap(-1, nbytes, flags=_ANONYMOUS)
    except (OSError, OverflowError) as error:
        what = f"{format_bytes(nbytes)} of memory" + (f" ({backing})" if backing else "")
        reason = why_not_backing(backing, nbytes) if backing else None
        raise NotEnoughMemory(f"the system gives no {what}: {reason or f'{error}; ask for less'}") from None
    if backing == "4k":
        with suppress(OSError):  # a kernel without transparent huge pages does not know the advice
            memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory, 0


def _mapped_file(descriptor: int, nbytes: int) -> mmap.mmap:
    """Shared memory by its file descriptor, which may be closed afterwards."""
    return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED)


@contextmanager
def shared_region(nbytes: int) -> Iterator[int]:
    """The descriptor of new shared memory without a name: it is gone with its last user, also after a crash.

    It is the same memory as a file in /dev/shm (tmpfs), but not bound to that file system's size.
    """
    descriptor = os.memfd_create("pinscope", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, nbytes)
        yield descriptor
    finally:
        os.close(descriptor)


def _hugetlb(nbytes: int) -> mmap.mmap:
    """Whole pages: the kernel gives back only those."""
    page = read_huge_pages().hugetlb_page_bytes
    if page is None:
        raise OSError("this kernel has no hugetlb pages")
    return mmap.mmap(-1, -(-nbytes // page) * page, flags=_ANONYMOUS | _MAP_HUGETLB)


def _transparent(nbytes: int) -> tuple[mmap.mmap, int]:
    """Aligned, and a whole number of huge pages long: the kernel uses one only where all of it is mapped."""
    whole = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, whole + HUGE_PAGE, flags=_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
