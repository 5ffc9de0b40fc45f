"""What a trace shows to be costly or wrong: the texts of all its findings, and those that fire."""

from __future__ import annotations

from itertools import islice

from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import Finding, quantity
from pinscope.tracing.trace import (
    calls,
    cpu_work,
    failed_calls,
    hazards,
    managed,
    needless,
    pageable,
    unrecorded,
    what_if,
)
from pinscope.tracing.trace.answer import RULES
from pinscope.tracing.trace.reading import Traced

MOST_ACCUSED = 5
"""Lines with a finding of their own by each rule; the table has all."""
TEXTS: Texts = {
    **failed_calls.TEXTS,
    **cpu_work.CPU_TEXTS,
    **unrecorded.TEXTS,
    **pageable.TEXTS,
    **needless.NEEDLESS_TEXTS,
    **calls.TEXTS,
    **managed.TEXTS,
    "not-recorded": Text(
        "managed memory was not followed",
        "Copies may be missing",
        "{managed}",
        "Nsight Systems shows how managed memory moves.",
        "warning",
    ),
    "records-lost": Text(
        "CUPTI's records could not be read",
        "{lost:bytes} of CUPTI's records could not be read: counts are too low",
        "They have another layout than the library of CUPTI says.",
        "Trace it with another version of CUPTI: pip install nvidia-cuda-cupti (CUDA 12: nvidia-cuda-cupti-cu12).",
        "warning",
    ),
    "program-failed": Text(
        "the program did not end well",
        "The program {failure}",
        "The trace holds what it did until then.",
        "What the program wrote to its terminal says why.",
    ),
    **what_if.TEXTS,
    **hazards.TEXTS,
}


def findings(traced: Traced) -> tuple[Finding, ...]:
    """All that the rules find."""
    seen, second_run = traced.seen, traced.second_run
    is_waited = isinstance(second_run, what_if.Waited)
    costed: list[Costed] = [*failed_calls.failed_findings(seen)]
    if not is_waited:
        costed += hazards.hazard_findings(seen)
    costed += unrecorded.children_findings(seen)
    for rule in RULES:
        if not (is_waited and rule is calls.waiting):
            costed += islice((cost.finding for cost in rule(seen) if cost.finding), MOST_ACCUSED)
    if words := managed.managed_words(seen):
        costed.append(say(TEXTS, "not-recorded", managed=words))
    if lost := seen.program["lost_bytes"]:
        costed.append(say(TEXTS, "records-lost", quantity("Bytes that could not be read", lost, "bytes"), lost=lost))
    if second_run is None and seen.failure:
        costed.append(say(TEXTS, "program-failed", failure=seen.failure))
    return (*(second_run.findings() if second_run else ()), *(finding for _, finding in costed))
