"""The holders as plain rows: what a table of them shows, on a page or in a terminal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pinscope.analysis.held import is_only_locked
from pinscope.records.bound import bound_of_sum
from pinscope.records.figure import Figure, Number, figures
from pinscope.records.snapshot import GpuUse, Holder
from pinscope.report.snapshot_facts import SIGNS
from pinscope.text import one_line
from pinscope.units import format_value

_OWN, _ON_GPUS = figures(Holder), figures(GpuUse)
COLUMNS: Mapping[str, Figure] = {figure.column: figure for figure in (*_OWN, *_ON_GPUS)}
"""Figures of a holder by the name of their column; the last ones are sums over its GPUs."""
ON_GPUS = frozenset(figure.column for figure in _ON_GPUS)


@dataclass(frozen=True)
class HolderRow:
    """One holder in a line.

    Attributes:
        growing: it takes more and more and gives nothing back.
        only_locked: all that it holds is locked with mlock, which is not pinned.
        gpus: indices of those on which it has a context.
        amounts: of each of :data:`COLUMNS`; ``None`` where not known.
        signs: what stands before those of them that are estimates.
    """

    pid: int
    started_at: datetime | None
    name: str
    user: str | None
    container: str | None
    command: str | None
    growing: bool
    only_locked: bool
    gpus: tuple[int, ...]
    amounts: dict[str, Number] = field(default_factory=dict)
    signs: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """One of the amounts in words, such as ``≤8 GiB``; ``-`` for what it has on GPUs where it is on none."""
        amount = self.amounts[name]
        if amount is not None and name in ON_GPUS and not self.gpus:
            return "-"
        return signed_text(name, amount, self.signs.get(name, ""))


def signed_text(name: str, amount: Number, sign: str = "") -> str:
    """An amount of this column in words, with the sign of an estimate."""
    return ("" if amount is None else sign) + format_value(amount, COLUMNS[name].unit)


def holder_rows(holders: Iterable[Holder], growing: Collection[int] = ()) -> list[HolderRow]:
    """One row a holder, in their order.

    Args:
        holders: of a snapshot.
        growing: pids of those that grow.
    """
    return [_row(one, one.pid in growing) for one in holders]


def _row(holder: Holder, growing: bool) -> HolderRow:
    bounds = dict(holder.estimates)
    amounts: dict[str, Number] = {figure.column: getattr(holder, figure.field) for figure in _OWN}
    for figure in _ON_GPUS:
        parts = [getattr(use, figure.field) for use in holder.gpus]
        unknown = "gpus" in holder.missing or None in parts
        amounts[figure.column] = None if unknown else figure.together(parts) or 0
        bound = bound_of_sum(use.estimates.get(figure.field) for use in holder.gpus)
        bounds |= {figure.column: bound} if bound else {}
    return HolderRow(
        pid=holder.pid,
        started_at=holder.started_at,
        name=one_line(holder.name or "") or "n/a",
        user=_shown(holder.user),
        container=_shown(holder.container),
        command=_shown(holder.command),
        growing=growing,
        only_locked=is_only_locked(holder),
        gpus=tuple(use.index for use in holder.gpus),
        amounts=amounts,
        signs={name: SIGNS[bound.kind] for name, bound in bounds.items()},
    )


def _shown(text: str | None) -> str | None:
    return text and one_line(text)


def gpus_text(indices: Sequence[int]) -> str:
    """``0, 2–5``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def matching(holders: Sequence[Holder], words: str) -> list[Holder]:
    """Those in whose pid, name, user, container, control group or command every one of the words stands."""
    wanted = words.casefold().split()
    return [one for one in holders if all(word in _searched(one) for word in wanted)]


def _searched(holder: Holder) -> str:
    texts = (str(holder.pid), holder.name, holder.user, holder.container, holder.cgroup, holder.command)
    return "\n".join(text for text in texts if text).casefold()
