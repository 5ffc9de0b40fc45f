"""What a trace says of calls that returned an error, and of which it says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import read_run
from pinscope.records.run import Finding, Reading
from pinscope.report.facts import table_texts
from tests.data.synthetic_trace import place, program, run, site


def failed(line: int = 25, **values: Any) -> dict[str, Any]:
    """A range that line 23 had registered, and whose error line 29 met."""
    given = {
        "call": "cudaHostRegister", "error": 712, "error_name": "cudaErrorHostMemoryAlreadyRegistered", "count": 1,
        "bytes": 4096, "is_elsewhere": False, "follows_lost_context": False,
    }  # fmt: skip
    return {**place("failed_call", line, **given), **values}


def plain(line: int = 25, **values: Any) -> dict[str, Any]:
    return failed(line, **{"call": "cudaMemcpy", "error": 1, "error_name": "cudaErrorInvalidValue", **values})


TWICE = failed(
    earlier="taken", earlier_file="/srv/train.py", earlier_line=23, noticed_file="/srv/train.py", noticed_line=29,
    noticed_count=2,
)  # fmt: skip
LOST = failed(
    31, call="cudaStreamSynchronize", error=700, error_name="cudaErrorIllegalAddress", earlier="before",
    earlier_file="/srv/train.py", earlier_line=28,
)  # fmt: skip


def read(*rows: dict[str, Any]) -> Reading:
    return read_run(run(), [program(failed_calls=1), site(33), *rows])


def found(reading: Reading) -> list[Finding]:
    return [finding for finding in reading.findings if finding.rule == "failed-calls"]


def test_a_call_that_failed_is_the_verdict_whatever_else_was_found() -> None:
    for row, verdict in [
        (TWICE, "Fix train.py:25: cudaHostRegister returned error 712, already registered at train.py:23; train.py:29 "
         "met that error."),
        (plain(count=1200), "Fix train.py:25: cudaMemcpy returned error 1, cudaErrorInvalidValue, 1,200 times."),
        (LOST, "A kernel launched after train.py:28 failed with error 700, cudaErrorIllegalAddress: train.py:31 was "
         "told first."),
        (plain(29, call="cudaGetLastError", earlier="before", earlier_file="/srv/train.py", earlier_line=28),
         "Error 1, cudaErrorInvalidValue, of an earlier call after train.py:28 was read at train.py:29."),
        (plain(is_elsewhere=True), "Fix a call near train.py:25: cudaMemcpy returned error 1, cudaErrorInvalidValue."),
        (plain(file="", line=0, earlier="before", earlier_file="/srv/train.py", earlier_line=28),
         "Fix a call near train.py:28: cudaMemcpy returned error 1, cudaErrorInvalidValue."),
    ]:  # fmt: skip
        reading = read(row)
        assert reading.verdict == verdict
        assert len(verdict.split()) <= 20
        assert [finding.rule for finding in reading.findings] == ["failed-calls", "pageable-copies"]
        (finding,) = found(reading)
        assert finding.severity == "critical"


def test_what_a_library_only_asked_or_had_to_expect_is_in_the_table_alone() -> None:
    for row in [
        plain(call="cuDeviceGetAttribute"),
        plain(call="cuMemGetAddressRange"),
        plain(call="cuGetProcAddress", error=500),
        plain(call="cudaFuncGetAttributes", error=209),
        plain(call="cuLibraryGetKernel", error=209),
        plain(call="cudaGetDeviceCount", error=100),
        plain(call="cudaDeviceEnablePeerAccess", error=704),
        plain(call="cudaFree", error=4),
    ]:
        reading = read(row)
        assert (reading.verdict or "").startswith("Pin what train.py:33 copies")
        assert found(reading) == []
        (table,) = (table for table in reading.tables if table.title == "Failed calls")
        assert "only asked, or expected" in table_texts(table)[0]


def test_a_library_that_clears_what_its_own_question_left_behind_is_not_blamed() -> None:
    cleared = plain(call="cudaGetLastError", error=209)
    assert found(read(plain(call="cuLibraryGetKernel", error=209), cleared)) == []
    assert found(read(plain(40, call="cuLibraryGetKernel", error=209), cleared))


@pytest.mark.parametrize("call", ["cudaHostGetDevicePointer", "cuModuleGetFunction", "cudaIpcGetMemHandle"])
def test_who_gets_what_it_needs_does_not_only_ask(call: str) -> None:
    assert found(read(plain(call=call)))


def test_a_question_whose_error_another_line_met_is_a_failure() -> None:
    asked = {"call": "cudaMemGetInfo", "noticed_file": "/srv/train.py", "noticed_line": 29, "noticed_count": 1}
    (finding,) = found(read(plain(**asked)))
    assert finding.title.endswith("; train.py:29 met that error")


def test_a_question_may_be_told_of_a_kernel_s_error() -> None:
    assert found(read({**LOST, "call": "cudaMemGetInfo"}))


def test_calls_behind_a_kernel_s_error_are_counted_with_it() -> None:
    later = [failed(line, error=700, count=3, follows_lost_context=True) for line in (40, 50)]
    (finding,) = found(read(LOST, *later))
    assert finding.title.endswith(", 6 calls later")


def test_without_a_failed_call_nothing_is_said_of_any() -> None:
    reading = read()
    assert (reading.verdict or "").startswith("Pin what train.py:33 copies")
    assert not any(table.title == "Failed calls" for table in reading.tables)
