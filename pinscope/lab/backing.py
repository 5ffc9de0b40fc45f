"""Memory of this process: what stands under it (small pages, huge pages of each sort, shared memory), and locking it.

Used by both labs: memory of each backing is mapped here, and pinned (or locked) there.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import re
import resource
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, Protocol, Self

from pinscope.errors import InvalidParameter, NotEnoughMemory, NotPossible
from pinscope.probes.environment import read_huge_pages, read_hugetlb_pool
from pinscope.records.environment import HugePages
from pinscope.records.run import Backing
from pinscope.text import quoted
from pinscope.units import format_bytes

PAGE = 4096
HUGE_PAGE = 2**21
"""A transparent huge page covers what one entry of the second page-table level does: 2 MiB with 4 KiB pages."""
Segment = Literal["memfd", "shm_open", "hugetlb", "hugetlb_1g"]
"""Memory that processes can share: without a name, a POSIX segment, or reserved huge pages without a name."""
GIGANTIC_PAGE = 2**30
SEGMENT_FOLDER = "/dev/shm"  # noqa: S108 - where shm_open(3) puts its segments
_MAP_HUGETLB, _MAP_HUGE_1GB = 0x40000, 30 << 26
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Memory(Protocol):
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


def touch(memory: _Memory) -> None:
    """Write to every page, so that each is backed by memory. Other threads run meanwhile."""
    ctypes.memset(memory.address, 1, memory.nbytes)


def why_not_backing(backing: Backing, nbytes: int = 1, pages: HugePages | None = None) -> str | None:
    """Why no memory of that backing can be had here, and what to do; ``None`` if it can.

    Args:
        backing: what is to stand under the memory.
        nbytes: how much of it.
        pages: the machine's huge pages; read now by default.
    """
    if backing in ("4k", "shm"):
        return None
    if backing == "shm_open":
        return _why_not_segment(nbytes)
    pages = pages or read_huge_pages()
    if backing == "thp":
        return _why_not_transparent(pages)
    if backing == "hugetlb_1g":
        return _why_not_reserved(nbytes, read_hugetlb_pool(GIGANTIC_PAGE))
    return _why_not_reserved(nbytes, pages)


def why_not_segment(segment: Segment, nbytes: int) -> str | None:
    """Why processes cannot share that much memory of that sort here, and what to do; ``None`` if they can."""
    if reason := why_not_backing("shm" if segment == "memfd" else segment, nbytes):
        return reason
    if nbytes % (page := segment_page(segment)):
        return f"a {segment} segment has whole pages: {format_bytes(nbytes)} is no multiple of {format_bytes(page)}"
    return None


def segment_page(segment: Segment) -> int:
    """Bytes of which a segment of that sort is a multiple."""
    pages = {"hugetlb": read_huge_pages().hugetlb_page_bytes or 1, "hugetlb_1g": GIGANTIC_PAGE}
    return pages.get(segment, 1)


def _why_not_segment(nbytes: int) -> str | None:
    """A segment that outgrows its file system is not refused: touching it ends the process (SIGBUS)."""
    try:
        state = os.statvfs(SEGMENT_FOLDER)
    except OSError as error:
        return f"shm_open needs {SEGMENT_FOLDER}: {error.strerror}"
    room = state.f_bavail * state.f_frsize
    if nbytes <= room:
        return None
    return (
        f"{SEGMENT_FOLDER} has room for {format_bytes(room)}, {format_bytes(nbytes)} are needed; as root: "
        f"mount -o remount,size=SIZE {SEGMENT_FOLDER} (docker run --shm-size=SIZE)"
    )


def _why_not_reserved(nbytes: int, pages: HugePages) -> str | None:
    size = pages.hugetlb_page_bytes
    if size is None:
        return f"this kernel has no hugetlb pages ({pages.missing.get('hugetlb_page_bytes', 'unknown')})"
    if pages.hugetlb_total_pages is None:
        return f"this kernel has no hugetlb pages of {format_bytes(size)} ({pages.missing.get('hugetlb_total_pages')})"
    nbytes = max(nbytes, size)
    free, total = pages.hugetlb_free_pages or 0, pages.hugetlb_total_pages
    needed = -(-nbytes // size)
    if needed <= free:
        return None
    how = f"sysctl vm.nr_hugepages={total - free + needed}"
    if size == GIGANTIC_PAGE:
        how = f"echo {total - free + needed} > /sys/kernel/mm/hugepages/hugepages-{size // 1024}kB/nr_hugepages"
    return (
        f"{format_bytes(nbytes)} of hugetlb memory takes {needed:,} page(s) of {format_bytes(size)}, and {free:,} of "
        f"{total:,} are free; reserve them as root: {how}"
    )


def free_gigantic_pages() -> int:
    """Reserved pages of 1 GiB that nobody uses."""
    return read_hugetlb_pool(GIGANTIC_PAGE).hugetlb_free_pages or 0


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
            self._memory, offset = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED), 0
            with suppress(OSError):  # huge pages where the host gives them for shared memory on advice
                self._memory.madvise(mmap.MADV_HUGEPAGE)
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
        if backing in ("shm", "shm_open"):
            with shared_region(nbytes, "memfd" if backing == "shm" else "shm_open") as descriptor:
                return mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED), 0
        if backing in ("hugetlb", "hugetlb_1g"):
            gigantic = backing == "hugetlb_1g"
            page = GIGANTIC_PAGE if gigantic else read_huge_pages().hugetlb_page_bytes
            if page is None:
                raise OSError("this kernel has no hugetlb pages")
            flags = _ANONYMOUS | _MAP_HUGETLB | (_MAP_HUGE_1GB if gigantic else 0)
            return mmap.mmap(-1, -(-nbytes // page) * page, flags=flags), 0
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


@contextmanager
def shared_region(nbytes: int, segment: Segment = "memfd", name: str = "pinscope") -> Iterator[int]:
    """The descriptor of new memory that processes can share: it is gone with its last user, also after a crash.

    ``memfd`` is the same memory as a segment of :data:`SEGMENT_FOLDER` (tmpfs), but not bound to that file system's
    size. A segment's name is gone as soon as it is open. ``name`` is what /proc calls the others.

    Raises:
        NotEnoughMemory: there is no such memory, or too little, with the reason.
    """
    try:
        descriptor = _opened(segment, nbytes, name)
    except OSError as error:
        raise NotEnoughMemory(f"no {segment} memory of {format_bytes(nbytes)}: {error.strerror}") from None
    try:
        os.ftruncate(descriptor, nbytes)
        yield descriptor
    finally:
        os.close(descriptor)


def _opened(segment: Segment, nbytes: int, name: str) -> int:
    if segment == "memfd":
        return os.memfd_create(name, os.MFD_CLOEXEC)
    if reason := why_not_segment(segment, nbytes):
        raise NotEnoughMemory(reason)
    if segment == "shm_open":  # the name is gone as soon as it is open
        path = f"{SEGMENT_FOLDER}/pinscope-{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        os.unlink(path)  # noqa: PTH108
        return descriptor
    size = os.MFD_HUGE_1GB if segment == "hugetlb_1g" else 0
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_HUGETLB | size)


def _transparent(nbytes: int) -> tuple[mmap.mmap, int]:
    """Aligned, and a whole number of huge pages long: the kernel uses one only where all of it is mapped."""
    whole = -(-nbytes // HUGE_PAGE) * HUGE_PAGE
    memory = mmap.mmap(-1, whole + HUGE_PAGE, flags=_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class SharedMemory:
    """The memory of that name, made or opened, and mapped.

    Args:
        name: letters, digits, ``.``, ``_`` and ``-``.
        nbytes: how much; all who share it ask for the same.
        segment: what the maker makes.
        check: called with the number of bytes before they are made; raises where they must not be.

    Attributes:
        nbytes: its length: whole pages.
        is_maker: whether it was made here. Others get it only after :meth:`publish`.

    Raises:
        InvalidParameter: the name or the size is not right, or the name is another user's.
        NotEnoughMemory: no such memory can be had.
        NotPossible: this host keeps processes from sharing it.
    """

    def __init__(self, name: str, nbytes: int, segment: Segment, check: Callable[[int], None]) -> None:
        if not _NAME.fullmatch(name):
            raise InvalidParameter(f"shared is {quoted(name)}; up to 100 letters, digits, '_', '-' and '.' make a name")
        self._title, self._process = f"pinscope-{name}", os.getpid()
        self._path = f"{SEGMENT_FOLDER}/{self._title}"
        self._named = ExitStack()
        """Takes the name away; with nothing to do where another process gave it."""
        with ExitStack() as failed:
            lock = _locked(self._path, name)
            failed.callback(_let_go, lock)
            opened = self._opened(lock, name, nbytes)
            self.is_maker = opened is None
            if opened is None:
                failed.callback(Path(self._path).unlink, missing_ok=True)  # before it is let go
                check(nbytes)
                page = segment_page(segment)
                opened = failed.enter_context(shared_region(-(-nbytes // page) * page, segment, self._title))
                os.fchmod(opened, 0o600)
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"{self._process} {opened} {nbytes} {_namespace()}".encode(), 0)
            else:
                failed.callback(os.close, opened)
            self._lock, self.nbytes = lock, os.fstat(opened).st_size
            self._memory = OwnMemory(self.nbytes, descriptor=opened)
            if self.is_maker:
                failed.callback(fcntl.flock, lock, fcntl.LOCK_EX)  # before all else: others may be reading it
                self._named = failed.pop_all()

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._memory.address

    def publish(self) -> None:
        """Let the others have what was made: its pages are touched."""
        if self.is_maker:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def withdraw(self) -> None:
        """Take the name away, if this process gave it: who has the memory keeps it. In a forked child nothing."""
        named = self._named.pop_all()
        if os.getpid() == self._process:
            named.close()

    def close(self) -> None:
        """Withdraw and unmap."""
        self.withdraw()
        self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self, lock: int, name: str, nbytes: int) -> int | None:
        """The descriptor of what another process made under this name and still holds."""
        words = os.pread(lock, 200, 0).decode().split()
        if len(words) != 4:  # nobody has made it
            return None
        process, number, size, namespace = words
        if namespace != _namespace():
            raise NotPossible(
                f"shared memory {quoted(name)} was made in another container, whose processes are not seen here; take "
                f"another name, or remove {self._path} if that container has ended"
            )
        place = f"/proc/{process}/fd/{number}"
        try:
            if os.readlink(place).split()[0] != f"/memfd:{self._title}":  # noqa: PTH115
                return None
            descriptor = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:  # its maker has ended
            return None
        except OSError as error:
            raise NotPossible(f"shared memory {quoted(name)} of process {process}: {error.strerror}") from None
        if int(size) != nbytes:
            os.close(descriptor)
            raise InvalidParameter(
                f"shared memory {quoted(name)} has {format_bytes(int(size))} ({size} bytes), not {nbytes} bytes"
            )
        return descriptor


def _locked(path: str, name: str) -> int:
    """The file of that name, locked; not one whose name has been taken away."""
    while True:
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise NotPossible(f"shared memory {quoted(name)} needs {path}: {error.strerror}") from None
        with ExitStack() as failed:
            failed.callback(os.close, lock)
            if os.fstat(lock).st_uid != os.geteuid():
                raise InvalidParameter(f"shared memory {quoted(name)} is another user's; take another name")
            fcntl.flock(lock, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):  # its maker took the name away meanwhile
                if os.path.samestat(os.fstat(lock), os.stat(path)):  # noqa: PTH116
                    failed.pop_all()
                    return lock


def _let_go(lock: int) -> None:
    """Explicitly: a forked child has it too."""
    fcntl.flock(lock, fcntl.LOCK_UN)
    os.close(lock)


def _namespace() -> str:
    """Of process numbers."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115
