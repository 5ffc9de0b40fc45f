"""Processes that share host memory on real GPUs: who pays, what arrives, and that nothing is left of those killed.

Predicted before the first run on several GPUs: 16 MiB of page tables for each process that registers 8 GiB, on each GPU
on which it has a context; a process that opens memory of a GPU on which it has no context takes about 520 MiB there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import psutil
import pytest
from cupy.cuda import runtime

from pinscope.errors import MeasurementFailed
from pinscope.experiments.registration.experiment import Registration, RegistrationParams
from pinscope.experiments.registration.reading import Registrations, Trial
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness
from pinscope.probes.environment import capture_environment
from tests.data import synthetic

GIB, MIB = 2**30, 2**20


CONTEXT = (300 * MIB, 900 * MIB)
"""Between these lies what a context takes."""


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """A run of all GPUs, by the command."""
    done = subprocess.run(
        [sys.executable, "-m", "pinscope", "run", "registration", "--lab", "cuda", "--json", "--set", "processes=4",
         "--set", "repeats=3", "--set", "sharing=memfd"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["run"]["params"]["shared"] == 8 * GIB
    return document


@pytest.fixture(scope="module")
def shared(whole: dict[str, Any]) -> Registrations:
    return known(whole["observations"])


@pytest.fixture(scope="module")
def four(shared: Registrations) -> Mapping[str, Trial]:
    return {trial.strategy: trial for trial in shared.trials}


def known(rows: Sequence[Mapping[str, Any]]) -> Registrations:
    return Registrations(synthetic.run("registration", params={}), rows)


def on_h200() -> bool:
    return bool(runtime.getDeviceProperties(0)["name"].startswith(b"NVIDIA H200"))


def test_each_of_four_processes_pays_for_its_page_table_and_one_owner_pays_once(four: Mapping[str, Trial]) -> None:
    each, owner = four["each_registers"], four["one_owner"]
    assert each.table_bytes is not None
    assert owner.table_bytes is not None
    assert each.table_bytes == pytest.approx(4 * each.table_steps[0], rel=0.05)
    assert owner.table_bytes == pytest.approx(each.table_steps[0], rel=0.15)
    if on_h200():
        assert each.table_bytes == 4 * 16 * MIB
        assert owner.table_bytes == 16 * MIB


def test_contexts_and_buffers_are_told_apart_from_page_tables(four: Mapping[str, Trial]) -> None:
    for trial in four.values():
        assert trial.buffer_bytes == pytest.approx(4 * 256 * MIB, rel=0.02)
        assert trial.context_bytes is not None
        assert 4 * 100 * MIB < trial.context_bytes < 4 * 1024 * MIB
        assert trial.left_bytes is not None
        assert abs(trial.left_bytes) <= 2 * MIB


def test_host_pins_count_each_registration(four: Mapping[str, Trial]) -> None:
    assert four["each_registers"].host_pinned_bytes == pytest.approx(32 * GIB, rel=0.01)
    assert four["one_owner"].host_pinned_bytes == pytest.approx(8 * GIB, rel=0.01)


def test_every_process_finds_its_content_at_pinned_speed(four: Mapping[str, Trial]) -> None:
    for trial in four.values():
        assert trial.wrong_count == 0
        assert trial.checked_count == 4 * 4 * 256 * MIB // 8
    each, owner = four["each_registers"].bytes_per_second, four["one_owner"].bytes_per_second
    assert each is not None
    assert owner is not None
    assert owner.median > 0.9 * each.median
    if on_h200():
        assert owner.median > 50e9


@pytest.mark.two_gpus
def test_page_tables_are_8_bytes_a_page_for_each_process_and_gpu(shared: Registrations) -> None:
    gpus = runtime.getDeviceCount()
    taken = shared.on_gpus
    assert [(table.contexts, table.device, table.processes) for table in taken] == [
        *(("every_gpu", gpu, 4) for gpu in range(gpus)),
        *(("own_gpu", gpu, gpus) for gpu in range(gpus)),
    ]
    if on_h200():
        assert [table.table_bytes for table in taken] == [4 * 16 * MIB] * gpus + [16 * MIB] * gpus


@pytest.mark.two_gpus
def test_memory_opened_on_another_gpu_gets_every_word_and_costs_a_context_or_nothing(
    whole: dict[str, Any], shared: Registrations
) -> None:
    gpus, opened = runtime.getDeviceCount(), shared.opened
    if not opened:
        assert any("cannot open memory of GPU" in line for line in whole["run"]["notes"]), whole["run"]["notes"]
        return
    assert len(opened) == gpus * (gpus - 1)
    for cell in opened:
        assert cell.wrong_count == 0
        assert set(cell.rates) == {"host", "device"}
        assert cell.context_bytes is not None
        assert cell.context_bytes < 8 * MIB or CONTEXT[0] < cell.context_bytes < CONTEXT[1], opened


class SameGpuTwice(CudaLab):
    """A machine with two GPUs that are one and the same."""

    def peers(self) -> Sequence[int]:
        return (0, 1)

    def place_of(self, device: int) -> str:
        return super().place_of(0)


def test_memory_opened_on_the_same_gpu_gets_every_word_and_takes_no_context() -> None:
    bus_ids = {device.index: device.pci_bus_id for device in capture_environment().devices if device.pci_bus_id}
    params = RegistrationParams.preset("cuda", True).with_overrides({"strategies": "one_owner"})
    with SameGpuTwice(0, bus_ids) as lab:
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
