"""Asks cupti-python what the recorder and the reader of its spool must know, and prints it as JSON.

It runs by its path, in a process of its own, with the interpreter of the traced program: so the program imports
neither cupti-python nor NumPy for our sake. Where something is missing, the JSON says what, as ``problem``.
"""

import json
import re
import sys
from typing import Any

CALLS = {
    "runtime": re.compile(
        r"cuda(Memcpy\w*|(Device|Stream|Event|Thread)Synchronize|MallocHost|HostAlloc|FreeHost|Host(Un)?[rR]egister"
        r"|GraphLaunch)_(ptsz_|ptds_)?v\d+"
    ),
    "driver": re.compile(
        r"cu(Memcpy\w*|(Ctx|Stream|Event)Synchronize|MemAllocHost|MemHostAlloc|MemFreeHost|MemHost(Un)?[rR]egister"
        r"|GraphLaunch)(_v2)?(_ptsz|_ptds)?"
    ),
}
"""The functions whose stack and duration are kept."""
RECORDS = {
    "MEMCPY": "memcpy", "RUNTIME": "api", "DRIVER": "api", "CONCURRENT_KERNEL": "kernel", "MEMORY2": "memory",
}  # fmt: skip
"""Kind of activity → name of its record, of which cupti-python gives the newest layout."""


def describe() -> dict[str, Any]:
    """What CUPTI is here; raises whatever cupti-python raises."""
    from cupti import cupti  # noqa: PLC0415, TID251 - the door

    cupti.get_timestamp()  # loads the library, and the driver
    kinds = {name: int(getattr(cupti.ActivityKind, name)) for name in RECORDS}
    followed: dict[str, dict[int, str]] = {}
    unwanted: dict[str, list[int]] = {}
    for domain, names in CALLS.items():
        every = {int(each): each.name for each in getattr(cupti, f"{domain}_api_trace_cbid")}
        followed[domain] = {number: name for number, name in every.items() if names.fullmatch(name)}
        unwanted[domain] = sorted(number for number, name in every.items() if number and number not in followed[domain])
    return {
        "library": _library(),
        "layouts": {str(kinds[name]): _layout(cupti, record) for name, record in RECORDS.items()},
        "kinds": kinds,
        "activities": sorted(kinds.values()),
        "callback": _layout(cupti, "callback_data"),
        **followed,
        "unwanted_runtime": unwanted["runtime"],
        "unwanted_driver": unwanted["driver"],
    }


def _library() -> str:
    """The file that cupti-python has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        found = [line.split(maxsplit=5)[5].strip() for line in maps if "libcupti" in line]
    return found[0]


def _layout(cupti: Any, record: str) -> dict[str, Any]:
    """Size and fields of a record: name → offset and NumPy's type."""
    pattern = re.compile(rf"activity_{record}(\d*)_dtype" if record != "callback_data" else r"callback_data(\d*)_dtype")
    versions = {int(found[1] or 1): name for name in dir(cupti) if (found := pattern.fullmatch(name))}
    kind = getattr(cupti, versions[max(versions)])
    fields = {name: (offset, type_.str) for name, (type_, offset, *_) in kind.fields.items()}
    return {"size": kind.itemsize, "fields": fields}


def main() -> None:
    """Print it; never fails."""
    try:
        answer = describe()
    except ModuleNotFoundError as error:
        answer = {"problem": "missing", "reason": f"no module {error.name}"}
    except Exception as error:  # noqa: BLE001 - its classes are cupti-python's own
        answer = {"problem": "refused", "reason": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
