"""Where a function is in a running process, from the file of the library that it has mapped."""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator

from pinscope.probes.proc import HERE, Proc

_FILE = re.compile(
    # start of what is mapped from a file's beginning, inode and path
    r"^([0-9a-f]{1,16})-[0-9a-f]{1,16} \S{4} 0+ [0-9a-f]+:[0-9a-f]+ ([0-9]{1,20}) +(/.*)$",
    re.ASCII | re.MULTILINE,
)
_HEADER, _SECTION, _SEGMENT, _SYMBOL = map(struct.Struct, ("<16s2HI3QI6H", "<2I4Q2I2Q", "<2I6Q", "<I2BH2Q"))
"""Of elf(5), for 64 bits, as on all machines that CUDA runs on."""
_SYMBOLS, _LOAD = 11, 1
"""Kinds of a section, and of a segment."""
_PAGE = 4096


def addresses_of(pid: int, names: Collection[str], libraries: re.Pattern[str], proc: Proc = HERE) -> dict[str, int]:
    """Functions that libraries of a process export → their addresses there; those that are not found are left out.

    Args:
        pid: the process, which sees the same files as this one.
        names: of the functions.
        libraries: what is to be found in the path of a file that is looked at.
        proc: where /proc is read.
    """
    wanted, addresses = {name.encode(): name for name in names}, dict[str, int]()
    for start, inode, path in _FILE.findall(proc.read(f"/proc/{pid}/maps").value or ""):
        key = proc.file_key(path).value
        if libraries.search(path) and key is not None and key[1] == int(inode):  # else another file has its name
            try:
                for name, address in _exported(path, proc):
                    if name in wanted:
                        addresses.setdefault(wanted[name], int(start, 16) + address)
            except (struct.error, IndexError):  # it is no library
                continue
    return addresses


def _exported(path: str, proc: Proc) -> Iterator[tuple[bytes, int]]:
    """What a library exports, and how many bytes behind the beginning of the file that is mapped."""

    def part(offset: int, count: int) -> bytes:
        return proc.part(path, offset, count).value or b""

    header = _HEADER.unpack(part(0, _HEADER.size))
    segments = list(_SEGMENT.iter_unpack(part(header[5], _SEGMENT.size * header[10])))
    sections = list(_SECTION.iter_unpack(part(header[6], _SECTION.size * header[12])))
    first = min((address for kind, _, _, address, *_ in segments if kind == _LOAD), default=0) // _PAGE * _PAGE
    for _, kind, _, _, begin, size, link, *_ in sections:
        if kind == _SYMBOLS:
            texts = part(*sections[link][4:6])
            for name, _, _, _, value, _ in _SYMBOL.iter_unpack(part(begin, size)):
                if value:
                    yield texts[name : texts.index(b"\0", name)], value - first
