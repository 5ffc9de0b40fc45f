"""Who holds pinned memory now. What the probes give in; frozen snapshots, what they mean, and series of them out.

Imports ``probes``, ``analysis`` and ``records``, in ``timeline/`` also ``charts``, with Plotly where it draws. Looks at
the machine through the probes (``tracker`` also reads the driver's library, and has uprobes set in the kernel), keeps
nothing on disk, and has threads of its own in ``sampler``; ``findings`` and ``timeline/`` touch no machine.

``source`` takes a snapshot, ``holder`` makes one holder of it, ``tracker`` follows calls by uprobes, ``copies`` sums up
those that copy, ``sampler`` repeats. ``findings`` are the verdict on one snapshot and its rules. ``series`` has what
follows from several: events, who grows, the rows of a timeline; ``timeline/`` is the run that keeps them, with its
reading, findings, charts.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinscope.records.snapshot import Snapshot


class _Room(ModuleType):
    """The room is also what ``pinscope.live()`` calls: Python gives the package's attribute to the module."""

    def __call__(self) -> Snapshot:
        """Who holds pinned memory on this host now.

        The keys of a snapshot, such as ``host.pinned_bytes`` and ``holders``, are those of its JSON.
        """
        with import_module("pinscope.live.source").open_source() as source:
            taken: Snapshot = source.take()
            return taken


sys.modules[__name__].__class__ = _Room
