"""What each strategy does, in words, and what the processes beside it do meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from pinscope.analysis.cells import LineStyle, Way, of_kind, way
from pinscope.analysis.pinning_strategy import CALLS, StrategyCell
from pinscope.analysis.texts import fill
from pinscope.records.pinning_strategy import STRATEGIES

PHRASES: Mapping[str, str] = {
    "host_alloc": "one cudaHostAlloc",
    "host_alloc_chunks": "one cudaHostAlloc for each {chunk:bytes}",
    "register_untouched": "register memory that nobody touched, in 4 KiB pages, once",
    "touch_register": "touch 4 KiB pages with {threads:threads}, then register once",
    "touch_register_chunks": "touch 4 KiB pages with {threads:threads}, then register each {chunk:bytes}",
    "thp_register": "touch huge pages with {threads:threads}, then register once",
    "thp_register_chunks": "touch huge pages with {threads:threads}, then register each {chunk:bytes}",
    "thp_register_threads": "touch huge pages with {threads:threads}, which then register {chunk:bytes} each",
    "thp_pipeline": "touch huge pages with {threads:threads}, and register each {chunk:bytes} once touched",
}
WAYS: Mapping[str, Way] = {name: way(strategy.title, PHRASES[name]) for name, strategy in STRATEGIES.items()}
"""The strategies. Their phrase says what a program does, with places for its threads and chunks."""
NEIGHBOURS: Mapping[str, Way] = {
    "info": way(CALLS["info"], style=LineStyle("issue"), kinds="context"),
    "nvml": way(CALLS["nvml"], style=LineStyle("issue", "triangle-down")),
    "kernel": way(CALLS["kernel"], style=LineStyle("compute", "square"), kinds="context"),
    "allocation": way(CALLS["allocation"], style=LineStyle("issue", "diamond"), kinds="context"),
    "control": way("no driver calls", style=LineStyle("reference", "x")),
}
"""What processes on the same GPU do again and again. The control makes no call: it says how late it woke, which is
waiting for a processor. Those of the kind ``context`` need a CUDA context each."""
WITH_CONTEXT = of_kind(NEIGHBOURS, "context")


def phrase(cell: StrategyCell) -> str:
    """What a program does that pins this way."""
    return fill(WAYS[cell.strategy].phrase, {"threads": cell.threads, "chunk": cell.chunk_bytes})
