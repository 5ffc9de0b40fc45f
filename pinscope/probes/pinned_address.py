"""Where allocated memory lies that the trace gave no address of: asked of the program's memory and mappings.

cuMemHostAlloc writes the address where its caller wants it, often to a local variable that is soon overwritten. So
what stands there is believed only if pinned memory of that size can lie at it. Failing that, a mapping of exactly the
size is taken: which of several equal pieces is which does not change the figures.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pinscope.probes.bounded import read_at
from pinscope.probes.proc import HERE, Proc

MOST_LOOKED_FOR = 200
"""Pieces of one process in one go; of the rest the address stays unknown."""

_MAPPING = re.compile(
    # What cudaHostAlloc returns lies in shared anonymous memory, write-combined memory in the driver's device file
    # (measured on an H200).
    r"^([0-9a-f]+)-([0-9a-f]+) rw[-x]s [0-9a-f]+ [0-9a-f:]+ (\d+) +(/dev/zero \(deleted\)|/dev/nvidia\w*)$",
    re.ASCII | re.MULTILINE,
)
_POINTER = struct.Struct("=Q")
_PRESENT, _OF_A_FILE = 1 << 63, 1 << 61
"""Bits of an entry in /proc/PID/pagemap (Linux documentation, admin-guide/mm/pagemap)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A piece of unknown address."""

    number: int
    pointer: int
    """Where the call was to put the address."""
    bytes: int


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    inode: int
    anonymous: bool


def find_addresses(pid: int, wanted: Iterable[Wanted], taken: Collection[int], proc: Proc = HERE) -> Mapping[int, int]:
    """Addresses of pieces, as far as they can be found, by the pieces' numbers.

    Args:
        pid: of the process.
        wanted: its pieces of unknown address, oldest first.
        taken: addresses of its other pieces.
        proc: where /proc is read.
    """
    mappings = [
        _Mapping(int(start, 16), int(end, 16), int(inode), name.startswith("/dev/zero"))
        for start, end, inode, name in _MAPPING.findall(proc.read(f"/proc/{pid}/maps").value or "")
    ]
    found: dict[int, int] = {}
    used = set(taken)
    for piece in list(wanted)[:MOST_LOOKED_FOR]:
        address = _pointed_at(pid, piece, mappings, used)
        if address is None:
            address = _mapped_alone(piece, mappings, used)
        if address is not None:
            found[piece.number] = address
            used.add(address)
    return found


def _pointed_at(pid: int, piece: Wanted, mappings: Iterable[_Mapping], used: Collection[int]) -> int | None:
    try:
        if not _is_at_hand(pid, piece.pointer):
            return None
        address = _word(f"/proc/{pid}/mem", piece.pointer)
    except (OSError, OverflowError, struct.error):  # ended, or not mapped any more
        return None
    fits = any(one.start <= address and address + piece.bytes <= one.end for one in mappings)
    return address if fits and address not in used else None


def _is_at_hand(pid: int, pointer: int) -> bool:
    """Whether reading there waits for nobody.

    A page of a file may have to be fetched by the process that serves that file, which may be the author's own and
    never answer (FUSE, userfaultfd). So only pages are read that are in memory and are no file's: the stack, the heap,
    and those of a program's variables that were written to, which are copies of their own. What the driver has just
    written to is all of that, unless it lies in shared memory.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    if pointer % page > page - _POINTER.size:  # it goes on in the next page
        return False
    entry = _word(f"/proc/{pid}/pagemap", pointer // page * _POINTER.size)
    return bool(entry & _PRESENT) and not entry & _OF_A_FILE


def _word(path: str, offset: int) -> int:
    (word,) = _POINTER.unpack(read_at(path, offset, _POINTER.size))
    return int(word)


def _mapped_alone(piece: Wanted, mappings: Iterable[_Mapping], used: Collection[int]) -> int | None:
    """The newest mapping that holds such a piece and nothing else."""
    page = os.sysconf("SC_PAGE_SIZE")
    size = -(-piece.bytes // page) * page
    fitting = [one for one in mappings if one.anonymous and one.end - one.start == size and one.start not in used]
    return max(fitting, key=lambda one: one.inode).start if fitting else None
