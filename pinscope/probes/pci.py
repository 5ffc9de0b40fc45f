"""A PCI device as sysfs shows it: its NUMA node, IOMMU, packet size, and the errors on its link."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from pinscope.probes.answer import Answer
from pinscope.probes.proc import Proc, whole
from pinscope.probes.virtualization import hypervisor
from pinscope.records.environment import Iommu
from pinscope.units import format_bytes

_BUS_ID = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<rest>[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.IGNORECASE)
_GROUP_TYPES: Mapping[str, Iommu] = {"identity": "passthrough", "DMA": "translating", "DMA-FQ": "translating"}
"""What the kernel writes into a group's ``type`` (Documentation/ABI/testing/sysfs-kernel-iommu_groups)."""
_AER_TOTALS = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}
"""Kind of error → the line of ``aer_dev_KIND`` that sums them up (sysfs-bus-pci-devices-aer_stats)."""
# PCI Local Bus Specification 3.0, 6.7 (capability list), and PCI Express Base Specification, 7.5.3 (its capability).
_LIST_POINTER, _FIRST_CAPABILITY, _MOST_CAPABILITIES = 0x34, 0x40, 48
_PCI_EXPRESS, _DEVICE_CONTROL = 0x10, 0x08


def sysfs_folder(bus_id: str) -> str | None:
    """The folder of the device with this address; ``None`` if it is no PCI address.

    NVML writes the domain with eight digits, CUDA with four, sysfs with at least four.
    """
    match = _BUS_ID.fullmatch(bus_id)
    if match is None:
        return None
    return f"/sys/bus/pci/devices/{int(match['domain'], 16):04x}:{match['rest'].lower()}"


def iommu(proc: Proc, folder: str) -> Answer[Iommu]:
    """What stands between the device and host memory, as far as this kernel sees it: a hypervisor may add more."""
    group = proc.line(f"{folder}/iommu_group/type")
    if group.value is not None:
        return group.then(_GROUP_TYPES.get, f"the kernel calls the GPU's IOMMU group {group.value!r}")
    if proc.exists(f"{folder}/iommu_group"):
        return Answer(None, group.reason)
    return Answer("off") if proc.exists(folder) else Answer.missing(f"{folder} is not there")


def link_errors(proc: Proc, folder: str, kind: str) -> Answer[int]:
    """Errors of one kind (``correctable``, ``nonfatal``, ``fatal``) that the kernel counted since boot."""
    path, key = f"{folder}/aer_dev_{kind}", _AER_TOTALS[kind]
    if not proc.exists(path) and proc.exists(folder):
        return Answer.missing("the kernel counts no errors of this device (no Advanced Error Reporting)")
    return proc.fields(path).text(key).then(whole, f"{path} makes no sense")


@lru_cache(maxsize=64)
def max_payload(proc: Proc, folder: str) -> Answer[int]:
    """Most bytes of data in one packet of this device (Max_Payload_Size). Set at boot, so read once.

    A hypervisor makes up a guest's configuration space: what stands there need not be what the hardware does.
    """
    read = _device_control(proc, folder).then(_payload_bytes, "the device does not answer")
    name = hypervisor(proc)
    if name is None or read.value is None:
        return read
    return Answer.missing(f"the configuration space, made up by a hypervisor ({name}), says {format_bytes(read.value)}")


def _device_control(proc: Proc, folder: str) -> Answer[int]:
    """The Device Control register. Each read is a bus cycle: no more of them than it takes."""
    path = f"{folder}/config"
    place = proc.part(path, _LIST_POINTER, 1)
    for _ in range(_MOST_CAPABILITIES):
        if place.value is None:
            return Answer(None, place.reason)
        at = place.value[0] & 0xFC
        if at < _FIRST_CAPABILITY:
            return Answer.missing("the device has no PCI Express capability")
        head = proc.part(path, at, 2)
        if head.value is None:
            short = "ends before" in (head.reason or "")  # others see the first 64 bytes
            return Answer.missing(f"only root may read all of {path}" if short else head.reason or "")
        if head.value == b"\xff\xff":
            return Answer.missing("the device does not answer")
        if head.value[0] == _PCI_EXPRESS:
            return proc.part(path, at + _DEVICE_CONTROL, 2).then(lambda two: int.from_bytes(two, "little"))
        place = Answer(head.value[1:])
    return Answer.missing(f"the capabilities in {path} go round in a circle")


def _payload_bytes(control: int) -> int | None:
    code = control >> 5 & 7
    return 128 << code if code <= 5 else None
