"""What a run must carry of a GPU beside what a live view reads each second."""

from __future__ import annotations

from pinscope.probes.answer import Answer
from pinscope.probes.gpu import GpuReader, PcieError
from pinscope.probes.pci import iommu, link_errors, sysfs_folder
from pinscope.probes.proc import Proc
from pinscope.records.environment import Device, LinkErrors


def with_details(nvml: GpuReader, proc: Proc, device: Device) -> Device:
    """The same GPU with its IOMMU, its BAR1, its persistence mode and the errors that its link has had."""
    missing = {**device.missing, "link_errors_after": "nothing was run"}
    folder = _folder(device)
    bar1 = nvml.bar1(device.index).then(lambda window: window.total, "")
    whole = bar1.then(
        lambda window: window >= device.memory_total_bytes if device.memory_total_bytes else None,
        missing.get("memory_total_bytes", "its memory is not known"),
    )
    between = iommu(proc, folder.value) if folder.value else Answer(None, folder.reason)
    return device.model_copy(
        update={
            "iommu": between.note(missing, "iommu"),
            "bar1_bytes": bar1.note(missing, "bar1_bytes"),
            "bar1_covers_memory": whole.note(missing, "bar1_covers_memory"),
            "persistence_mode": nvml.persistence_mode(device.index).note(missing, "persistence_mode"),
            "link_errors": read_link_errors(nvml, proc, device),
            "missing": missing,
        }
    )


def read_link_errors(nvml: GpuReader, proc: Proc, device: Device) -> LinkErrors:
    """The errors that were counted on the GPU's link until now."""
    missing: dict[str, str] = {}
    folder = _folder(device)

    def counted(kind: PcieError) -> int | None:
        by_kernel = link_errors(proc, folder.value, kind).value if folder.value else None
        return by_kernel if by_kernel is not None else nvml.pcie_errors(device.index, kind).note(missing, kind)

    return LinkErrors(
        replays=nvml.pcie_errors(device.index, "replays").note(missing, "replays"),
        correctable=counted("correctable"), nonfatal=counted("nonfatal"), fatal=counted("fatal"),
        missing=missing,
    )  # fmt: skip


def _folder(device: Device) -> Answer[str]:
    if device.pci_bus_id is None:
        return Answer.missing(device.missing.get("pci_bus_id", "its PCI address is not known"))
    folder = sysfs_folder(device.pci_bus_id)
    return Answer(folder) if folder else Answer.missing(f"{device.pci_bus_id} is no PCI address")
