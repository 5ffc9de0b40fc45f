"""What a page_tables run answers, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.conclusions import HOST_MODEL, part_words
from pinscope.experiments.page_tables.arithmetic import ALL_RETURNED, GIB, Cost, unreached
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_share


def page_tables_verdict(run: ExperimentRun, found: Sequence[Cost]) -> str | None:
    """What a pinned GiB takes and whether it comes back; ``None`` where the meter shows no straight growth."""
    without_access = unreached(found)
    found = [cost for cost in found if cost not in without_access]
    known = [cost for cost in found if cost.growth.known_slope and cost.growth.straight]
    own = [cost for cost in known if cost.way.device == run.device]
    if not own:
        return None
    amount = _amount(found, own)
    if run.lab == "host":
        return f"{HOST_MODEL}each locked GiB takes {amount} of the kernel's page tables{_back(own)}."
    table = f"GPU memory for its page table{_share(own)}"
    kinds = "" if amount.startswith("up to") else _kinds(own)
    return f"Each pinned GiB takes {amount} of {table}{kinds}{_where(run, found, known)}{_back(own)}."


def _amount(found: Sequence[Cost], own: Sequence[Cost]) -> str:
    """One figure where one fits all ways, else the least and the most; ``own``: those whose figure is known."""
    slopes = [cost.growth.known_slope for cost in own if cost.growth.known_slope]
    middles = [cost.growth.per_byte * GIB for cost in own if cost.growth.per_byte]
    floor = max(slope.low for slope in slopes)
    if any(_takes_less(cost, own[0], floor) for cost in found if cost not in own):
        return f"up to {format_bytes(round(max(middles)))}"
    if floor <= min(slope.high for slope in slopes):
        return format_bytes(round(middles[0]))
    return f"{format_bytes(round(min(middles)))} to {format_bytes(round(max(middles)))}"


def _kinds(own: Sequence[Cost]) -> str:
    """In how many ways, where more than the usual two kinds were measured."""
    kinds = {cost.way.memory for cost in own}
    return "" if kinds <= {"pinned", "registered"} else f", in each of {len(own)} ways to pin"


def _share(own: Sequence[Cost]) -> str:
    """What that is of the pinned memory, at most: so little that it rarely decides anything."""
    return f" ({format_share(max(cost.growth.per_byte or 0.0 for cost in own))} of the pinned size)"


def _takes_less(cost: Cost, known: Cost, floor: float) -> bool:
    """Whether a way on the same device took so little that no figure of it is known."""
    slope = cost.growth.slope
    return cost.way.device == known.way.device and slope is not None and slope.high < floor


def _where(run: ExperimentRun, found: Sequence[Cost], known: Sequence[Cost]) -> str:
    """On which of several GPUs; of one alone nothing need be said."""
    devices, paying = ({cost.way.device for cost in costs} for costs in (found, known))
    if len(devices) == 1:
        return ""
    if paying == {run.device}:
        return f", on 1 of {len(devices)} GPUs with a context"
    return f" on each of {len(paying)} GPUs" + (f" (of {len(devices)})" if paying != devices else "")


def _back(own: Sequence[Cost]) -> str:
    returned = [cost.growth.returned for cost in own if cost.growth.returned is not None]
    if not returned:
        return ""
    least = min(returned)
    return (
        "; freeing gives all of it back" if least >= ALL_RETURNED else f"; freeing gave {part_words(least)} of it back"
    )
