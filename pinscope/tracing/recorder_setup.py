"""Chooses a library of CUPTI, and asks it what the recorder and the reader of its spool must know: ``recorder_setup.py
DESCRIPTOR [QUESTION]`` writes that to the descriptor as JSON.

It runs in a process of its own, where CUPTI and the driver may load and hang. The question is JSON, too: ``path``, the
folders that the program's Python imports from, if that is not PinScope's, or ``library``, the only one that may be
chosen. Where something is missing, the answer says what, as ``problem``: ``no driver``, without which nothing else is
of use; else ``missing``, a library that fits the driver; else ``refused``, what it says.
"""

import bisect
import ctypes
import glob
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

DRIVER, RUNTIME = 1, 2
"""CUPTI's domains of callbacks."""
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
MOST_FUNCTIONS = 4096
"""Of a domain: CUPTI numbers them from 0 on and never anew; 13.4 has 870."""
LATER = {"UNIFIED_MEMORY_COUNTER"}
"""Of :data:`RECORDS`, those that are kept from the first allocation of managed memory on."""
RECORDS: Mapping[str, tuple[int, Mapping[str, tuple[int, str]]]] = {
    "MEMCPY": (1, {
        "copy_kind": (4, "|u1"), "src_kind": (5, "|u1"), "dst_kind": (6, "|u1"), "flags_": (7, "|u1"),
        "bytes": (8, "<u8"), "start": (16, "<u8"), "end": (24, "<u8"), "device_id": (32, "<u4"),
        "stream_id": (40, "<u4"), "correlation_id": (44, "<u4"),
    }),
    "CONCURRENT_KERNEL": (10, {
        "start": (16, "<u8"), "end": (24, "<u8"), "device_id": (40, "<u4"), "stream_id": (48, "<u4"),
        "correlation_id": (92, "<u4"),
    }),
    "MEMORY2": (49, {
        "memory_operation_type": (4, "<i4"), "memory_kind": (8, "<i4"), "correlation_id": (12, "<u4"),
        "address": (16, "<u8"), "bytes": (24, "<u8"), "timestamp": (32, "<u8"),
    }),
    "UNIFIED_MEMORY_COUNTER": (25, {
        "counter_kind": (4, "<i4"), "value": (8, "<u8"), "start": (16, "<u8"), "end": (24, "<u8"),
        "flags_": (56, "<u4"),
    }),
}  # fmt: skip
"""Kind of activity → its number, and the fields of its record: name → offset and NumPy's type. CUPTI appends fields
from version to version (cupti_activity.h and cupti_activity_deprecated.h, 12.0 to 13.4)."""
CALLBACK = {"callback_site": (0, "<i4"), "function_params": (16, "<i8"), "correlation_id": (64, "<u4")}
"""The same of CUpti_CallbackData (cupti_callbacks.h)."""
_BYTES = (
    (18, (88, 208, 120, 64)),
    (24, (88, 208, 128, 64)),
    (26, (96, 208, 128, 104)),
    (130000, (96, 216, 128, 104)),
    (130100, (96, 224, 128, 104)),
)
"""The first version of CUPTI, as cupti_version.h numbers it → bytes of its :data:`RECORDS`: 12.0, 12.6, 12.8, 13.0 and
13.1. From 13.2 on it says them itself."""
_INSTALLED = "nvidia/cuda_cupti/lib", "nvidia/cu1[23]/lib", "../.."
"""Below a folder of packages: where pip's packages of CUDA 12 and 13 have it, and conda's."""
_TOOLKIT = "extras/CUPTI/lib64", "lib64"
_NAME = "libcupti.so.1[23]"


class Unfit(Exception):  # noqa: N818 - an answer
    """A library that cannot be used, with the reason."""


def describe(path: Iterable[str] = (), library: str | None = None) -> dict[str, Any]:
    """What CUPTI is here.

    Args:
        path: folders that the program's Python imports from, if that is not PinScope's.
        library: the only one that may be chosen.

    Raises:
        FileNotFoundError: none fits the driver.
        Unfit: that which is chosen does not work.
    """
    newest = _driver_version()  # what is newer than that works with no driver as old
    fit = (each for each in _libraries(path) if _major(each[1]) <= newest)
    owner, file = ("program", library) if library else next(fit, ("", ""))
    if not file:
        raise FileNotFoundError(f"no libcupti.so for CUDA {newest} or older")
    try:
        return {"owner": owner, **_answers(file)}
    except (Unfit, OSError, AttributeError) as error:
        raise Unfit(f"{file}: {error}") from None


