"""Several GPUs at once, and processes that share host memory: rates, who pays, and nothing is left of those killed.

Predicted before the first run on several GPUs: rates within 1 % of nvbandwidth's. Two labs on one GPU were expected to
reach half; but their copies take turns in its one engine: a row of copies, then the other lab's. 16 MiB of page tables
for each process that registers 8 GiB, on each GPU on which it has a context; a process that opens memory of a GPU on
which it has no context takes about 520 MiB there.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import psutil
import pytest
from cupy.cuda import runtime

from pinscope.errors import MeasurementFailed
from pinscope.experiments.registration.experiment import Registration, RegistrationParams
from pinscope.experiments.registration.reading import Registrations, Trial
from pinscope.experiments.topology.experiment import Topology, TopologyParams
from pinscope.experiments.topology.reading import WAYS, Host, IssuedBy, issuer
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from tests.data import synthetic
from tests.gpu.machine import GIB, IS_H200, MIB, SameGpuTwice, bus_ids, run

ALONE = {"h2d": 55.5e9, "d2h": 55.4e9}
ALL_OF_TWO = {"h2d": 54.6e9, "d2h": 54.8e9}
"""Bytes/second of each GPU by nvbandwidth 0.8 on two H200s, alone and both at once."""


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """A full run of all GPUs, by the command."""
    return run("topology")


@pytest.fixture(scope="module")
def host(whole: dict[str, Any]) -> Host:
    return Host(whole["observations"])


def test_every_word_arrives(whole: dict[str, Any], host: Host) -> None:
    assert whole["run"]["status"] == "done"
    assert [cell.wrong_count for cell in host.cells] == [0] * len(host.cells)


def test_copies_that_one_engine_takes_in_turns_are_not_two_full_links() -> None:
    """They were: each lab's start event was reached when its turn came, and the share came to 0.999."""
    notes: list[str] = []
    with SameGpuTwice(0, bus_ids()) as lab:
        params = TopologyParams.preset("cuda", quick=True)
        rows = [row.model_dump() for row in Topology().measure(params, lab, Harness(note=notes.append))]
    known = Host(rows)
    for who in WAYS:
        for way in ("h2d", "d2h"):
            cell = known.at_once(way, who)
            reached = cell.alone_share if cell else None
            # Half, and at most one copy of each too much: between its events a copy counts as moving evenly.
            assert reached is None or reached < 0.76, (who, way, reached)
            left_out = [line for line in notes if f", {way}, by {issuer(who)}. Their copies took turns" in line]
            assert bool(left_out) == (cell is None), (who, way, notes)


@pytest.mark.two_gpus
@pytest.mark.parametrize("issued_by", WAYS)
@pytest.mark.parametrize("way", ["h2d", "d2h"])
def test_all_gpus_at_once_reach_the_rate_of_nvbandwidth(host: Host, way: str, issued_by: IssuedBy) -> None:
    cell = host.at_once(way, issued_by)
    assert cell is not None
    rates = {gpu: own.median for gpu, own in cell.own.items()}
    if IS_H200:
        assert all(rate <= 1.01 * ALONE[way] for rate in rates.values()), rates
    if IS_H200 and len(rates) == 2:
        assert all(rate >= 0.99 * ALL_OF_TWO[way] for rate in rates.values()), rates


CONTEXT = (300 * MIB, 900 * MIB)
"""Between these lies what a context takes."""


@pytest.fixture(scope="module")
def registered() -> dict[str, Any]:
    """A run of all GPUs, by the command."""
    document = run("registration", "processes=4", "repeats=3", "sharing=memfd")
    assert document["run"]["params"]["shared"] == 8 * GIB
    return document


@pytest.fixture(scope="module")
def shared(registered: dict[str, Any]) -> Registrations:
    return known(registered["observations"])


@pytest.fixture(scope="module")
def four(shared: Registrations) -> Mapping[str, Trial]:
    return {trial.strategy: trial for trial in shared.trials}


def known(rows: Sequence[Mapping[str, Any]]) -> Registrations:
    return Registrations(synthetic.run("registration", params={}), rows)


