"""PyTorch's pool of pinned memory, setting by setting: what was asked for, what it took, and what it kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pinscope.analysis.conclusions import Costed
from pinscope.analysis.pytorch_pinned import ROUNDING_ADVICE
from pinscope.analysis.rows import Row, counted, grouped
from pinscope.records.finding import Quantity, Table, costing, finding, quantity, table
from pinscope.units import format_bytes, format_seconds

SETTING_TITLES = {
    "in_force": "as set here",
    "none": "nothing set",
    "register": "registers",
    "segment": "reserved segment",
    "unrounded": "no rounding",
}
"""Setting → for people."""
SAME_BYTES = 4 * 2**20
"""The host's count of pinned pages is batched for each processor: amounts that differ by less are the same."""
_GIVE_BACK = "torch._C._host_emptyCache() gives back what no tensor uses."


@dataclass(frozen=True)
class PoolUse:
    """What one setting did with one request. Bytes and seconds; ``None`` where it was not reached or is not known.

    Attributes:
        setting: its name.
        settings: the environment variables in force.
        version: PyTorch's.
        asked: the tensor's size.
        held: pinned on the host while the tensor was there.
        kept: still pinned when the tensor was gone.
        left: still pinned when the pool had been emptied.
        pool: what PyTorch says that its blocks take while the tensor is there.
        seconds, again_seconds: to take the tensor, and to take one of its size once more.
    """

    setting: str
    settings: str
    version: str
    asked: int
    held: int | None
    kept: int | None
    left: int | None
    pool: int | None
    seconds: float | None
    again_seconds: float | None

    @property
    def title(self) -> str:
        """The setting for people."""
        return SETTING_TITLES.get(self.setting, self.setting)

    @property
    def taken(self) -> int | None:
        """What the request took: as the host counts it, else as PyTorch says."""
        return self.held if self.held is not None else self.pool

    @property
    def ratio(self) -> float | None:
        """That, relative to what was asked for."""
        return None if self.taken is None else self.taken / self.asked


def pool_uses(rows: Iterable[Row]) -> list[PoolUse]:
    """Every setting of a run's rows whose tensor was taken, in the order measured."""
    audited = [row for row in counted(rows) if row["kind"] == "pool"]
    found = (_use(group) for group in grouped(audited, lambda row: row["setting"]).values())
    return [use for use in found if use is not None]


def _use(rows: Sequence[Row]) -> PoolUse | None:
    steps = {row["step"]: row for row in rows}
    before, held = steps.get("before"), steps.get("held")
    if before is None or held is None:
        return None

    def grown(step: str) -> int | None:
        row = steps.get(step)
        if row is None or row["pinned_bytes"] is None or before["pinned_bytes"] is None:
            return None
        return int(row["pinned_bytes"] - before["pinned_bytes"])

    return PoolUse(
        setting=held["setting"],
        settings=held["settings"],
        version=held["version"],
        asked=held["bytes"],
        held=grown("held"),
        kept=grown("dropped"),
        left=grown("emptied"),
        pool=held["pool_bytes"],
        seconds=held["pool_seconds"],
        again_seconds=steps["again"]["pool_seconds"] if "again" in steps else None,
    )


def pool_table(uses: Sequence[PoolUse]) -> tuple[Table, ...]:
    """One row a setting; none without any."""
    if not uses:
        return ()
    return (
        table(
            "PyTorch's pool of pinned memory",
            {
                "setting": "text",
                "in force": "text",
                "asked": "bytes",
                "pinned": "bytes",
                "by PyTorch": "bytes",
                "of what was asked": "ratio",
                "kept when gone": "bytes",
                "left when emptied": "bytes",
                "first": "seconds",
                "again": "seconds",
            },
            [
                (
                    use.title,
                    use.settings or "nothing",
                    use.asked,
                    use.held,
                    use.pool,
                    use.ratio,
                    use.kept,
                    use.left,
                    use.seconds,
                    use.again_seconds,
                )
                for use in uses
            ],
            note=f"PyTorch {uses[0].version}, each setting in a process of its own. Pinned, kept and left: what the "
            "host's count of pinned pages grew by. By PyTorch: torch.cuda.host_memory_stats. First and again: the time "
            "to take the tensor, and to take one of its size after the first was freed.",
        ),
    )


def pool_headline(uses: Sequence[PoolUse]) -> tuple[Quantity, ...]:
    """What PyTorch pins for the request, as it is set here."""
    return tuple(
        quantity(
            f"PyTorch pins for {format_bytes(use.asked)} asked, {use.title}",
            use.taken,
            "bytes",
            reason="neither the host nor PyTorch reports it",
        )
        for use in uses[:1]
    )


def pool_findings(uses: Sequence[PoolUse]) -> Iterator[Costed]:
    """Whether PyTorch pins more than was asked for, what it keeps, and which setting changes that."""
    use = next(iter(uses), None)
    if use is None or use.taken is None or use.ratio is None:
        return
    tight = [other for other in uses if other.taken is not None and other.taken < use.taken - SAME_BYTES]
    kept = use.kept is not None and use.kept >= use.taken - SAME_BYTES
    keeps = ", and keeps it pinned when the tensor is gone" if kept else ""
    yield (
        use.ratio,
        finding(
            costing(use.ratio),
            "pytorch-pool",
            quantity("Asked for", use.asked, "bytes"),
            *(quantity(f"Pinned, {other.title}", other.taken, "bytes") for other in uses),
            title=f"PyTorch pins {format_bytes(use.taken)} for a tensor of {format_bytes(use.asked)}{keeps}",
            detail=f"PyTorch {use.version}, settings in force: {use.settings or 'none'}.{_others(use, uses, tight)}",
            advice=f"{ROUNDING_ADVICE} {_GIVE_BACK}" if use.taken > use.asked + SAME_BYTES else _GIVE_BACK,
        ),
    )


def _others(use: PoolUse, uses: Sequence[PoolUse], tight: Sequence[PoolUse]) -> str:
    """What the other settings did."""
    sentences = [f"Less is pinned with: {', '.join(_setting(other) for other in tight)}."] if tight else []
    same = [other for other in uses[1:] if other not in tight]
    if same:
        sentences.append(f"As much is pinned with: {', '.join(_setting(other) for other in same)}.")
    times = [other for other in uses if other.seconds is not None]
    if len(times) > 1:
        fastest = min(times, key=lambda other: other.seconds or 0.0)
        sentences.append(f"The first tensor took {format_seconds(use.seconds or 0.0)}; fastest: {_timed(fastest)}.")
    staying = [other for other in uses if (other.left or 0) > SAME_BYTES]
    if staying:
        sentences.append(f"Emptying the pool gives nothing back with: {', '.join(map(_setting, staying))}.")
    return "".join(f" {sentence}" for sentence in sentences)


def _setting(use: PoolUse) -> str:
    return use.settings.partition("=")[2] or use.title


def _timed(use: PoolUse) -> str:
    return f"{format_seconds(use.seconds or 0.0)} ({use.title})"
