"""The probes on a real GPU, against what nvidia-smi says."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from io import StringIO

import pytest

from pinscope.analysis.machine import machine_findings
from pinscope.probes.capabilities import capabilities
from pinscope.probes.environment import capture_environment
from pinscope.probes.gpu import Nvml

pytestmark = pytest.mark.gpu

QUERY = "index,name,uuid,pci.bus_id,memory.total,compute_cap,driver_version,pcie.link.gen.max,pcie.link.width.max"


@pytest.fixture
def nvml() -> Iterator[Nvml]:
    with Nvml() as opened:
        yield opened


@pytest.fixture
def stated() -> list[list[str]]:
    """One line per GPU, as nvidia-smi states it."""
    command = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return [[cell.strip() for cell in row] for row in csv.reader(StringIO(text))]


def test_devices_are_those_that_nvidia_smi_states(stated: list[list[str]]) -> None:
    environment = capture_environment()
    assert len(environment.devices) == len(stated)
    for device, row in zip(environment.devices, stated, strict=True):
        index, name, uuid, bus_id, memory, capability, driver, generation, width = row
        assert [str(device.index), device.name, device.uuid] == [index, name, uuid]
        assert (device.pci_bus_id or "").lower() == bus_id.lower()
        assert device.memory_total_bytes is not None
        # nvidia-smi states MiB, rounded down or up with the driver's branch.
        assert abs(device.memory_total_bytes / 2**20 - float(memory)) <= 1
        assert device.compute_capability == capability
        assert environment.driver == driver
        assert device.link is not None
        if device.link.kind == "pcie":
            assert [str(device.link.generation_max), str(device.link.width_max)] == [generation, width]
            assert device.link.limit_bytes_per_second is not None


def test_every_missing_field_of_a_device_has_a_reason() -> None:
    for device in capture_environment().devices:
        nothing = {name for name, value in device.model_dump().items() if value is None}
        assert nothing <= set(device.missing)


def test_memory_adds_up(nvml: Nvml) -> None:
    memory = nvml.memory(0).value
    assert memory is not None
    assert 0 < memory.free <= memory.total
    assert memory.used + memory.free + (memory.reserved or 0) <= memory.total * 1.001


def test_a_gpu_that_is_not_there_is_a_reason(nvml: Nvml) -> None:
    assert nvml.name(4096).value is None
    assert "Invalid Argument" in (nvml.name(4096).reason or "")


def test_this_machine_can_use_its_gpu() -> None:
    environment = capture_environment()
    works = {one.name: one.works for one in capabilities(environment)}
    assert works["gpu"]
    assert works["driver"]
    assert works["nvml"]
    assert works["cuda-lab"] == works["cupy"]
    assert "no-gpu" not in {finding.rule for finding in machine_findings(environment)}
