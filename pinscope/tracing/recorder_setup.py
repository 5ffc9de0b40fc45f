"""Asks cupti-python what the recorder and the reader of its spool must know: ``recorder_setup.py DESCRIPTOR``, to which
it writes that as JSON; with ``LIBRARY`` behind it of this file of CUPTI, which a running program has loaded.

It runs by its path, in a process of its own, with the interpreter of the traced program: so the program imports
neither cupti-python nor NumPy for our sake. Where something is missing, the JSON says what, as ``problem``:
``no driver``, without which nothing else is of use; else ``missing``, the package; else ``refused``, what it says.
"""

import ctypes
import json
import re
import sys
from typing import Any

FOLLOWED = re.compile(
    r"cu(Memcpy\w*|(Ctx|Stream|Event)Synchronize|MemAllocHost|MemHostAlloc|MemFreeHost|MemHost(Un)?[rR]egister"
    r"|MemAllocManaged|MemPrefetch\w*|MemDiscardAndPrefetch\w*"
    r"|GraphLaunch|Launch(Cooperative)?Kernel(Ex)?)(_v2)?(_ptsz|_ptds)?"
)
"""The driver's functions whose stack and duration are kept. Each of the runtime's that does such a thing calls one of
these, under its own correlation id."""
UNWATCHED = re.compile(
    r"cu(da)?(GetDevice|CtxGet(Device|Current)|\w*(Query|IsCapturing|Occupancy\w*|GetCaptureInfo)|StreamGet\w+"
    r"|DeviceGetAttribute|GetError(String|Name)|CreateChannelDesc)(_(v\d+|ptsz|ptds))*"
    r"|cu(Pointer|Func|Kernel)GetAttributes?"
)
"""Functions whose errors are not noticed: libraries ask by them in nearly every operation, and an error is an answer,
such as that a thread uses no GPU yet. The last three return no error."""
LATER = {"UNIFIED_MEMORY_COUNTER": "unified_memory_counter"}
"""As of :data:`RECORDS`, of those that are kept from the first allocation of managed memory on."""
RECORDS = {"MEMCPY": "memcpy", "CONCURRENT_KERNEL": "kernel", "MEMORY2": "memory", **LATER}
"""Kind of activity → name of its record. CUPTI appends fields to it from version to version (cupti_activity.h and
cupti_activity_deprecated.h), so their places are those of any layout that cupti-python knows. How long a record is
follows from the library that writes it, which pip may have made newer or older than cupti-python."""
_BYTES = {
    130000: {"MEMCPY": 96, "CONCURRENT_KERNEL": 216, "MEMORY2": 128, "UNIFIED_MEMORY_COUNTER": 104},
    130100: {"MEMCPY": 96, "CONCURRENT_KERNEL": 224, "MEMORY2": 128, "UNIFIED_MEMORY_COUNTER": 104},
}
"""CUPTI's version without its update → bytes of its records. From 13.2 on it says them itself."""
_NO_DRIVER = "driver is not found"
"""What cupti-python says without a driver."""


def describe() -> dict[str, Any]:
    """What CUPTI is here; raises whatever cupti-python raises."""
    if len(sys.argv) > 2:  # first: cupti-python is given what is loaded under the name of its own
        ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
    from cupti import cupti  # noqa: PLC0415, TID251 - the door

    cupti.get_timestamp()  # loads the library, and the driver
    kinds = {name: int(getattr(cupti.ActivityKind, name)) for name in RECORDS}
    library = _library()
    written = {name: _written_bytes(ctypes.CDLL(library), name, kind) for name, kind in kinds.items()}
    return {
        "library": library,
        "layouts": {str(kinds[name]): _layout(cupti, record, written[name]) for name, record in RECORDS.items()},
        "kinds": kinds,
        "activities": sorted(kind for name, kind in kinds.items() if name not in LATER),
        "callback": _layout(cupti, "callback_data"),
        "functions": {
            int(function): function.name
            for function in cupti.driver_api_trace_cbid
            if FOLLOWED.fullmatch(function.name)
        },
        "unwatched": [
            [domain, int(function)]
            for domain, functions in ((1, cupti.driver_api_trace_cbid), (2, cupti.runtime_api_trace_cbid))
            for function in functions
            if UNWATCHED.fullmatch(function.name)
        ],
    }


def _library() -> str:
    """The file that cupti-python has loaded."""
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libcupti" in line}
    if len(paths) > 1:
        raise OSError(f"it loads another library than the program has: {' and '.join(sorted(paths))}")
    return paths.pop()


def _written_bytes(library: Any, name: str, kind: int) -> int | None:
    """Length of the records that CUPTI writes; ``None`` before 13.0, where it is that of cupti-python's newest."""
    size, version = ctypes.c_size_t(), ctypes.c_uint32()
    if hasattr(library, "cuptiActivityGetStructSize"):
        failed = library.cuptiActivityGetStructSize(kind, 0, ctypes.byref(size))
        return None if failed else size.value
    library.cuptiGetVersion(ctypes.byref(version))
    return _BYTES.get(version.value // 100 * 100, {}).get(name)


def _layout(cupti: Any, record: str, written: int | None = None) -> dict[str, Any]:
    """Size and fields of a record: name → offset and NumPy's type."""
    pattern = re.compile(rf"activity_{record}(\d*)_dtype" if record != "callback_data" else r"callback_data(\d*)_dtype")
    versions = {int(match[1] or 1): name for name in dir(cupti) if (match := pattern.fullmatch(name))}
    kind = getattr(cupti, versions[max(versions)])
    fields = {name: (offset, type_.str) for name, (type_, offset, *_) in kind.fields.items()}
    return {"size": written or kind.itemsize, "fields": fields}


def main() -> None:
    """Write it; never fails."""
    try:
        answer = describe()
    except Exception as error:  # noqa: BLE001 - its classes are cupti-python's own
        answer = _problem(error)
    with open(int(sys.argv[1]), "w", encoding="ascii") as file:  # noqa: PTH123
        json.dump(answer, file)


def _problem(error: Exception) -> dict[str, Any]:
    said = f"{type(error).__name__}: {error}"
    if _NO_DRIVER in said or not _has_driver():
        return {"problem": "no driver", "reason": said}
    if isinstance(error, ModuleNotFoundError):
        return {"problem": "missing", "reason": f"no module {error.name}"}
    return {"problem": "refused", "reason": said}


def _has_driver() -> bool:
    """Its library is loaded, and nothing of CUDA begins by that."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
