"""Which lines copy the batches of which DataLoader, by the library's calls that were given these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from pinscope.records.trace_row import LARGE_BYTES, TraceRow
from pinscope.tracing.line_totals import LineTotals, unnumbered
from pinscope.tracing.mapped_file import LOADER


def loaders(totals: LineTotals) -> Iterator[TraceRow]:
    """Each DataLoader with each site that copies large tensors of its batches, and how many copies those are."""
    rows = np.flatnonzero(totals.copies["bytes"] > LARGE_BYTES)
    places = totals.call_places(totals.copies[rows])
    rows, places = rows[places >= 0], places[places >= 0]
    calls = totals.host.of_driver_calls[places]
    rows, calls = rows[calls >= 0], calls[calls >= 0]
    numbers, sites = totals.host.calls["flags"][calls] >> LOADER, totals.site_of_copies[rows]
    for (number, site), count in Counter(zip(numbers.tolist(), sites.tolist(), strict=True)).items():
        if (made := totals.made_loaders.get(number)) is not None:
            stack = int(totals.known_stacks(np.asarray([made["stack"]]))[0])
            yield unnumbered(
                kind="loader",
                number=site,
                count=count,
                pins_batches=made["pins"],
                workers=made["workers"],
                **totals.where(stack),
            )
