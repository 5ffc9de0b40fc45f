"""What a process holds of memory that the kernel cannot reclaim, as one amount."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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


def held_by(holder: Holder | HolderSample, vm_pin: int | None = None) -> int:
    """What a process is known to hold, in bytes, with ``vm_pin`` where the kernel's account is to count as well."""
    pinned = holder.host_alloc_bytes, holder.registered_bytes, holder.locked_bytes
    return held_bytes(*pinned, vm_pin, holder.driver_memory_bytes) or 0


def is_only_locked(holder: Holder) -> bool:
    """Whether all that it is known to hold is locked with mlock, which CUDA does not know as pinned.

    A process that uses CUDA may have registered memory, of which /proc shows nothing.
    """
    pinned = (holder.host_alloc_bytes, holder.registered_bytes, holder.vm_pin_bytes)
    mapped = (holder.inherited_bytes, holder.managed_bytes, holder.driver_memory_bytes)
    return bool(holder.locked_bytes) and not (holder.cuda or any(pinned) or any(mapped))


SETTING_NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Environment variables with PyTorch's settings: the newer name first."""
REGISTER_THREADS = 8
"""That PyTorch touches with where it registers: more bring little, its documentation says."""
UNROUNDED_SINCE = "2.14"
"""The first release of PyTorch in which the rounding can be switched off without the fault of pytorch#192722."""
ROUNDING_ADVICE = (
    "Split it into powers of two (40 GiB into 32 and 8), or pin one buffer with pinscope.pinned_empty, which does not "
    "round so, and use it again once its last copy is done. With PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:N, "
    f"PyTorch {UNROUNDED_SINCE} and later do not round above N MiB. Never set that in PyTorch 2.13: it can corrupt "
    "memory there (pytorch#192722)."
)


def rounded_up(nbytes: int) -> int:
    """Bytes that the allocator takes for a request, unless it is configured otherwise: a power of two."""
    return 1 << (nbytes - 1).bit_length()


@dataclass(frozen=True)
class PoolSetting:
    """One way to set PyTorch's pool of pinned memory.

    Attributes:
        text: the value of PYTORCH_ALLOC_CONF; ``None`` leaves what is in force.
        reason: why it is not to be set here; ``None`` if it may be.
    """

    text: str | None
    reason: str | None = None


def pool_settings(version: str, nbytes: int) -> Mapping[str, PoolSetting]:
    """The settings that bear on a request of ``nbytes``, by name, for one release of PyTorch.

    ``in_force`` is whatever the environment says, ``none`` nothing at all.
    """
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    segment = -(-rounded_up(nbytes) // 2**20)
    threads = f"pinned_num_register_threads:{REGISTER_THREADS}"
    return {
        "in_force": PoolSetting(None),
        "none": PoolSetting(""),
        "register": PoolSetting(f"pinned_use_cuda_host_register:True,{threads}"),
        "segment": PoolSetting(f"pinned_reserve_segment_size_mb:{segment}"),
        "unrounded": _unrounded(release),
    }


def _unrounded(release: tuple[int, ...]) -> PoolSetting:
    if release >= (2, 14):
        return PoolSetting("pinned_max_round_threshold_mb:1")
    if release >= (2, 13):
        return PoolSetting(None, "In PyTorch 2.13 it can corrupt memory (pytorch#192722).")
    known = ".".join(map(str, release)) or "this release"
    return PoolSetting(None, f"PyTorch {known} has no setting against the rounding; {UNROUNDED_SINCE} and later have.")
