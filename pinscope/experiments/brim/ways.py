"""Ways to pin in the group. On the host model the first two are mlock, and there is no third."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pinscope.analysis.ways import Way, way

WayName = Literal["registered", "pinned", "write_combined"]
WAYS: Mapping[WayName, Way] = {
    "registered": way("touched and registered"),
    "pinned": way("cudaHostAlloc"),
    "write_combined": way("write-combined"),
}
