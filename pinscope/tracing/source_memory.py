"""What memory of the host a large copy comes from or goes to: looked up in the program, before the copy touches it.

``/proc/self/smaps`` would say it, too, but walks all of a process's memory: 341 ms for 24 GiB. So its mapping is looked
up in ``/proc/self/maps``, and the state of some of its pages in ``pagemap`` and by ``mincore``.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

from pinscope.tracing.bound import as_json, bind, os, time

bind(globals())

LOOKED_AT = (1, 4)
"""Which large copies of a line are looked at: the first may be the only one into memory that was never touched."""
MOST_SECONDS = 0.2
"""So long the looks of a process may take together; about 1 ms each where it has 1,000 mappings."""
MOST_ADDRESSES = 1000
"""Of arguments, whose sizes are read without looking them up."""
WINDOWS, WINDOW_PAGES = 16, 32
"""Of a copy, so many stretches of so many pages are looked at."""
MOST_TENSORS = 10_000
"""Of which it is kept whether they lie in pinned memory."""
_PINS = re.compile(r"cuMem(AllocHost|HostAlloc|FreeHost|Host(Un)?[rR]egister)")
_ARGUMENTS = {
    **dict.fromkeys(("cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2"), (1,)),
    **dict.fromkeys(("cuMemcpyDtoH_v2", "cuMemcpyDtoHAsync_v2"), (0,)),
    **dict.fromkeys(("cuMemcpy", "cuMemcpyAsync"), (1, 0)),
}
"""Function of the driver → which of its arguments may be an address of the host."""
_PER_THREAD = ("_ptsz", "_ptds")
_PRESENT, _PAGEMAP_BYTES = 63, 8
_SCAN, _SCAN_BYTES, _IS_HUGE, _MOST_REGIONS = 0xC0606610, 96, 1 << 6, 64
"""PAGEMAP_SCAN of Linux 6.7: its number, the length of its argument, PAGE_IS_HUGE."""
_SHARED = (b"/dev/shm/", b"/memfd:", b"/SYSV", b"/dev/zero", b"/anon_hugepage")
_HUGE = b"/anon_hugepage"


class SourceMemory:
    """Looks at the memory of large copies.

    Args:
        functions: number → name of the driver's functions that are followed.
        stack: gives the number of the stack above a frame.
        keep: writes what a look showed, as a line of JSON.

    Attributes:
        functions: number of those that copy → which of their arguments may be an address of the host.
        known_sites: stack and function of copies of which enough were looked at.
        known: stacks of which no copy need be looked at any more, as far as is known.
    """

    def __init__(
        self, functions: Mapping[str, str], stack: Callable[[FrameType | None], int], keep: Callable[[bytes], None]
    ) -> None:
        self._stack, self._keep = stack, keep
        self._times: dict[tuple[int, int], int] = {}
        self._left = MOST_SECONDS
        self.known_sites: set[tuple[int, int]] = set()
        self.known: set[int] = set()
        names = {int(number): name for number, name in functions.items()}
        self.functions = {
            number: _ARGUMENTS[plain]
            for number, name in names.items()
            if (plain := name.removesuffix(_PER_THREAD[0]).removesuffix(_PER_THREAD[1])) in _ARGUMENTS
        }

    def look(self, number: int, arguments: Sequence[int], correlation: int, caller: FrameType | None) -> bool:
        """A large copy begins; whether it was looked at.

        Args:
            number: of its function, one of :attr:`functions`.
            arguments: target, source and bytes.
            correlation: id of the call.
            caller: innermost frame of its stack.
        """
        size = arguments[2]
        site = self._stack(caller), number
        times = self._times[site] = self._times.get(site, 0) + 1
        if times == LOOKED_AT[-1]:
            self.known_sites.add(site)
            self.known.add(site[0])
        if times not in LOOKED_AT or self._left <= 0:
            return False
        begun = time.perf_counter()
        try:
            for place in self.functions[number]:
                seen = _memory(arguments[place], size)
                if seen is not None:
                    self._keep(as_json({"correlation": correlation, "bytes": size, **seen}) + b"\n")
                    break
        except OSError:  # no /proc, no descriptor is left, or a policy forbids it
            self._left = 0.0
        self._left -= time.perf_counter() - begun
        return True


class PinnedMemory:
    """Which tensors lie in pinned memory.

    PyTorch, too, gives Python's lock away to ask the driver. So it is not asked again before something is pinned, or
    is pinned no more.

    Args:
        functions: as of :class:`SourceMemory`.

    Attributes:
        functions: numbers of those that pin, or end that; behind each :meth:`forget` must follow.
    """

    def __init__(self, functions: Mapping[str, str]) -> None:
        self.functions = frozenset(int(number) for number, name in functions.items() if _PINS.match(name))
        self._known: dict[int, bool] = {}

    def forget(self) -> None:
        """What was known may be so no more."""
        self._known = {}

    def has(self, tensor: Any) -> bool:
        """Whether a tensor lies there."""
        known, address = self._known, tensor.data_ptr()
        if len(known) > MOST_TENSORS:
            known.clear()
        if address not in known:
            known[address] = bool(tensor.is_pinned())
        return known[address]


def _memory(address: int, size: int) -> dict[str, Any] | None:
    """What lies at an address; ``None`` where that is no memory of the program's own."""
    mapping = _mapping(address, address + size)
    if mapping is None:
        return None
    end, rights, path = mapping
    if rights[:1] != b"r" or path.startswith(b"/dev/nvidia"):
        return None
    pages = _Pages(address, min(address + size, end))
    kind = "shared" if path.startswith(_SHARED) else "file" if path.startswith(b"/") else "anonymous"
    return {
        "mapping": kind,
        "path": path.decode(errors="replace") if kind == "file" else None,
        "pages": pages.count,
        "untouched": pages.untouched(),
        "uncached": pages.uncached() if kind == "file" and _may_ask(path) else None,
        "huge_bytes": pages.bytes if path.startswith(_HUGE) else pages.huge_bytes(),
    }


