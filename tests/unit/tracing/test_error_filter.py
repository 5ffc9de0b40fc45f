"""The few instructions between CUPTI and Python: which calls come through, and what is kept of one that failed."""

from __future__ import annotations

import ctypes
import itertools
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinscope.tracing.cupti_library import DRIVER, NVTX, RUNTIME
from pinscope.tracing.error_filter import FAILED_ENTRY, ErrorFilter, FailedCalls, error_filter
from pinscope.tracing.lanes import Begins, choose
from pinscope.tracing.mapped_file import CallLog, SpoolFolder
from pinscope.tracing.spool import FAILED

CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)
FOLLOWED = (0, 9, 277, 1023)


class Data(ctypes.Structure):
    """The part of ``CUpti_CallbackData`` that is read (cupti_callbacks.h)."""

    _fields_ = (
        ("site", ctypes.c_int), ("name", ctypes.c_char_p), ("params", ctypes.c_void_p), ("result", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p), ("context", ctypes.c_void_p), ("uid", ctypes.c_uint32),
        ("data", ctypes.c_void_p), ("correlation", ctypes.c_uint32),
    )  # fmt: skip


def made(followed: Any, failed: Any) -> ErrorFilter:
    chosen = error_filter(followed, failed)
    if chosen is None:
        pytest.skip("not x86-64, or no program may make code here")
    for number in FOLLOWED:
        choose(chosen.notes.followed, number)
    return chosen


def test_python_is_called_for_followed_functions_and_for_errors_and_for_nothing_else() -> None:
    called: list[tuple[str, int, int]] = []
    followed = CALLBACK(lambda _, domain, number, __: called.append(("followed", domain, number)))
    failed = CALLBACK(lambda _, domain, number, __: called.append(("failed", domain, number)))
    chosen = made(followed, failed)
    call, answer = ctypes.cast(chosen.address, CALLBACK), ctypes.c_int()
    domains, numbers, answers = (DRIVER, RUNTIME, NVTX), (*FOLLOWED, 8, 278, 600), (None, 0, 1, 600, 712, 999)
    for domain, number, site, error in itertools.product(domains, numbers, (0, 1), answers):
        answer.value = error or 0
        data = Data(site=site, result=None if error is None else ctypes.addressof(answer))
        called.clear()
        call(None, domain, number, ctypes.addressof(data))
        is_error = domain != NVTX and site == 1 and error not in (None, 0, 600)
        is_followed = domain == NVTX or (domain == DRIVER and number in FOLLOWED)
        assert called == [("failed", domain, number)] * is_error + [("followed", domain, number)] * is_followed


def test_when_a_call_begins_is_noted_without_python_but_of_a_large_copy() -> None:
    called: list[int] = []
    followed = CALLBACK(lambda *_: called.append(1))
    chosen = made(followed, followed)
    begins, call = Begins(chosen.notes), ctypes.cast(chosen.address, CALLBACK)
    choose(chosen.notes.copying, 277)
    parameters = (ctypes.c_uint64 * 3)(1, 2, 0)

    def begin(number: int, correlation: int, size: int) -> int | None:
        parameters[2] = size
        data = Data(params=ctypes.addressof(parameters), correlation=correlation)
        call(None, DRIVER, number, ctypes.addressof(data))
        return begins.take(correlation)

    before = time.time_ns()
    assert (begin(9, 5, 0), len(called)) == (None, 1)  # while nothing is noted
    chosen.notes.is_on = True
    noted = [begin(9, 5, 1 << 20), begin(277, 6, 65536)]
    assert (begin(277, 7, 65537), len(called), bool(begins)) == (None, 2, False)
    assert all(before <= moment <= time.time_ns() for moment in noted if moment is not None)
    assert None not in noted


def test_of_two_calls_under_way_that_share_a_place_python_is_called_for_the_second() -> None:
    called: list[int] = []
    followed = CALLBACK(lambda *_: called.append(1))
    chosen = made(followed, followed)
    chosen.notes.is_on = True
    begins, call = Begins(chosen.notes), ctypes.cast(chosen.address, CALLBACK)
    for correlation in (1, 2, 257):
        data = Data(correlation=correlation)
        call(None, DRIVER, 9, ctypes.addressof(data))
    assert len(called) == 1
    begins.keep(257, 7)
    assert [correlation for correlation, _ in begins.take_all()] == [257, 1, 2]
    assert not begins


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("cudaHostRegister", (1 << 40, 4096)),
        ("cuMemHostUnregister", (1 << 40, 0)),
        ("cudaFreeHost", (1 << 40, 0)),
        ("cudaMallocHost", (0, 4096)),
        ("cuMemHostAlloc", (0, 4096)),
        ("cudaMemcpyAsync", (0, 0)),
    ],
)
def test_what_is_kept_of_a_failed_call(name: str, kept: tuple[int, int], tmp_path: Path) -> None:
    folder, lines = SpoolFolder.of(tmp_path.stat(), str(tmp_path)), list[bytes]()
    calls = FailedCalls(CallLog(folder, "failed", FAILED_ENTRY), lines.append)
    arguments, answer = (ctypes.c_uint64 * 2)(1 << 40, 4096), ctypes.c_int(712)
    data = Data(
        1, name.encode(), ctypes.addressof(arguments), ctypes.addressof(answer), None, None, 0, None, 77
    )  # fmt: skip
    for _ in range(2):
        calls.note(RUNTIME, 152, ctypes.addressof(data), 5, 6, elsewhere=True, now=1234)
    calls.close()
    first, second, after = np.fromfile(tmp_path / "failed.000000", FAILED)[:3]
    assert first == second
    assert (after["moment"], [json.loads(line) for line in lines]) == (0, [[RUNTIME << 16 | 152, name]])
    values: dict[str, Any] = {field: int(first[field]) for field in FAILED.names or ()}
    assert values == {
        "function": RUNTIME << 16 | 152, "error": 712, "thread": 5, "stack": 6, "elsewhere": 1, "count": 1,
        "correlation_id": 77, "address": kept[0], "bytes": kept[1], "moment": 1234,
    }  # fmt: skip


def test_there_is_none_where_the_system_lets_no_program_make_code() -> None:
    """As systemd's MemoryDenyWriteExecute does; here by prctl, of Linux 6.3."""
    program = (
        "import ctypes, sys; from pinscope.tracing.error_filter import error_filter\n"
        "callback = ctypes.CFUNCTYPE(None)(lambda: None)\n"
        "print(ctypes.CDLL(None).prctl(65, 1, 0, 0, 0), error_filter(callback, callback))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    refused, made = done.stdout.split()
    if refused != "0":
        pytest.skip("the kernel has no PR_SET_MDWE")
    assert made == "None"
