"""Who pins memory that several processes share, and what kind of memory it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pinscope.analysis.ways import LineStyle, Way, way

Strategy = Literal["each_registers", "one_owner"]
Sharing = Literal["memfd", "shm_open", "shm_open_portable", "hugetlb", "hugetlb_1g"]
PORTABLE: Sharing = "shm_open_portable"
WAYS: Mapping[str, Way] = {
    "each_registers": way("each process registers", style=LineStyle("registered")),
    "one_owner": way("one owner copies for all", "one owner", LineStyle("pinned")),
}
"""Who pins."""
SHARINGS: Mapping[Sharing, Way] = {
    "memfd": way("memory without a name"),
    "shm_open": way("POSIX segment"),
    "shm_open_portable": way("POSIX segment, portable"),
    "hugetlb": way("hugetlb pages"),
    "hugetlb_1g": way("hugetlb pages of 1 GiB"),
}
"""What the processes share, and whether they register it for all contexts."""
