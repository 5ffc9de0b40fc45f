"""Real processes that share memory: content arrives, and whichever dies or hangs is named and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from pinscope.errors import Cancelled, MeasurementFailed, NotEnoughMemory, NotPossible
from pinscope.experiments.registration.experiment import Registration, RegistrationObservation, RegistrationParams
from pinscope.lab.backing import shared_region
from pinscope.lab.child_processes import Child, ChildProcesses
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab

MIB = 2**20
SMALL = {"shared": 8 * MIB, "buffer": 2 * MIB, "repeats": 1, "processes": "2", "step_limit": 30}


def params(**overrides: object) -> RegistrationParams:
    return RegistrationParams.preset("host", True).with_overrides({**SMALL, **overrides})


def members() -> dict[int, psutil.Process]:
    """The processes of this test by their rank."""
    found = {}
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            line = child.cmdline()
            if "pinscope.experiments.registration.child_member" in line:
                found[json.loads(line[-1])["rank"]] = child
    return found


def started(count: int, descriptor: int, nbytes: int) -> ChildProcesses[int]:
    configuration = {"places": {"0": "host"}, "seed": 1, "descriptor": descriptor, "nbytes": nbytes}
    module = "pinscope.experiments.registration.child_member"
    children = {
        rank: Child(f"process {rank + 1} of {count}", module, {**configuration, "rank": rank}) for rank in range(count)
    }
    return ChildProcesses(children, 30.0, descriptors=(descriptor,))


def measure(chosen: RegistrationParams, at: Callable[[str], None]) -> list[RegistrationObservation]:
    """The rows until the end or the error, which is kept in the list's place of the caller by raising it."""
    rows: list[RegistrationObservation] = []
    with HostModelLab() as lab:
        harness = Harness(report=lambda _fraction, message: at(message))
        try:
            for row in Registration().measure(chosen, lab, harness):
                rows.append(row)
        except Exception as error:
            error.add_note(json.dumps([row.step for row in rows]))
            raise
    return rows


