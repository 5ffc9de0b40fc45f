"""``pinscope trace --what-if wait`` from the command line to the store; CUPTI and the driver are stand-ins.

Their asynchronous copies move data only when their stream is waited for.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.store.store import Store
from tests.data.fake_cupti import FIRST_LINE
from tests.integration.traces import Document, program, rows, rules, traced

READS = """
host, gpu = (ctypes.c_uint64 * 1024)(), (ctypes.c_uint64 * 1024)()
wrong = 0
for step in range(1, 21):
    gpu[1023] = step
    late(host, gpu, 8192, 7, True)  # copy
    {}
    wrong += host[1023] != step
    done(7)
print(wrong)
"""
OVERWRITES = """
import pinscope
host, gpu = (ctypes.c_uint64 * 1024)(), (ctypes.c_uint64 * 1024)()
total = 0
for step in range(1, 21):
    host[0] = step
    late(gpu, host, 8192, 7, False)  # copy
    {}
    host[0] = 0
    done(7)
    total += gpu[0]
pinscope.check("total", [total])
"""
COPY = {READS: FIRST_LINE + 5, OVERWRITES: FIRST_LINE + 6}


def compared(tmp_path: Path, text: str, *arguments: str) -> Document:
    code, document = traced(tmp_path, "--what-if", *(arguments or ("wait",)), program(tmp_path, text))
    assert code == 0
    second: Document = document["what_if"]
    return second


@pytest.mark.usefixtures("_cupti")
@pytest.mark.parametrize("text", [READS, OVERWRITES])
def test_data_that_is_used_too_early_is_proven_and_its_line_named(text: str, tmp_path: Path) -> None:
    second = compared(tmp_path, text.format(""))
    (before,), (waited,) = rows(second, "before"), rows(second, "waited")
    assert (before["same_output"], before["same_twice"]) == (False, True)
    assert (waited["line"], waited["count"], waited["needed"]) == (COPY[text], 20, True)
    assert rules(second)[0] == "used-before-copied"
    with Store() as store:
        kept = [run for run in store.runs(experiment="trace") if not run.recording]
    assert [run.params.get("waits") for run in kept] == [[f"{tmp_path}/train.py:{COPY[text]}"], []]
    assert kept[0].verdict == second["run"]["verdict"]


@pytest.mark.usefixtures("_cupti")
@pytest.mark.parametrize("text", [READS, OVERWRITES])
def test_of_the_right_program_nothing_is_proven_and_nothing_called_good(text: str, tmp_path: Path) -> None:
    second = compared(tmp_path, text.format("done(7)"))
    assert rows(second, "before")[0]["same_output"]
    assert rows(second, "difference") == []
    assert rules(second) == ["no-early-use-shown"]


TWO_LINES = """
host, gpu = (ctypes.c_uint64 * 4)(), (ctypes.c_uint64 * 4)()
back, late_gpu = (ctypes.c_uint64 * 4)(), (ctypes.c_uint64 * 4)()
for step in range(1, 4):
    host[0] = step
    late(gpu, host, 32, 8, False)  # in time
    done(8)
    late_gpu[0] = step
    late(back, late_gpu, 32, 7, True)  # too late
    print(back[0])
    done(7)
"""


@pytest.mark.usefixtures("_cupti")
def test_of_two_lines_that_copy_the_one_is_named_that_needs_its_wait(tmp_path: Path) -> None:
    second = compared(tmp_path, TWO_LINES)
    assert {row["line"]: row["needed"] for row in rows(second, "waited")} == {
        FIRST_LINE + 5: False, FIRST_LINE + 8: True,
    }  # fmt: skip
    with Store() as store:  # the runs that only tell which are not kept
        assert len([run for run in store.runs(experiment="trace") if not run.recording]) == 2


@pytest.mark.usefixtures("_cupti")
def test_of_a_program_that_prints_times_nothing_is_proven(tmp_path: Path) -> None:
    second = compared(tmp_path, READS.format("done(7); print(time.time_ns())"))
    assert not rows(second, "before")[0]["same_twice"]
    assert rules(second) == ["output-never-the-same"]


IN_PLACES = """
host, gpu = (ctypes.c_uint64 * 4)(), (ctypes.c_uint64 * 4)()
late(host, gpu, 32, 101, True)  # captured
def work(): late(host, gpu, 32, 7, True)  # elsewhere
worker = threading.Thread(target=work); worker.start(); worker.join()
"""


@pytest.mark.usefixtures("_cupti")
def test_no_wait_is_put_behind_a_capture_or_in_another_thread_and_that_is_said(tmp_path: Path) -> None:
    second = compared(tmp_path, IN_PLACES)
    reasons = {row["line"]: row["reason"] for row in rows(second, "waited")}
    assert reasons == {
        FIRST_LINE + 2: "1 copies into a graph that is captured",
        FIRST_LINE + 3: "1 copies in another thread, by a call that cannot be changed",
    }
    assert rules(second).count("not-waited-for") == 2


SAVES = """
import numpy, pinscope
numpy.save({path!r}, numpy.arange(3) + host[0])
pinscope.check("again", numpy.arange(3) + host[0])
"""


@pytest.mark.usefixtures("_cupti")
def test_arrays_that_are_saved_or_named_are_compared_by_their_line(tmp_path: Path) -> None:
    text = IN_PLACES.partition("def work")[0].replace("101", "7").replace("late(", "gpu[0] = 5; late(")
    second = compared(tmp_path, text + SAVES.format(path=str(tmp_path / "saved.npy")))
    assert [(row["output"], row["line"], row["count"]) for row in rows(second, "difference")] == [
        ("numpy.save", FIRST_LINE + 5, 1), ("again", FIRST_LINE + 6, 1),
    ]  # fmt: skip


@pytest.mark.usefixtures("_cupti")
def test_a_program_that_notices_its_wrong_data_and_fails_runs_well_with_waits(tmp_path: Path) -> None:
    text = READS.format("assert host[1023] == step")
    code, document = traced(tmp_path, "--what-if", "wait", program(tmp_path, text))
    assert code == 1
    assert {row["output"] for row in rows(document["what_if"], "difference")} == {"stdout", "the exit code"}
    assert rules(document["what_if"]) == ["used-before-copied"]
