"""Where in a shared library's file its functions begin: what the kernel wants to know for a uprobe.

A small reader of its own rather than a library's: a user who can start a container can put a file of any content in
the driver library's place, and root reads it. So every read is bounded, and nothing in the file makes it loop. Format:
elf(5); System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping

from pinscope.probes.answer import Answer

MACHINES: Mapping[str, int] = {"x86_64": 62, "aarch64": 183}
"""The ELF numbers of the processors that :mod:`pinscope.probes.uprobes` knows."""
MOST_TABLE_BYTES = 4 * 2**20
"""Libraries whose tables are larger are refused; those of the driver have some 100 KB."""
MOST_SEGMENTS = 64
"""Likewise: the driver's library has some 10."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_MAGIC = b"\x7fELF"
_FORM = b"\x02\x01"
"""Of what follows: 64 bits, least significant byte first. Every processor of ``MACHINES`` has it so."""
_LONGEST_NAME = 64
_LOAD, _EXECUTABLE, _DYNAMIC_SYMBOLS, _FUNCTION, _KIND_BITS = 1, 1, 11, 2, 0xF

Load = tuple[int, int, int]
"""Offset in the file, address, and bytes of an executable part."""


def function_offsets(descriptor: int, names: Collection[str], machine: str) -> Answer[dict[str, int]]:
    """Offsets in the file of those of the named functions that the library exports.

    Args:
        descriptor: the open file.
        names: functions to look for.
        machine: the processor the library must be for, as ``uname -m`` calls it.
    """
    if is_for_another_processor(descriptor, machine):
        return Answer.missing(f"it is made for another processor than {machine}")
    try:
        return Answer(_offsets(descriptor, {name.encode() for name in names}, MACHINES[machine]))
    except (ValueError, struct.error):
        return Answer.missing(f"it is not a shared library for {machine} with a table of dynamic symbols")
    except OSError as error:
        return Answer.missing(f"it cannot be read: {error.strerror or error}")


def is_for_another_processor(descriptor: int, machine: str) -> bool:
    """True if a file is a program or library, and not for this processor, such as a 32-bit one on x86_64.

    Args:
        descriptor: the open file.
        machine: the processor, as ``uname -m`` calls it.
    """
    try:
        begin = os.pread(descriptor, 20, 0)
    except OSError:
        return False
    form, built_for = begin[4:6], int.from_bytes(begin[18:20], "little")
    return begin.startswith(_MAGIC) and len(begin) == 20 and (form, built_for) != (_FORM, MACHINES.get(machine))


def _offsets(descriptor: int, names: Collection[bytes], machine: int) -> dict[str, int]:
    header = _HEADER.unpack(_read(descriptor, 0, _HEADER.size))
    identity, _, built_for, _, _, segments_at, sections_at = header[:7]
    segment_bytes, segments, section_bytes, sections = header[9:13]
    if not identity.startswith(_MAGIC + _FORM) or built_for != machine:
        raise ValueError("another kind of file")
    if (segment_bytes, section_bytes) != (_SEGMENT.size, _SECTION.size) or segments > MOST_SEGMENTS:
        raise ValueError("another kind of table")
    loads = list(_executable(_read(descriptor, segments_at, segments * segment_bytes)))
    table = list(_SECTION.iter_unpack(_read(descriptor, sections_at, sections * section_bytes)))
    symbols = next((section for section in table if section[1] == _DYNAMIC_SYMBOLS), None)
    if symbols is None or symbols[6] >= len(table) or symbols[9] != _SYMBOL.size:
        raise ValueError("no dynamic symbols")
    strings = table[symbols[6]]
    text = _read(descriptor, strings[4], strings[5])
    offsets: dict[str, int] = {}
    for name_at, info, _, section, address, _ in _SYMBOL.iter_unpack(_read(descriptor, symbols[4], symbols[5])):
        if info & _KIND_BITS != _FUNCTION or section == 0:  # 0: wanted from another library
            continue
        name = text[name_at : name_at + _LONGEST_NAME].partition(b"\0")[0]
        if name not in names or name.decode() in offsets:
            continue
        offset = next((at + address - start for at, start, size in loads if start <= address < start + size), None)
        if offset is not None:
            offsets[name.decode()] = offset
    return offsets


def _executable(segments: bytes) -> Iterator[Load]:
    for kind, flags, at, address, _, bytes_in_file, _, _ in _SEGMENT.iter_unpack(segments):
        if kind == _LOAD and flags & _EXECUTABLE:
            yield at, address, bytes_in_file


def _read(descriptor: int, offset: int, size: int) -> bytes:
    if size > MOST_TABLE_BYTES or offset >= 2**63:
        raise ValueError("no table of a library is that long")
    data = os.pread(descriptor, size, offset)
    if len(data) < size:
        raise ValueError("the file ends early")
    return data
