"""A process that pins through PyTorch with settings of its own: they are read once, when PyTorch first allocates.

A program that :mod:`pinscope.lab.child_processes` starts.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from pinscope.analysis.pytorch_pinned import SETTING_NAMES
from pinscope.errors import NotPossible
from pinscope.lab.orders import Reply, obey


class TorchPool:
    """What the process can do: each public method is an order.

    Args:
        place: PCI bus id of the GPU.
        settings: of PyTorch's allocators; ``None`` leaves those in force.
    """

    def __init__(self, place: str, settings: str | None) -> None:
        self._place = place
        self._tensor: Any = None
        if settings is not None:
            for name in SETTING_NAMES:
                os.environ.pop(name, None)
        if settings:
            os.environ[SETTING_NAMES[0]] = settings

    def start(self) -> Reply:
        """Make a context on the GPU; the settings in force.

        Raises:
            NotPossible: this PyTorch cannot use the GPU.
        """
        import torch  # noqa: PLC0415 - the settings must stand before

        from pinscope.lab.torch_pinned import version, why_not_torch  # noqa: PLC0415

        if reason := why_not_torch():
            raise NotPossible(reason)
        torch.cuda.set_device(_ordinal(self._place))
        torch.ones(1, device="cuda")
        torch.cuda.synchronize()
        in_force = [f"{name}={os.environ[name]}" for name in SETTING_NAMES if os.environ.get(name)]
        return {"version": version(), "in_force": " ".join(in_force)}

    def take(self, nbytes: int) -> Reply:
        """Pin a tensor of so many bytes."""
        import torch  # noqa: PLC0415

        begun = time.perf_counter()
        self._tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        return {"seconds": time.perf_counter() - begun, **_statistics()}

    def drop(self) -> Reply:
        """Let go of the tensor: what PyTorch keeps, it keeps for later."""
        self._tensor = None
        return _statistics()

    def empty(self) -> Reply:
        """Ask PyTorch to give back what it keeps."""
        from pinscope.lab.torch_pinned import empty_pinned_cache  # noqa: PLC0415

        return {"emptied": empty_pinned_cache(), **_statistics()}


def _ordinal(place: str) -> int:
    """CUDA's number of the GPU with this PCI bus id."""
    import torch  # noqa: PLC0415

    for index in range(torch.cuda.device_count()):
        found: Any = torch.cuda.get_device_properties(index)
        bus = (getattr(found, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id"))
        if place.lower() == "{:04x}:{:02x}:{:02x}.0".format(*(part or 0 for part in bus)):
            return index
    return 0


def _statistics() -> Reply:
    """Bytes of the blocks that PyTorch has pinned, in use or kept; ``None`` where this PyTorch does not tell.

    What is in use, ``active_bytes``, is wrong up to PyTorch 2.12.1: CachingHostAllocator's ``free`` does not count down
    for a block that no stream used, and ``get_free_block`` counts up again when it is handed out (pytorch#182404).
    """
    import torch  # noqa: PLC0415

    found: dict[str, int] = getattr(torch.cuda, "host_memory_stats", dict)()
    # Up to which release ``allocated_bytes`` were those in use, beside ``reserved_bytes``, differs.
    return {"pool_bytes": found.get("reserved_bytes.current", found.get("allocated_bytes.current"))}


if __name__ == "__main__":
    sys.exit(obey(TorchPool))
