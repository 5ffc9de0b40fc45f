"""Real processes that share memory: content arrives, and whichever dies or hangs is named and nothing is left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from pinscope.errors import Cancelled, MeasurementFailed, NotPossible
from pinscope.experiments.registration.experiment import Registration, RegistrationObservation, RegistrationParams
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab

MIB = 2**20
SMALL = {"shared": 8 * MIB, "buffer": 2 * MIB, "repeats": 1, "processes": "2"}


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


@pytest.mark.parametrize(
    ("strategy", "step", "rank"),
    [
        # Before they pin, the processes do the same in both; then only the owner pins and copies where there is one.
        *((("each_registers", step, 1)) for step in ("taking GPU memory", "pinning", "ending")),
        ("one_owner", "copying", 0),
    ],
)
def test_a_process_killed_at_any_step_ends_the_run_soon_with_its_name(strategy: str, step: str, rank: int) -> None:
    def kill(message: str) -> None:
        if f": {step}" in message and rank in members():
            members()[rank].kill()

    begun = time.monotonic()
    with pytest.raises(MeasurementFailed, match=f"process {rank + 1} of 2 was killed by SIGKILL .* {step}") as caught:
        measure(params(strategies=strategy), kill)
    assert time.monotonic() - begun < 25, "it waited for the limit of a step"
    kept = json.loads(caught.value.__notes__[0])
    assert kept[0] == "before"
    assert ("pin" in kept) == (step != "taking GPU memory"), "the first process has pinned; its row stays"
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