@pytest.mark.parametrize("strategy", ["each_registers", "one_owner"])
def test_every_process_gets_the_content(strategy: str) -> None:
    rows = measure(params(strategies=strategy, processes="3", repeats=2), lambda _: None)
    copies = [row for row in rows if row.step == "copy"]
    assert [row.process for row in copies] == [0, 1, 2] * 3
    assert [row.warmup for row in copies] == [True] * 3 + [False] * 6
    assert all(row.wrong_words == 0 and row.checked_words == 2 * MIB // 8 for row in copies)
    assert all(row.copied_bytes == 8 * MIB and (row.ended_seconds or 0) > 0 for row in copies)
    assert len([row for row in rows if row.step == "pin"]) == (3 if strategy == "each_registers" else 1)


def test_each_process_has_page_tables_of_its_own_for_the_same_memory() -> None:
    rows = measure(params(strategies="each_registers", shared=64 * MIB), lambda _: None)
    before = {row.process: row.page_table_bytes or 0 for row in rows if row.step == "buffers"}
    grown = [(row.page_table_bytes or 0) - before[row.process] for row in rows if row.step == "pin"]
    assert grown == [pytest.approx(64 * MIB // 4096 * 8, abs=24 * 1024)] * 2


STEPS = {
    "starting": "starting", "taking": "taking GPU memory", "pinning": "pinning", "copying": "copying",
    "ending": "ending",
}  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "step"),
    # Before they pin, the processes do the same in both.
    [("each_registers", step) for step in STEPS] + [("one_owner", step) for step in ("pinning", "copying", "ending")],
)
def test_a_process_killed_at_any_step_ends_the_run_soon_with_its_name(strategy: str, step: str) -> None:
    # Only the owner pins and copies where there is one.
    rank = 0 if strategy == "one_owner" and step in ("pinning", "copying") else 1

    def kill(message: str) -> None:
        if f": {STEPS[step]}" in message and rank in members():
            members()[rank].kill()

    begun = time.monotonic()
    with pytest.raises(MeasurementFailed, match=f"process {rank + 1} of 2 was killed by SIGKILL .* {step}") as caught:
        measure(params(strategies=strategy), kill)
    assert time.monotonic() - begun < 25, "it waited for the limit of a step"
    kept = json.loads(caught.value.__notes__[0])
    assert kept[0] == "before"
    # In the first strategy process 1 has pinned by the time that process 2 dies; its row stays.
    assert ("pin" in kept) == (step in ("copying", "ending") or (step, rank) == ("pinning", 1))
    assert members() == {}


def test_a_process_killed_in_the_midst_of_pinning_is_named() -> None:
    killers: list[threading.Timer] = []

    def kill_soon(message: str) -> None:
        if message.endswith(": pinning") and not killers:
            killers.append(threading.Timer(0.05, members()[0].kill))
            killers[0].start()

    with pytest.raises(MeasurementFailed, match="process 1 of 2 was killed by SIGKILL"):
        measure(params(strategies="each_registers", shared=512 * MIB, buffer=16 * MIB), kill_soon)
    killers[0].join()
    assert members() == {}


def test_a_process_that_hangs_is_named_after_the_time_limit() -> None:
    def stop(message: str) -> None:
        if message.endswith(": pinning"):
            members()[1].suspend()

    with pytest.raises(MeasurementFailed, match="process 2 of 2 did not answer within 10 s while pinning"):
        measure(params(strategies="each_registers", step_limit=10), stop)
    assert members() == {}


def test_a_process_that_runs_out_of_memory_is_named_with_its_reason() -> None:
    region = 8 * MIB
    with shared_region(region) as descriptor:
        orders = [{"do": "start"}, {"do": "export", "nbytes": 2**60}]
        with started(1, descriptor, region) as one:
            one.ask("starting", {0: orders[0]})
            with pytest.raises((NotEnoughMemory, MeasurementFailed), match="process 1 of 1 broke off while growing"):
                one.ask("growing", {0: orders[1]})
    assert members() == {}


def test_cancelling_ends_all_processes_at_once() -> None:
    class Asked:
        now = False

    def cancel(message: str) -> None:
        Asked.now = message.endswith(": copying")

    harness = Harness(report=lambda _fraction, message: cancel(message), cancelled=lambda: Asked.now)
    with HostModelLab() as lab, pytest.raises(Cancelled):
        list(Registration().measure(params(), lab, harness))
    assert members() == {}


def test_members_end_with_the_process_that_started_them() -> None:
    """A starter that is killed cannot tidy up: the kernel ends its children."""
    read, write = os.pipe()
    starter = os.fork()
    if starter == 0:  # pragma: no cover - the other process
        try:
            with shared_region(8 * MIB) as descriptor, started(2, descriptor, 8 * MIB) as group:
                group.ask("starting", {rank: {"do": "start"} for rank in range(2)})
                os.write(write, json.dumps([child.pid for child in members().values()]).encode())
                time.sleep(60)
        finally:
            os._exit(1)
    pids = json.loads(os.read(read, 1000))
    assert len(pids) == 2
    os.kill(starter, signal.SIGKILL)
    os.waitpid(starter, 0)
    os.close(read)
    os.close(write)
    deadline = time.monotonic() + 5
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_processes_share_a_posix_segment_and_what_there_is_none_of_is_noted() -> None:
    notes: list[str] = []
    chosen = params(strategies="each_registers", sharing="memfd,shm_open,shm_open_portable,hugetlb_1g")
    with HostModelLab() as lab:
        rows = list(Registration().measure(chosen, lab, Harness(note=notes.append)))
    assert {row.sharing for row in rows} == {"memfd", "shm_open"}
    assert all(row.wrong_words == 0 for row in rows if row.step == "copy")
    assert [note.split(".")[0] for note in notes] == ["Left out: shm_open_portable", "Left out: hugetlb_1g"]


def test_a_run_for_which_there_is_no_shared_memory_is_refused() -> None:
    chosen = params(strategies="each_registers", sharing="hugetlb_1g")  # 8 MiB is no multiple of a page
    with HostModelLab() as lab, pytest.raises(NotPossible, match="none of the kinds of shared memory"):
        list(Registration().measure(chosen, lab, Harness()))
