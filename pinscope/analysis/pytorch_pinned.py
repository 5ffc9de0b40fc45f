"""What PyTorch's allocator of pinned memory takes for a request, and what can be done about it.

The allocator rounds a request up to a power of two and keeps freed blocks for later ones. Read from
ATen/core/CachingHostAllocator.h and c10/core/AllocatorConfig.h of the released packages:

- Up to 2.12.1 there is no setting against it; an unknown key ends the program with a ValueError.
- 2.13.0 has ``pinned_max_round_threshold_mb`` (above so many MiB a request is not rounded) and
  ``pinned_max_cached_size_mb`` (above, a block is neither rounded nor kept). There ``get_free_block`` hands out any
  block that is kept for the same power of two, without a look at its size: with the first key below the second, as
  when it stands alone, a program may get a block that is smaller than asked for and write past its end
  (pytorch#192722).
- From 2.14.0 on it compares the sizes, so that the first key is safe alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
