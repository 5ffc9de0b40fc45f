"""What sysfs tells of a GPU's place on the bus, on bare metal, behind an IOMMU, in a virtual machine, as any user."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinscope.probes.devices import read_devices
from pinscope.probes.numa import iommu, link_errors, max_payload, sysfs_folder
from pinscope.records.environment import PCIE
from tests.data.gpu_fake import FakeGpu, FakeNvml
from tests.data.link_limits import pcie_limits
from tests.data.synthetic_gpu import SYSFS, configuration_space, on_bus

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

ON_METAL = "flags\t\t: fpu sse\n"
IN_A_MACHINE = "flags\t\t: fpu sse hypervisor\n"


@pytest.mark.parametrize("written", ["0000:1B:00.0", "00000000:1b:00.0", "0000:1b:00.0"])
def test_an_address_is_found_however_it_is_written(written: str) -> None:
    assert sysfs_folder(written) == SYSFS


def test_what_is_no_address_leads_nowhere() -> None:
    assert sysfs_folder("0000:1b:00.0/../../x") is None


@pytest.mark.parametrize(("code", "payload"), [(0, 128), (1, 256), (2, 512), (5, 4096)])
def test_the_packet_size_is_read_from_the_express_capability(plant: Plant, code: int, payload: int) -> None:
    assert max_payload(plant(on_bus(code)), SYSFS).value == payload


@pytest.mark.parametrize("code", [0, 2])
def test_the_link_limit_follows_the_packet_size(plant: Plant, h200: FakeGpu, code: int) -> None:
    with FakeNvml(gpus=[h200]) as nvml:
        devices = read_devices(nvml, plant(on_bus(code))).value
    assert devices is not None
    link = devices[0].link
    assert link is not None
    assert link.limit_bytes_per_second == PCIE[5].payload_bytes_per_second(16, 128 << code)
    assert (link.limit_bytes_per_second < pcie_limits(5, 16)[1]) == (code == 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (configuration_space()[:64], "only root may read all of"),
        (b"\xff" * 256, "the device does not answer"),
        (bytes(256), "no PCI Express capability"),
        (configuration_space(express=0x05), "no PCI Express capability"),
        (configuration_space(payload_code=7), "the device does not answer"),
        (configuration_space(express=0x05)[:0x61] + b"\x40" + bytes(0x9E), "go round in a circle"),
        (b"", "ends before"),
    ],
)
def test_a_packet_size_that_cannot_be_read_says_why(plant: Plant, content: bytes, why: str) -> None:
    proc = plant({"/proc/cpuinfo": ON_METAL, f"{SYSFS}/config": content})
    found = max_payload(proc, SYSFS)
    assert found.value is None
    assert why in (found.reason or "")


def test_the_packet_size_that_a_hypervisor_shows_is_told_but_not_used(plant: Plant) -> None:
    proc = plant({**on_bus(0), "/proc/cpuinfo": IN_A_MACHINE})
    found = max_payload(proc, SYSFS)
    assert found.value is None
    assert found.reason == "the configuration space, made up by a hypervisor (virtual machine), says 128 B"


@pytest.mark.parametrize(
    ("kind", "meaning"), [("DMA", "translating"), ("DMA-FQ", "translating"), ("identity", "passthrough")]
)
def test_an_iommu_is_named_by_what_it_does(plant: Plant, kind: str, meaning: str) -> None:
    assert iommu(plant({f"{SYSFS}/iommu_group/type": f"{kind}\n"}), SYSFS).value == meaning


def test_a_device_in_no_group_has_no_iommu_and_one_that_is_not_there_is_not_known(plant: Plant) -> None:
    proc = plant({f"{SYSFS}/config": b""})
    assert iommu(proc, SYSFS).value == "off"
    assert iommu(proc, f"{SYSFS}9").reason == f"{SYSFS}9 is not there"


def test_a_group_of_another_type_is_told_as_the_kernel_calls_it(plant: Plant) -> None:
    found = iommu(plant({f"{SYSFS}/iommu_group/type": "blocked\n"}), SYSFS)
    assert found.reason == "the kernel calls the GPU's IOMMU group 'blocked'"


def test_errors_of_the_link_are_the_kernels_totals(plant: Plant) -> None:
    proc = plant(on_bus())
    assert [link_errors(proc, SYSFS, kind).value for kind in ("correctable", "nonfatal", "fatal")] == [2, 0, 0]


def test_where_the_kernel_counts_no_errors_it_says_so(plant: Plant) -> None:
    found = link_errors(plant({f"{SYSFS}/config": b""}), SYSFS, "fatal")
    assert "no Advanced Error Reporting" in (found.reason or "")
