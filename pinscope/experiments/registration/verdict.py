"""What a registration run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.conclusions import on_lab
from pinscope.experiments.registration.arithmetic import SAME_RATE, Trial
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_share


def registration_verdict(
    run: ExperimentRun, each: Trial | None, owner: Trial | None, found: Sequence[Trial], worth: bool
) -> str | None:
    """What every process pays, beside one owner, and at which rate; ``None`` where neither is known.

    Args:
        worth: whether one owner saves much beside what the processes take anyway.
    """
    if any(trial.wrong_words for trial in found):
        return "Data arrived wrong in a process: do not trust any figure of this run."
    tables, rates = _tables(run, each, owner), _rates(each, owner)
    if not tables and not rates:
        return None
    owner_words = "it" if tables else f"one owner of memory that {each.processes if each else 0} processes share"
    sentence = "; ".join([*([tables] if tables else []), *([f"{owner_words} {rates}"] if rates else [])])
    if tables and not worth and not _is_slower(each, owner):
        sentence = f"{tables}: not worth a change at this size"
    return on_lab(run.lab, f"{sentence[0].upper()}{sentence[1:]}.")


def _tables(run: ExperimentRun, each: Trial | None, owner: Trial | None) -> str | None:
    each_bytes, owner_bytes = (trial.table_bytes if trial else None for trial in (each, owner))
    kind = "page tables" if run.lab == "host" else "GPU memory for page tables"
    register = "lock" if run.lab == "host" else "register"
    if each is not None and each_bytes is not None and each_bytes >= 0:
        who = (
            f"{each.processes} processes that {register} the same {format_bytes(each.bytes)} take"
            if each.processes > 1
            else f"a process that {register}s {format_bytes(each.bytes)} takes"
        )
        once = f", one owner {format_bytes(owner_bytes)}" if owner_bytes is not None and owner_bytes >= 0 else ""
        return f"{who} {format_bytes(each_bytes)} of {kind}{once}"
    if owner is None or owner_bytes is None or owner_bytes < 0:
        return None
    return f"one owner of {format_bytes(owner.bytes)} takes {format_bytes(owner_bytes)} of {kind}"


def _is_slower(each: Trial | None, owner: Trial | None) -> bool:
    rates = [trial.rate.median if trial and trial.rate else 0.0 for trial in (each, owner)]
    return rates[1] < (1 - SAME_RATE) * rates[0]


def _rates(each: Trial | None, owner: Trial | None) -> str | None:
    """How one owner's copies do beside those of all; the rate of one strategy alone answers nothing."""
    if each is None or owner is None or not each.rate or not owner.rate or each.processes < 2:
        return None
    ratio, rate = owner.rate.median / each.rate.median, format_bandwidth(owner.rate.median)
    if _is_slower(each, owner):
        return f"copies at {rate}, {format_share(ratio)} of their rate"
    return f"copies {'as fast' if ratio <= 1 + SAME_RATE else 'faster'} ({rate})"
