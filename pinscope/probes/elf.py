"""Which functions a shared library exports, and where they are: in its file, and in a running process (elf(5))."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Collection
from functools import partial

from pinscope.probes.proc import HERE, Answer, Proc

MACHINES = {"x86_64": 62, "aarch64": 183}
"""ELF numbers of the processors that the probe knows, by the name that ``uname -m`` gives."""
MOST_TABLE_BYTES = 4 * 2**20
"""Libraries whose tables are larger are refused; those of the driver have some 100 KB."""

_CODE = re.compile(
    # start, end, place in the file, inode and path of what is mapped to be executed
    r"^([0-9a-f]{1,16})-([0-9a-f]{1,16}) r-xp ([0-9a-f]{1,16}) [0-9a-f]+:[0-9a-f]+ ([0-9]{1,20}) +(/.*)$",
    re.ASCII | re.MULTILINE,
)
_HEADER, _SECTION, _SEGMENT, _SYMBOL = map(struct.Struct, ("<16s2HI3QI6H", "<2I4Q2I2Q", "<2I6Q", "<I2BH2Q"))
"""For 64 bits, as on all machines that CUDA runs on."""
_MAGIC, _FORM = b"\x7fELF", b"\x02\x01"
"""What a file begins with; of the rest: 64 bits, least significant byte first."""
_LOAD, _EXECUTABLE, _DYNAMIC_SYMBOLS, _FUNCTION, _KIND_BITS = 1, 1, 11, 2, 0xF
_LONGEST_NAME = 64


def function_offsets(descriptor: int, names: Collection[str], machine: str) -> Answer[dict[str, int]]:
    """Offsets in the open file of those of the named functions that the library exports.

    The library must be for this ``machine``, as ``uname -m`` calls it.
    """
    if is_for_another_processor(descriptor, machine):
        return Answer.missing(f"it is made for another processor than {machine}")
    try:
        return Answer(_offsets(lambda offset, count: os.pread(descriptor, count, offset), names))
    except (ValueError, struct.error, IndexError):
        return Answer.missing(f"it is not a shared library for {machine} with a table of dynamic symbols")
    except OSError as error:
        return Answer.missing(f"it cannot be read: {error.strerror or error}")


def is_for_another_processor(descriptor: int, machine: str) -> bool:
    """True if a file is a program or library, and not for this ``machine``, such as a 32-bit one on x86_64."""
    try:
        begin = os.pread(descriptor, 20, 0)
    except OSError:
        return False
    form, built_for = begin[4:6], int.from_bytes(begin[18:20], "little")
    return begin.startswith(_MAGIC) and len(begin) == 20 and (form, built_for) != (_FORM, MACHINES.get(machine))


def addresses_of(pid: int, names: Collection[str], libraries: re.Pattern[str], proc: Proc = HERE) -> dict[str, int]:
    """Functions that libraries of a process export → their addresses there; those that are not found are left out.

    The process sees the same files as this one; ``libraries`` is to be found in the path of a file that is looked at.
    """
    addresses = dict[str, int]()
    for start, end, begin, inode, path in _CODE.findall(proc.read(f"/proc/{pid}/maps").value or ""):
        key = proc.file_key(path).value
        if libraries.search(path) and key is not None and key[1] == int(inode):  # else another file has its name
            try:
                offsets = _offsets(partial(_part_of, path, proc), names)
            except (ValueError, struct.error, IndexError):  # it is no library
                continue
            first, last, skipped = (int(number, 16) for number in (start, end, begin))
            for name, offset in offsets.items():
                if first <= (address := first + offset - skipped) < last:
                    addresses.setdefault(name, address)
    return addresses


def _part_of(path: str, proc: Proc, offset: int, count: int) -> bytes:
    return proc.part(path, offset, count).value or b""


def _offsets(read: Callable[[int, int], bytes], names: Collection[str]) -> dict[str, int]:
    """Where in a file the named functions begin; ``read`` gives so many of its bytes from an offset on."""

    def part(offset: int, count: int) -> bytes:
        if count > MOST_TABLE_BYTES or offset >= 2**63:
            raise ValueError("no table of a library is that long")
        return read(offset, count)

    header = _HEADER.unpack(part(0, _HEADER.size))
    if not header[0].startswith(_MAGIC + _FORM):
        raise ValueError("another kind of file")
    segments = _SEGMENT.iter_unpack(part(header[5], _SEGMENT.size * header[10]))
    code = [segment[2:6] for segment in segments if segment[0] == _LOAD and segment[1] & _EXECUTABLE]
    sections = list(_SECTION.iter_unpack(part(header[6], _SECTION.size * header[12])))
    symbols = next((section for section in sections if section[1] == _DYNAMIC_SYMBOLS), None)
    if symbols is None:
        raise ValueError("no dynamic symbols")
    texts = part(*sections[symbols[6]][4:6])
    offsets: dict[str, int] = {}
    for name_at, info, _, section, address, _ in _SYMBOL.iter_unpack(part(*symbols[4:6])):
        name = texts[name_at : name_at + _LONGEST_NAME].partition(b"\0")[0].decode("ascii", "replace")
        if info & _KIND_BITS == _FUNCTION and section and name in names:  # section 0: wanted from another library
            for at, start, _, size in code:
                if start <= address < start + size:
                    offsets.setdefault(name, at + address - start)
    return offsets
