"""Who pins memory that several processes share, what kind of memory it is, and where their contexts lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pinscope.analysis.cells import LineStyle, Way, way

Strategy = Literal["each_registers", "one_owner"]
Contexts = Literal["every_gpu", "own_gpu"]
Source = Literal["host", "device"]
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
CONTEXTS: Mapping[Contexts, str] = {"every_gpu": "every GPU", "own_gpu": "one GPU each"}
"""Where processes on several GPUs have contexts."""
SOURCES: Mapping[Source, Way] = {
    "host": way("From the opener's pinned memory", "its pinned memory"),
    "device": way("From the opener's own GPU", "its own GPU's memory"),
}
"""From where a process copies into the opened memory of another GPU."""