def _driver_version() -> int:
    """The newest major version of CUDA that it supports."""
    version = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


def _libraries(path: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Whose it is and its file: first the program's own, which it may load as well; the newest of a place first."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = (("program", path, _INSTALLED), ("PinScope", sys.path, _INSTALLED), ("toolkit", homes, _TOOLKIT))
    for owner, folders, below in places:
        for folder in folders:
            if folder and os.path.isabs(folder):  # noqa: PTH117
                names = [name for place in below for name in glob.glob(f"{glob.escape(folder)}/{place}/{_NAME}")]  # noqa: PTH207
                yield from ((owner, os.path.normpath(name)) for name in sorted(names, key=_major, reverse=True))
    for major in (13, 12):  # where the system's loader looks
        with suppress(OSError):
            ctypes.CDLL(f"libcupti.so.{major}")
            yield "toolkit", f"libcupti.so.{major}"


def _major(file: str) -> int:
    """The version of CUDA that a library belongs to."""
    return int(file[-2:])


def _answers(file: str) -> dict[str, Any]:
    """What a library says."""
    library = ctypes.CDLL(file)
    now = ctypes.c_uint64()
    if code := library.cuptiGetTimestamp(ctypes.byref(now)):
        raise Unfit(f"error {code}")
    numbers = {name: number for name, (number, _) in RECORDS.items()}
    names = {domain: _functions(library, domain) for domain in (DRIVER, RUNTIME)}
    followed = {number: name for number, name in names[DRIVER].items() if FOLLOWED.fullmatch(name)}
    if not followed:
        raise Unfit("it names no functions of the driver")
    return {
        "library": _loaded(file),
        "layouts": {
            str(numbers[name]): {"size": size, "fields": RECORDS[name][1]}
            for name, size in _record_bytes(library, numbers).items()
        },
        "kinds": numbers,
        "activities": sorted(number for name, number in numbers.items() if name not in LATER),
        "callback": {"fields": CALLBACK},
        "functions": followed,
        "watched": [
            [domain, number]
            for domain, functions in names.items()
            for number, name in functions.items()
            if not UNWATCHED.fullmatch(name)
        ],
    }


def _loaded(file: str) -> str:
    """The whole path of a library that was loaded by its name."""
    with open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123
        paths = [line.split(maxsplit=5)[5].strip() for line in maps if os.path.basename(file) in line]  # noqa: PTH119
    return file if os.path.isabs(file) else paths[-1]  # noqa: PTH117


def _functions(library: Any, domain: int) -> dict[int, str]:
    """Number and name of each function that a domain has."""
    functions, name = {}, ctypes.c_char_p()
    for number in range(MOST_FUNCTIONS):
        if not library.cuptiGetCallbackName(domain, number, ctypes.byref(name)) and name.value:
            functions[number] = name.value.decode()
    return functions


def _record_bytes(library: Any, numbers: Mapping[str, int]) -> dict[str, int]:
    """Length of the records that it writes."""
    size, version = ctypes.c_size_t(), ctypes.c_uint32()
    library.cuptiGetVersion(ctypes.byref(version))
    if not hasattr(library, "cuptiActivityGetStructSize"):
        known = bisect.bisect_right([since for since, _ in _BYTES], version.value)
        if not known:
            raise Unfit("it is older than that of CUDA 12.0")
        return dict(zip(numbers, _BYTES[known - 1][1]))
    sizes = {}
    for name, number in numbers.items():
        if code := library.cuptiActivityGetStructSize(number, 0, ctypes.byref(size)):
            raise Unfit(f"error {code} for the length of {name}")
        sizes[name] = size.value
    return sizes


def main() -> None:
    """Write it; never fails."""
    question: dict[str, Any] = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    try:
        answer = describe(**question)
    except FileNotFoundError as error:
        answer = {"problem": "missing", "reason": str(error)}
    except Unfit as error:
        answer = {"problem": "refused", "reason": str(error)}
    except (OSError, AttributeError) as error:
        answer = {"problem": "no driver", "reason": str(error)}
    with open(int(sys.argv[1]), "w", encoding="ascii") as file:  # noqa: PTH123
        json.dump(answer, file)


if __name__ == "__main__":
    main()
