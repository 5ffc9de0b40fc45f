"""Are two samples of a series so far apart that some are missing between them?"""

from __future__ import annotations

GAP_INTERVALS = 2.5
GAP_SECONDS = 1.0
"""Two samples are apart by a gap if more than 2.5 intervals, and more than one interval and a second, lie between."""
FEW_MISSING = 0.05
"""Share of samples that may be missing: with more of them a series is no proof of anything."""


def gap_seconds(interval_seconds: float) -> float:
    """Samples that are further apart than this, of a series with that interval, have a gap between them."""
    return max(GAP_INTERVALS * interval_seconds, interval_seconds + GAP_SECONDS)
