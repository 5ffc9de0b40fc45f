"""The processor's caches, as /sys shows them."""

from __future__ import annotations

import re

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc

_PROCESSORS = "/sys/devices/system/cpu"
_PROCESSOR = re.compile(r"cpu[0-9]+", re.ASCII)
_SIZE = re.compile(r"(?P<number>[0-9]{1,12})(?P<unit>[KM]?)", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20}


def last_level_cache_bytes(proc: Proc = HERE) -> Answer[int]:
    """Bytes of the last-level caches of all processors together; a virtual machine may be shown other caches.

    Each cache is counted once, whichever processors share it (Documentation/ABI/stable/sysfs-devices-system-cpu).
    """
    found: dict[tuple[int, str], int] = {}
    for processor in proc.names(_PROCESSORS):
        if _PROCESSOR.fullmatch(processor) is None:
            continue
        folder = f"{_PROCESSORS}/{processor}/cache"
        for index in proc.names(folder):
            level = proc.number(f"{folder}/{index}/level").value
            size = proc.line(f"{folder}/{index}/size").then(_size).value
            shared = proc.line(f"{folder}/{index}/shared_cpu_list").value
            if level is not None and size is not None:
                found[level, shared or processor] = size
    if not found:
        return Answer.missing(f"{_PROCESSORS} shows no caches")
    last = max(level for level, _ in found)
    return Answer(sum(size for (level, _), size in found.items() if level == last))


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    return int(match["number"]) * _UNITS[match["unit"]] if match is not None else None
