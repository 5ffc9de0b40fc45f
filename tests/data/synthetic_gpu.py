"""SYNTHETIC answers of NVML: a GPU as one idle H200 describes itself, for tests to change."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pinscope.probes.gpu import GpuMemory, read_gpus
from pinscope.probes.proc import Answer, Proc
from pinscope.records.snapshot import DeviceFigures, GpuProcess
from tests.data.gpu_fake import FakeGpu, FakeNvml

RESERVED = 600_000_000
SYSFS = "/sys/bus/pci/devices/0000:1b:00.0"
"""Where sysfs shows the GPU of :func:`idle_h200`."""


def configuration_space(payload_code: int = 1, express: int = 0x10) -> bytes:
    """256 bytes with two capabilities: power management at 0x40, then PCI Express at 0x60, as on an H200."""
    content = bytearray(256)
    content[0x34] = 0x40
    content[0x40:0x42] = bytes([0x01, 0x60])
    content[0x60:0x62] = bytes([express, 0x00])
    content[0x68:0x6A] = (0x5014 | payload_code << 5).to_bytes(2, "little")
    return bytes(content)


def on_bus(payload_code: int = 1) -> dict[str, str | bytes]:
    """Files of sysfs about it on bare metal, with an IOMMU that translates."""
    return {
        "/proc/cpuinfo": "flags\t\t: fpu sse\n",
        f"{SYSFS}/config": configuration_space(payload_code),
        f"{SYSFS}/numa_node": "0\n",
        f"{SYSFS}/iommu_group/type": "DMA-FQ\n",
        f"{SYSFS}/aer_dev_correctable": "RxErr 0\nBadTLP 2\nTOTAL_ERR_COR 2\n",
        f"{SYSFS}/aer_dev_nonfatal": "Undefined 0\nTOTAL_ERR_NONFATAL 0\n",
        f"{SYSFS}/aer_dev_fatal": "Undefined 0\nTOTAL_ERR_FATAL 0\n",
    }


def idle_h200() -> FakeGpu:
    """A GPU that answers everything that an H200 answers."""
    return FakeGpu(
        name=Answer("NVIDIA H200"),
        uuid=Answer("GPU-00000000-0000-4000-8000-000000000001"),
        pci_bus_id=Answer("00000000:1B:00.0"),
        minor=Answer(0),
        memory=Answer(GpuMemory(total=150_754_820_096, free=150_000_000_000, used=754_820_096, reserved=RESERVED)),
        compute_capability=Answer((9, 0)),
        numa_node=Answer(0),
        c2c=Answer.missing("the GPU has no NVLink-C2C"),
        pcie={
            "generation_now": Answer(5),
            "width_now": Answer(16),
            "generation_max": Answer(5),
            "gpu_generation_max": Answer(5),
            "width_max": Answer(16),
        },
        processes=Answer(()),
        bar1=Answer((274_877_906_944, 1_048_576)),
        pcie_rate={"rx": Answer(27.6e9), "tx": Answer(0.0)},
        utilization=Answer((0.5, 0.25)),
        clock={"sm": Answer(1.98e9), "memory": Answer(3.201e9)},
        temperature=Answer(31.0),
        copy_engines=Answer.missing("nvmlDeviceGetAttributes_v2: Not Supported"),
        mig=Answer(()),
    )


def busy_h200(unattributed_bytes: int, *processes: GpuProcess) -> FakeGpu:
    """One with processes, and with so much used memory that is of none of them."""
    gpu = idle_h200()
    used = unattributed_bytes + sum(process.memory_bytes or 0 for process in processes)
    assert gpu.memory is not None
    assert gpu.memory.value is not None
    memory = dataclasses.replace(gpu.memory.value, used=used, free=gpu.memory.value.total - RESERVED - used)
    return dataclasses.replace(gpu, memory=Answer(memory), processes=Answer(processes))


def figures(proc: Proc, gpus: Sequence[FakeGpu]) -> Answer[tuple[DeviceFigures, ...]]:
    """What a snapshot is given of them."""
    with FakeNvml(gpus=gpus) as nvml:
        return read_gpus(nvml, proc)
