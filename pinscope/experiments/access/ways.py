"""Ways to use data that lies on the host, and what kernels do to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pinscope.analysis.cells import LineStyle, Way, way

WayName = Literal["copy", "copy_part", "mapped", "managed", "prefetched"]
PatternName = Literal["stream_read", "stream_write", "random_read", "scatter_write"]
WAYS: Mapping[WayName, Way] = {
    "copy": way("explicit copy", "an explicit copy", LineStyle("copy"), help="all of it to the GPU first"),
    "copy_part": way(
        "2D copy of the part",
        "a 2D copy of the part",
        LineStyle("copy", "circle-open", "dash"),
        help="a 2D copy of the blocks that are used",
    ),
    "mapped": way(
        "zero-copy (mapped)",
        "zero-copy",
        LineStyle("mapped", "triangle-up"),
        help="the kernel reaches host memory in place (zero-copy)",
    ),
    "managed": way(
        "managed, on demand",
        "managed memory that migrates on demand",
        LineStyle("managed", "pentagon"),
        kinds="managed",
        help="pages migrate on demand",
    ),
    "prefetched": way(
        "managed, prefetched",
        "prefetched managed memory",
        LineStyle("managed", "pentagon-open", "dash"),
        kinds="managed",
        help="managed memory, brought beforehand",
    ),
}
PATTERNS: Mapping[PatternName, str] = {
    "stream_read": "streaming read",
    "stream_write": "streaming write",
    "random_read": "random read",
    "scatter_write": "scatter write",
}
