"""Calls that returned an error, made into failures: what counts once, what made it fail, and who only met the error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pinscope.tracing.failed_calls import earlier_memory, error_name, failures
from pinscope.tracing.spool import FAILED, TYPES

REGISTER, LAST, PEEK, SYNCHRONIZE, DRIVER = 2 << 16 | 152, 2 << 16 | 10, 2 << 16 | 11, 2 << 16 | 165, 1 << 16 | 500
NAMES = {
    REGISTER: "cudaHostRegister", LAST: "cudaGetLastError", PEEK: "cudaPeekAtLastError",
    SYNCHRONIZE: "cudaDeviceSynchronize", DRIVER: "cuMemHostRegister",
}  # fmt: skip
Call = tuple[int, int, int, int]
"""Function, error, thread and line."""


def seen(*calls: Call, correlations: tuple[int, ...] = ()) -> list[tuple[str, int, int, int, bool, int | None, int]]:
    """Function, error, line, count, whether it follows a lost context, the line that met it, and how often."""
    failed = np.zeros(len(calls), FAILED)
    failed["count"] = 1
    for place, (function, error, thread, line) in enumerate(calls):
        for field, value in (("function", function), ("error", error), ("thread", thread), ("stack", line)):
            failed[field][place] = value
        failed["moment"][place] = place + 1
        failed["correlation_id"][place] = correlations[place] if correlations else place + 1
    lines = np.asarray([call[3] for call in calls], np.intp)
    return [
        (
            NAMES[int(each.first["function"])], int(each.first["error"]), int(each.first["stack"]), each.count,
            each.follows, None if each.noticed is None else int(each.noticed["stack"]), each.noticed_count,
        )
        for each in failures(failed, NAMES, lines)
    ]  # fmt: skip


def test_calls_of_a_line_with_one_error_are_one_failure_and_the_earliest_is_first() -> None:
    calls = [(REGISTER, 712, 1, 20), (REGISTER, 1, 1, 20), *[(REGISTER, 712, 2, 30)] * 3, (REGISTER, 712, 1, 20)]
    assert seen(*calls) == [
        ("cudaHostRegister", 712, 20, 2, False, None, 0),
        ("cudaHostRegister", 1, 20, 1, False, None, 0),
        ("cudaHostRegister", 712, 30, 3, False, None, 0),
    ]


def test_what_the_driver_answered_to_the_runtime_counts_once_and_a_call_of_the_driver_s_own_counts() -> None:
    calls = [(DRIVER, 712, 1, 20), (DRIVER, 2, 2, 40), (REGISTER, 712, 1, 20), (DRIVER, 712, 1, 25)]
    assert seen(*calls, correlations=(7, 8, 7, 9)) == [
        ("cuMemHostRegister", 2, 40, 1, False, None, 0),
        ("cudaHostRegister", 712, 20, 1, False, None, 0),
        ("cuMemHostRegister", 712, 25, 1, False, None, 0),
    ]


def test_the_line_that_reads_the_error_of_another_met_it_and_is_no_failure() -> None:
    calls = [(REGISTER, 712, 1, 20), (PEEK, 712, 1, 33), (LAST, 712, 1, 33)]
    assert seen(*calls) == [("cudaHostRegister", 712, 20, 1, False, 33, 2)]


@pytest.mark.parametrize(
    ("calls", "rest"),
    [
        ([(REGISTER, 712, 1, 20), (LAST, 712, 1, 20)], []),
        ([(REGISTER, 712, 1, 20), (LAST, 712, 2, 33)], [("cudaGetLastError", 712, 33, 1, False, None, 0)]),
        ([(REGISTER, 712, 1, 20), (LAST, 1, 1, 33)], [("cudaGetLastError", 1, 33, 1, False, None, 0)]),
    ],
    ids=["the line that failed looks itself", "another thread has errors of its own", "another error"],
)
def test_an_error_is_met_by_another_line_of_the_same_thread_only(calls: list[Call], rest: list[Any]) -> None:
    assert seen(*calls) == [("cudaHostRegister", 712, 20, 1, False, None, 0), *rest]


def test_after_an_error_by_a_kernel_all_calls_fail_and_the_first_is_told_apart() -> None:
    calls = [(SYNCHRONIZE, 700, 1, 50), (REGISTER, 700, 1, 60), (LAST, 700, 1, 60), (SYNCHRONIZE, 700, 2, 50)]
    assert seen(*calls) == [
        ("cudaDeviceSynchronize", 700, 50, 2, False, None, 0),
        ("cudaHostRegister", 700, 60, 1, True, None, 0),
    ]


def memory(*events: tuple[int, int, int]) -> Any:
    """What CUPTI recorded at 1, 2, 3 …: operation (1: allocated or registered, 2: given back), address and bytes."""
    table = np.zeros(len(events), TYPES["allocations"])
    for place, (operation, address, size) in enumerate(events):
        table["memory_operation_type"][place], table["address"][place] = operation, address
        table["bytes"][place], table["timestamp"][place] = size, place + 1
    return table


def test_the_earlier_call_of_the_same_range_is_known() -> None:
    for name, error, events, earlier in [
        ("cudaHostRegister", 712, [(1, 900, 50), (1, 1000, 100)], 2),
        ("cudaHostRegister", 712, [(1, 900, 150)], 1),
        ("cudaHostRegister", 712, [(1, 1040, 500)], 1),
        ("cudaHostRegister", 712, [(1, 1000, 100), (2, 1000, 0), (1, 1000, 100)], 3),
        ("cudaHostRegister", 712, [(1, 1000, 100), (2, 1000, 0)], None),
        ("cudaHostRegister", 712, [(1, 1050, 100)], None),
        ("cudaHostRegister", 1, [(1, 1000, 100)], 1),
        ("cudaMallocHost", 2, [(1, 1000, 100)], None),
        ("cudaHostUnregister", 713, [(1, 1000, 100), (2, 1000, 0)], 2),
        ("cudaFreeHost", 1, [(1, 1000, 100), (2, 1000, 0)], 2),
        ("cudaFreeHost", 1, [(1, 2000, 100), (2, 2000, 0)], None),
    ]:
        first = np.zeros(1, FAILED)[0]
        first["address"], first["bytes"], first["error"], first["moment"] = 1000, 50, error, 100
        record = earlier_memory(first, name, memory(*events))
        assert (None if record is None else int(record["timestamp"])) == earlier


def test_an_error_has_the_name_of_the_runtime_or_of_the_driver() -> None:
    assert error_name(712, "cudaHostRegister") == "cudaErrorHostMemoryAlreadyRegistered"
    assert error_name(712, "cuMemHostRegister") == "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    assert (error_name(2, "cuMemAlloc"), error_name(9, "cudaLaunchKernel")) == (
        "CUDA_ERROR_OUT_OF_MEMORY", "cudaErrorInvalidConfiguration",
    )  # fmt: skip
    assert error_name(12345, "cudaMalloc") == "12345"
