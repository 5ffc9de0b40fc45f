"""What a process holds of memory that the kernel cannot reclaim, as one amount."""

from __future__ import annotations

from pinscope.records.snapshot import Holder
from pinscope.records.timeline import HolderSample


def held_bytes(
    host_alloc: int | None,
    registered: int | None,
    locked: int | None,
    vm_pin: int | None = None,
    driver_memory: int | None = None,
) -> int | None:
    """Pinned, locked and driver memory together, as far as it is known; ``None`` if none of it is.

    CUDA's memory may be locked as well, and pinned by the kernel's account, so the largest of the three counts.

    Args:
        host_alloc: cudaHostAlloc memory, in bytes as all of them.
        registered: cudaHostRegister memory.
        locked: mlock'ed memory (VmLck).
        vm_pin: pinned as the kernel accounts it (VmPin).
        driver_memory: write-combined memory, ``cuMemCreate`` on the host, host pools.
    """
    if all(amount is None for amount in (host_alloc, registered, locked, vm_pin, driver_memory)):
        return None
    return (driver_memory or 0) + max((host_alloc or 0) + (registered or 0), locked or 0, vm_pin or 0)


def held_by(one: Holder | HolderSample, vm_pin: int | None = None) -> int:
    """What a process is known to hold, in bytes, with ``vm_pin`` where the kernel's account is to count as well."""
    return (
        held_bytes(one.host_alloc_bytes, one.registered_bytes, one.locked_bytes, vm_pin, one.driver_memory_bytes) or 0
    )


def is_only_locked(holder: Holder) -> bool:
    """Whether all that it is known to hold is locked with mlock, which CUDA does not know as pinned.

    A process that uses CUDA may have registered memory, of which /proc shows nothing.
    """
    pinned = (holder.host_alloc_bytes, holder.registered_bytes, holder.vm_pin_bytes)
    mapped = (holder.inherited_bytes, holder.managed_bytes, holder.driver_memory_bytes)
    return bool(holder.locked_bytes) and not (holder.cuda or any(pinned) or any(mapped))