def _mapping(address: int, stop: int) -> tuple[int, bytes, bytes] | None:
    """End, rights and path of the mapping in which an address lies, with those of its kind that follow without a gap
    until ``stop``: NumPy asks for huge pages behind the first page of an array, which makes two of one."""
    maps = os.open("/proc/self/maps", os.O_RDONLY | os.O_CLOEXEC)
    mapping: tuple[int, bytes, bytes] | None = None
    try:
        rest = b""
        while block := os.read(maps, 1 << 16):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if not lines or _range(lines[-1])[1] <= address:  # they ascend
                continue
            for line in lines:
                first, end = _range(line)
                if end <= address:
                    continue
                fields = line.split(None, 5)
                rights, path = fields[1], fields[5] if len(fields) > 5 else b""
                is_next = mapping == (first, rights, path) if mapping else first <= address
                if not is_next:
                    return mapping
                mapping = end, rights, path
                if end >= stop:
                    return mapping
        return mapping
    finally:
        os.close(maps)


def _range(line: bytes) -> tuple[int, int]:
    first, _, end = line.partition(b" ")[0].partition(b"-")
    return int(first, 16), int(end, 16)


def _may_ask(path: bytes) -> bool:
    """Whether ``mincore`` tells this user which pages of a file are in memory: else it says that all are."""
    try:
        return os.stat(path).st_uid == os.geteuid() or os.access(path, os.W_OK)
    except FileNotFoundError:
        return False


class _Pages:
    """Some pages of a stretch of memory, evenly spread."""

    def __init__(self, address: int, end: int) -> None:
        self._first, self._end = address // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)
        all_pages = self._end - self._first
        if all_pages <= WINDOWS * WINDOW_PAGES:
            self._windows = [(self._first, all_pages)]
        else:
            step = (all_pages - WINDOW_PAGES) // (WINDOWS - 1)
            self._windows = [(self._first + number * step, WINDOW_PAGES) for number in range(WINDOWS)]
        self.count = sum(pages for _, pages in self._windows)
        self.bytes = all_pages * mmap.PAGESIZE

    def untouched(self) -> int:
        """How many the program has no memory for yet: the first touch of each is a page fault."""
        there = 0
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for first, pages in self._windows:
                entries = memoryview(os.pread(pagemap, pages * _PAGEMAP_BYTES, first * _PAGEMAP_BYTES)).cast("Q")
                there += sum(entry >> _PRESENT for entry in entries)
        finally:
            os.close(pagemap)
        return self.count - there

    def uncached(self) -> int:
        """How many of a file are not in memory: they come from the disk."""
        there = 0
        for first, pages in self._windows:
            answers = (ctypes.c_ubyte * pages)()
            if _LIBRARY.mincore(first * mmap.PAGESIZE, pages * mmap.PAGESIZE, answers):
                raise OSError(ctypes.get_errno(), "mincore failed")
            there += sum(answer & 1 for answer in answers)
        return self.count - there

    def huge_bytes(self) -> int | None:
        """How much of it lies in huge pages; ``None`` where the kernel does not say it."""
        regions = (ctypes.c_uint64 * (3 * _MOST_REGIONS))()
        bounds = self._first * mmap.PAGESIZE, self._end * mmap.PAGESIZE
        asked = (ctypes.c_uint64 * 12)(
            _SCAN_BYTES, 0, *bounds, 0, ctypes.addressof(regions), _MOST_REGIONS, 0, 0, _IS_HUGE, 0, _IS_HUGE
        )
        pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        try:
            count = _LIBRARY.ioctl(pagemap, _SCAN, ctypes.byref(asked))
        finally:
            os.close(pagemap)
        if count < 0:
            return None
        return sum(regions[3 * number + 1] - regions[3 * number] for number in range(count))


def _calls() -> Any:
    """mincore and ioctl of the C library."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    library.ioctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)
    return library


_LIBRARY = _calls()


def of_site(looks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the looks at the copies of a site showed, as fields of its row; nothing where there was none. Where they
    differ, the memory of which most was copied counts."""
    copied: dict[tuple[str, str | None], int] = {}
    for look in looks:
        memory = look["mapping"], look["path"]
        copied[memory] = copied.get(memory, 0) + look["bytes"]
    if not copied:
        return {}
    mapping, path = max(copied, key=lambda memory: copied[memory])
    chosen = [look for look in looks if (look["mapping"], look["path"]) == (mapping, path)]
    return {
        "mapping": mapping,
        "mapped_file": path,
        "untouched_share": _share(chosen, "untouched", "pages"),
        "uncached_share": _share(chosen, "uncached", "pages"),
        "huge_share": _share(chosen, "huge_bytes", "bytes"),
    }


def _share(looks: Sequence[Mapping[str, Any]], part: str, whole: str) -> float | None:
    if any(look[part] is None for look in looks):
        return None
    return min(float(sum(look[part] for look in looks) / sum(look[whole] for look in looks)), 1.0)


def reads_new_pages_of_a_file(row: Mapping[str, Any]) -> bool:
    """Whether the copies of a site's row come out of a mapped file of which the program had touched less than all: each
    further page is a fault."""
    return bool(row["direction"] == "h2d" and row["mapping"] == "file" and row["untouched_share"] != 0)
