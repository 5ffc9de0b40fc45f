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

UNROUNDED_SINCE = "2.14"
"""The first release of PyTorch in which the rounding can be switched off without the fault of pytorch#192722."""
ROUNDING_ADVICE = (
    "Ask for sizes at or just below a power of two, or pin one buffer with pinscope.pinned_empty, which does not round "
    f"so, and use it again. With PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:N, PyTorch {UNROUNDED_SINCE} and "
    "later do not round above N MiB. Never set that in PyTorch 2.13: it can corrupt memory there (pytorch#192722)."
)


def rounded_up(nbytes: int) -> int:
    """Bytes that the allocator takes for a request, unless it is configured otherwise: a power of two."""
    return 1 << (nbytes - 1).bit_length()
