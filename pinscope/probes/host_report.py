"""What a process says of its own pinned memory: ``pinscope.report_host_memory()`` writes it, the live view reads it.

It stands in memory that the process itself holds open (memfd_create(2)). So it is certain whose words these are,
nothing is left when the process ends, and they can be read in containers as well.
"""

from __future__ import annotations

import gc
import json
import math
import mmap
import os
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pinscope.errors import InvalidParameter, NotPossible
from pinscope.probes.proc import Answer, Proc
from pinscope.units import parse_bytes

_NAME = "pinscope-host-memory"
MARK = f"/memfd:{_NAME} (deleted)"
"""What the kernel calls that memory in /proc/PID/fd."""
MOST_BYTES = mmap.PAGESIZE
_SUM_LENGTH = 8
"""Characters of the checksum before the text: a reader may come while the process writes."""


@dataclass(frozen=True)
class HostReport:
    """What a process said.

    Attributes:
        at: when.
        registered_bytes: memory that it has registered; ``None`` if it did not say.
        held_bytes: allocator → pinned memory that it has, in use or kept.
        kept_bytes: allocator → the part of it that nothing uses, of those that say it.
        missing: allocator → why it does not say that.
    """

    at: datetime
    registered_bytes: int | None
    held_bytes: Mapping[str, int]
    kept_bytes: Mapping[str, int]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        """So much memory the process has, if all that is true still."""
        return max(self.registered_bytes or 0, sum(self.held_bytes.values()))


@lru_cache(maxsize=1)  # a forked child lets go of that of its parent
def _page(process: int) -> mmap.mmap:
    """A page of memory of this process that others can read by its descriptor; a forked child has one of its own.

    Raises :class:`NotPossible` where the system has none.
    """
    del process
    try:
        descriptor = os.memfd_create(_NAME)
        try:
            os.ftruncate(descriptor, MOST_BYTES)
            # It keeps a descriptor of its own. That it is mapped shows in statm, by which a series sees a change.
            return mmap.mmap(descriptor, MOST_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NotPossible(f"this process cannot say what it holds: memfd_create: {error.strerror}") from None


def report_host_memory(registered: int | str | None = None) -> HostReport:
    """See :func:`pinscope.report_host_memory`."""
    own = None if registered is None else parse_bytes(registered)
    if own is not None and own < 0:
        raise InvalidParameter(f"registered is {own} bytes; it must be 0 or more")
    answers = {name: ask(sys.modules[module]) for module, (name, ask) in _ALLOCATORS.items() if module in sys.modules}
    said = {name: answer.value for name, answer in answers.items() if answer.value is not None}
    kept = {name: kept for name, (_, kept) in said.items() if kept is not None}
    arrays = getattr(sys.modules.get("pinscope.lab.pinned_array"), "registered_bytes", int)()
    report = HostReport(
        at=datetime.now(UTC),
        registered_bytes=None if own is None and not arrays else (own or 0) + arrays,
        held_bytes={name: held for name, (held, _) in said.items()},
        kept_bytes=kept,
        missing={name: answer.reason or _ALL_IN_USE for name, answer in answers.items() if name not in kept},
    )
    said_here = {
        "pid": os.getpid(),
        "at": report.at.timestamp(),
        "registered": report.registered_bytes,
        "held": report.held_bytes,
        "kept": report.kept_bytes,
    }
    text = json.dumps(said_here).encode()
    _page(os.getpid())[:] = (f"{zlib.crc32(text):0{_SUM_LENGTH}x}".encode() + text).ljust(MOST_BYTES, b"\0")
    return report


_Amounts = tuple[int, int | None]
"""What an allocator holds, and what it keeps of that, where it says so."""
_COUNTS_FREED = (2, 13)
"""The first release of PyTorch whose count of bytes in use falls with each tensor that is freed (pytorch#171662)."""
_ALL_IN_USE = "PyTorch before 2.13 counts freed memory as in use"


def _pytorch(torch: Any) -> Answer[_Amounts]:
    """PyTorch's allocator of pinned memory, which has none before CUDA is used."""
    stats: Mapping[str, int] = getattr(torch.cuda.memory, "host_memory_stats", dict)()
    if not stats and not torch.cuda.is_initialized():
        return Answer((0, 0))
    held, used = stats.get("allocated_bytes.current"), stats.get("active_bytes.current")
    if held is None or used is None:  # older releases call something else so
        return Answer.missing(f"PyTorch {torch.__version__} does not count what its allocator holds")
    release = tuple(int(part) for part in torch.__version__.split(".")[:2] if part.isdigit())
    known = not held or (release >= _COUNTS_FREED and "dev" not in torch.__version__)
    return Answer((held, max(0, held - used) if known else None))


def _cupy(cupy: Any) -> Answer[_Amounts]:
    """CuPy's default pool of pinned memory.

    The pool only counts its free blocks. The blocks themselves are what it refers to: the free ones in lists by size,
    the used ones in a set, or by address before CuPy 14.
    """
    pool = cupy.get_default_pinned_memory_pool()
    held = [table for table in gc.get_referents(pool) if isinstance(table, (dict, set))]
    entries = [entry for table in held for entry in list(table.values() if isinstance(table, dict) else table)]
    free = [block.size for entry in entries if isinstance(entry, list) for block in entry]
    used = [entry.size for entry in entries if not isinstance(entry, list)]
    if len(held) != 2 or len(free) != pool.n_free_blocks():
        return Answer.missing(f"CuPy {cupy.__version__} does not show the blocks of its pool")
    return Answer((sum(free) + sum(used), sum(free)))


_ALLOCATORS = {"torch": ("PyTorch", _pytorch), "cupy": ("CuPy", _cupy)}
"""Module → what its allocator is called, and what asks it."""
_NAMES = {name for name, _ in _ALLOCATORS.values()}


def read_report(pid: int, descriptor: str, own_pid: int | None, proc: Proc) -> HostReport | None:
    """What a process says; ``None`` if that makes no sense, or is what another one said, as after a fork.

    ``descriptor`` is its number of the memory that :data:`MARK` names; in a container it knows itself by ``own_pid``.
    """
    for _ in range(2):  # once more if it was being written
        content = proc.memory_of(f"/proc/{pid}/fd/{descriptor}", MOST_BYTES).value or b""
        text = content.rstrip(b"\0")
        if text[:_SUM_LENGTH] == f"{zlib.crc32(text[_SUM_LENGTH:]):0{_SUM_LENGTH}x}".encode():
            return _parse(text[_SUM_LENGTH:], own_pid)
    return None


def _parse(text: bytes, own_pid: int | None) -> HostReport | None:
    """The process decides what stands there: it is checked like a stranger's."""
    try:
        said = json.loads(text)
        at = datetime.fromtimestamp(said["at"], UTC)
        registered, held, kept = said["registered"], said["held"], said["kept"]
        pid = said["pid"]
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return None
    tables = all(isinstance(table, dict) and table.keys() <= _NAMES for table in (held, kept))
    if pid != own_pid or not tables or not kept.keys() <= held.keys():
        return None
    amounts = [registered or 0, *held.values(), *kept.values()]
    if not all(type(amount) is int and 0 <= amount <= math.ldexp(1, 63) for amount in amounts):
        return None
    return HostReport(at, registered, held, kept) if all(kept[name] <= held[name] for name in kept) else None