def test_each_of_four_processes_pays_for_its_page_table_and_one_owner_pays_once(four: Mapping[str, Trial]) -> None:
    each, owner = four["each_registers"], four["one_owner"]
    assert each.table_bytes is not None
    assert owner.table_bytes is not None
    assert each.table_bytes == pytest.approx(4 * each.table_steps[0], rel=0.05)
    assert owner.table_bytes == pytest.approx(each.table_steps[0], rel=0.15)
    if IS_H200:
        assert each.table_bytes == 4 * 16 * MIB
        assert owner.table_bytes == 16 * MIB
    assert each.host_pinned_bytes == pytest.approx(32 * GIB, rel=0.01)
    assert owner.host_pinned_bytes == pytest.approx(8 * GIB, rel=0.01)
    for trial in (each, owner):
        assert trial.buffer_bytes == pytest.approx(4 * 256 * MIB, rel=0.02)
        assert trial.context_bytes is not None
        assert 4 * 100 * MIB < trial.context_bytes < 4 * 1024 * MIB
        assert trial.left_bytes is not None
        assert abs(trial.left_bytes) <= 2 * MIB
        assert (trial.wrong_count, trial.checked_count) == (0, 4 * 4 * 256 * MIB // 8)
    assert each.bytes_per_second is not None
    assert owner.bytes_per_second is not None
    assert owner.bytes_per_second.median > (50e9 if IS_H200 else 0.9 * each.bytes_per_second.median)


@pytest.mark.two_gpus
def test_page_tables_are_8_bytes_a_page_for_each_process_and_gpu(shared: Registrations) -> None:
    gpus = runtime.getDeviceCount()
    taken = shared.on_gpus
    assert [(table.contexts, table.device, table.processes) for table in taken] == [
        *(("every_gpu", gpu, 4) for gpu in range(gpus)),
        *(("own_gpu", gpu, gpus) for gpu in range(gpus)),
    ]
    if IS_H200:
        assert [table.table_bytes for table in taken] == [4 * 16 * MIB] * gpus + [16 * MIB] * gpus


@pytest.mark.two_gpus
def test_memory_opened_on_another_gpu_gets_every_word_and_costs_a_context_or_nothing(
    registered: dict[str, Any], shared: Registrations
) -> None:
    gpus, opened = runtime.getDeviceCount(), shared.opened
    if not opened:
        assert any("cannot open memory of GPU" in line for line in registered["run"]["notes"]), registered["run"][
            "notes"
        ]
        return
    assert len(opened) == gpus * (gpus - 1)
    for cell in opened:
        assert cell.wrong_count == 0
        assert set(cell.rates) == {"host", "device"}
        assert cell.context_bytes is not None
        assert cell.context_bytes < 8 * MIB or CONTEXT[0] < cell.context_bytes < CONTEXT[1], opened


def test_memory_opened_on_the_same_gpu_gets_every_word_and_takes_no_context() -> None:
    params = RegistrationParams.preset("cuda", True).with_overrides({"strategies": "one_owner"})
    with SameGpuTwice(0, bus_ids()) as lab:
        rows = [row.model_dump() for row in Registration().measure(params, lab, Harness())]
    opened = known(rows).opened
    assert [cell.wrong_count for cell in opened] == [0, 0]
    # The opener's own buffer lies on the same GPU, where both have their context.
    assert all((cell.context_bytes or 0) - params.buffer < 64 * MIB for cell in opened), opened


def members() -> dict[int, psutil.Process]:
    found = {}
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            line = child.cmdline()
            if "pinscope.experiments.registration.child_member" in line:
                found[json.loads(line[-1])["rank"]] = child
    return found


def killed(strategy: str, step: str, rank: int, delay: float) -> str:
    """What a run says of which one process was killed ``delay`` seconds into a step."""
    params = RegistrationParams.preset("cuda", True).with_overrides({"strategies": strategy, "shared": "4GiB"})
    timers: list[threading.Timer] = []

    def kill(message: str) -> None:
        if f": {step}" in message and rank in members() and not timers:
            timers.append(threading.Timer(delay, members()[rank].kill))
            timers[0].start()

    try:
        with CudaLab(0) as lab, pytest.raises(MeasurementFailed) as caught:
            list(Registration().measure(params, lab, Harness(report=lambda _fraction, message: kill(message))))
    finally:
        for timer in timers:
            timer.join()
    return str(caught.value)


@pytest.mark.parametrize("strategy", ["each_registers", "one_owner"])
@pytest.mark.parametrize(
    ("step", "delay"), [("starting", 0.0), ("starting", 0.5), ("pinning", 0.1), ("copying", 0.02), ("ending", 0.0)]
)
def test_a_process_killed_at_any_step_leaves_no_gpu_memory_behind(strategy: str, step: str, delay: float) -> None:
    with CudaLab(0) as lab:
        free = lab.memory_state().nvml_used_bytes
    begun = time.monotonic()
    error = killed(strategy, step, 0, delay)
    assert time.monotonic() - begun < 30
    assert "process 1 of 2 was killed by SIGKILL" in error
    assert members() == {}

    def left() -> int:
        with CudaLab(0) as lab:
            used = lab.memory_state().nvml_used_bytes
        assert used is not None
        assert free is not None
        return used - free

    _settles(lambda: abs(left()) <= 8 * MIB)


def _settles(holds: Callable[[], bool]) -> None:
    """The driver takes a moment to tidy up after a killed process."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.two_gpus
@pytest.mark.skipif(find_spec("torch") is None, reason="the extra torch is not installed")
def test_copies_and_all_reduces_over_nvlink_hardly_slow_each_other_and_every_word_is_right(host: Host) -> None:
    """Predicted: NVLink and PCIe share nothing but the GPU's memory, so at most 10 % on either side."""
    assert [beside.direction for beside in host.besides] == ["h2d", "d2h"]
    for beside in host.besides:
        assert beside.wrong_count == 0
        assert beside.reduce_ratio == pytest.approx(1.0, abs=0.1)
        assert beside.copies_ratio == pytest.approx(1.0, abs=0.1)
