"""Several GPUs: what processes take on each, and memory of one opened from another. Synthetic rows, real processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pinscope.errors import BadInput
from pinscope.experiments.contract import budget_of
from pinscope.experiments.registration.experiment import Registration, RegistrationObservation, RegistrationParams
from pinscope.experiments.registration.reading import Registrations
from pinscope.experiments.registry import draw_run, read_run
from pinscope.lab.harness import Harness
from pinscope.lab.hostmodel import HostModelLab
from pinscope.records.run import Finding, Reading
from tests.data import synthetic
from tests.unit.experiments.registration.test_arithmetic import BUFFER, GIB, MIB, Rows
from tests.unit.experiments.registration.test_arithmetic import rows as trial

COPIES = 4


def observed(**values: Any) -> dict[str, Any]:
    common = {"repeat": 0, "warmup": False, "bytes": 8 * GIB, "buffer_bytes": BUFFER}
    return RegistrationObservation(**{**common, **values}).model_dump()


def registered(gpus: int, processes: int, taken: int = 16 * MIB, contexts: str = "every_gpu") -> Rows:
    """Each process takes so much on each GPU on which it has a context."""
    used = dict.fromkeys(range(gpus), 3 * GIB)
    rows: Rows = []
    for process in (None, *range(processes)):
        for gpu in used:
            used[gpu] += taken if process is not None and (contexts == "every_gpu" or process == gpu) else 0
        rows += [
            observed(
                strategy="each_registers", processes=processes, process=process, sharing="memfd", contexts=contexts,
                step="before" if process is None else "pin", device=gpu, nvml_used_bytes=used[gpu],
            )
            for gpu in used
        ]  # fmt: skip
    return rows


def opened(
    device: int, opener: int, *, context: int = 520 * MIB, host_rate: float = 40e9, peer_rate: float = 45e9,
) -> Rows:  # fmt: skip
    """Memory of one GPU opened by a process on another one, and four copies from each source."""
    common: dict[str, Any] = {"strategy": "one_owner", "processes": 2, "contexts": "own_gpu"}
    common |= {"device": device, "opener": opener, "process": opener}
    rows = [
        observed(step="before", nvml_used_bytes=GIB, **common),
        observed(step="open", nvml_used_bytes=GIB + context, open_seconds=0.25, **common),
    ]
    for source, rate in (("host", host_rate), ("device", peer_rate)):
        rows += [
            observed(
                step="through", repeat=max(number - 1, 0), warmup=number == 0, source=source, copies=COPIES,
                device_seconds=COPIES * BUFFER / rate, wrong_words=0, **common,
            )
            for number in range(5)
        ]  # fmt: skip
    return rows


def known(rows: Rows) -> Registrations:
    return Registrations(synthetic.run("registration", params={}, devices=2), rows)


def read(rows: Rows, gpus: int = 2) -> Reading:
    return read_run(synthetic.run("registration", params={}, devices=gpus), rows)


def findings(rows: Rows) -> dict[str, Finding]:
    return {finding.rule: finding for finding in read(rows).findings}


def test_page_tables_that_differ_from_their_arithmetic_are_no_ground_for_advice() -> None:
    reading = read(registered(2, 2, taken=18 * MIB))
    assert reading.findings == ()
    assert reading.tables[-1].rows[0][4:] == (36 * MIB, 18 * MIB, 32 * MIB)


def test_registrations_that_broke_off_give_no_figure() -> None:
    rows = registered(2, 4)[:-2]
    assert [table.table_bytes for table in known(rows).on_gpus] == [None, None]
    assert read(rows).verdict is None


def test_several_gpus_change_nothing_of_what_is_said_of_one() -> None:
    usual = trial("each_registers", 4, sharing="memfd") + trial("one_owner", 4)
    both, alone = read(usual + registered(2, 4) + opened(0, 1)), read(usual)
    assert both.verdict == alone.verdict
    assert both.headline[:4] == alone.headline
    assert [figure.name for figure in both.headline[4:]] == [
        "Page tables of 4 processes, GPU 0", "Page tables of 4 processes, GPU 1",
    ]  # fmt: skip
    assert both.tables[0] == alone.tables[0]


def test_rows_that_lack_what_a_copy_has_are_refused() -> None:
    with pytest.raises(BadInput, match="a row of step through without source"):
        read([row | {"source": None} for row in opened(0, 1)])


def test_a_run_that_broke_off_reads_and_draws_at_every_row() -> None:
    rows = registered(2, 2) + registered(2, 2, contexts="own_gpu") + opened(1, 0)
    for count in range(len(rows)):
        verdict = read(rows[:count]).verdict
        assert verdict is None or len(verdict) <= 150
        if count % 6 == 0:
            list(draw_run(synthetic.run("registration", params={}, devices=2), rows[:count]))


class TwoEngines(HostModelLab):
    """A machine on which any number may be opened, and two are shown."""

    def peers(self) -> Sequence[int]:
        return (0, 1)

    def device_id_of(self, device: int) -> str:
        return self.device_id


def params(**overrides: object) -> RegistrationParams:
    small = {"shared": 64 * MIB, "buffer": 2 * MIB, "repeats": 1, "processes": "2"}
    return RegistrationParams.preset("host", True).with_overrides({**small, **overrides})


@pytest.fixture(scope="module")
def measured() -> list[RegistrationObservation]:
    with TwoEngines() as lab:
        return list(Registration().measure(params(), lab, Harness()))


@pytest.mark.parametrize("strategy", ["each_registers", "one_owner"])
def test_every_process_gets_the_content(measured: list[RegistrationObservation], strategy: str) -> None:
    rows = [row for row in measured if row.strategy == strategy and row.contexts is None]
    copies = [row for row in rows if row.step == "copy"]
    assert [(row.process, row.warmup) for row in copies] == [(0, True), (1, True), (0, False), (1, False)]
    assert all(row.wrong_words == 0 and row.checked_words == 2 * MIB // 8 for row in copies)
    assert all(row.copied_bytes == 64 * MIB and (row.ended_seconds or 0) > 0 for row in copies)
    before = {row.process: row.page_table_bytes or 0 for row in rows if row.step == "buffers"}
    grown = [(row.page_table_bytes or 0) - before[row.process] for row in rows if row.step == "pin"]
    own = pytest.approx(64 * MIB // 4096 * 8, abs=24 * 1024)  # page tables of its own, for the same memory
    assert grown == [own] * (2 if strategy == "each_registers" else 1)


def test_on_two_gpus_processes_register_on_both_and_open_each_others_memory(
    measured: list[RegistrationObservation],
) -> None:
    rows = [row for row in measured if row.contexts]
    assert [(row.contexts, row.process, row.device) for row in rows if row.step == "pin"] == [
        (contexts, process, device)
        for contexts in ("every_gpu", "own_gpu") for process in (0, 1) for device in (0, 1)
    ]  # fmt: skip
    assert all((row.pin_seconds or 0) > 0 for row in rows if row.step == "pin")
    shared = known([row.model_dump() for row in rows])
    assert all(table.table_bytes is None for table in shared.on_gpus), "no meter tells it of the host model"
    assert [(cell.device, cell.opener, set(cell.rates), cell.wrong_count) for cell in shared.opened] == [
        (0, 1, {"host", "device"}, 0), (1, 0, {"host", "device"}, 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "across"),
    [
        ({"all_devices": False}, []),
        ({"strategies": "one_owner"}, [("one_owner", "own_gpu")]),
        ({"strategies": "each_registers"}, [("each_registers", "every_gpu"), ("each_registers", "own_gpu")]),
    ],
)
def test_several_gpus_are_measured_as_asked_for(overrides: dict[str, Any], across: list[tuple[str, str]]) -> None:
    cases = Registration().cases(params(**overrides), synthetic.environment(2))
    assert [(case.what.strategy, case.what.contexts) for case in cases if case.what.contexts] == across


def test_the_budget_grows_with_gpus() -> None:
    experiment, chosen = Registration(), RegistrationParams.preset("cuda", False)
    single, eight = (budget_of(experiment, chosen, synthetic.environment(devices)) for devices in (1, 8))
    assert eight.seconds > single.seconds + 8
    assert eight.device_bytes == 2 * single.device_bytes, "a context for each of eight processes, not of four"
    alone = budget_of(experiment, chosen.with_overrides({"all_devices": False}), synthetic.environment(8))
    assert alone == single
