"""What a trace shows to be costly or wrong: the texts of all its findings, and those that fire."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import Finding, quantity
from pinscope.tracing.trace import calls, cpu_work, failed_calls, hazards, managed, needless, pageable, unrecorded
from pinscope.tracing.trace.answer import RULES
from pinscope.tracing.trace.reading import Traced
from pinscope.tracing.trace.what_if import WhatIf

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
    "what-if-output-differs": Text(
        "the second run of --what-if wrote something else to stdout",
        "With lines pinned the program wrote something else to stdout",
        "A program that prints times or uses random numbers without a seed does so in each run.",
        "Fix the seeds, print no times, and try again: then the same output shows that the results are equal.",
        "warning",
    ),
    **hazards.TEXTS,
}


def findings(traced: Traced) -> tuple[Finding, ...]:
    """All that the rules find."""
    seen, what, waited = traced.seen, traced.what, traced.waited
    costed: list[Costed] = [*failed_calls.failed_findings(seen)]
    if waited is None:
        costed += hazards.hazard_findings(seen)
    costed += unrecorded.children_findings(seen)
    for rule in RULES:
        if rule is not calls.waiting or waited is None:
            costed += islice((cost.finding for cost in rule(seen) if cost.finding), MOST_ACCUSED)
    if words := managed.managed_words(seen):
        costed.append(say(TEXTS, "not-recorded", managed=words))
    if lost := seen.program and seen.program["lost_bytes"]:
        costed.append(say(TEXTS, "records-lost", quantity("Bytes that could not be read", lost, "bytes"), lost=lost))
    if what is None and waited is None and seen.failure:
        costed.append(say(TEXTS, "program-failed", failure=seen.failure))
    second_run = () if waited is None else hazards.waited_findings(waited)
    return (*second_run, *(() if what is None else what_if_findings(what)), *(finding for _, finding in costed))


def what_if_findings(what: WhatIf) -> Iterator[Finding]:
    """A result that differs."""
    if not what.seen.failure and not what.before["same_output"]:
        seconds = quantity("Seconds of the second run", what.seen.seconds, "seconds")
        yield say(TEXTS, "what-if-output-differs", seconds)[1]
