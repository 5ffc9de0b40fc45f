"""What a registration run looks like: GPU memory by what it is for, the rate together, and the time to get there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from pinscope.analysis.rows import median
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.experiments.registration.arithmetic import STRATEGY_TITLES, Trial, trials
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_seconds

GIB, MIB = 2**30, 2**20
_COLOURS: Mapping[str, str] = {"each_registers": "registered", "one_owner": "pinned"}


def draw(run: ExperimentRun, rows: Sequence[Mapping[str, Any]]) -> list[Chart]:
    """The charts of a registration run; only those for which something was measured."""
    found = trials(rows)
    drawn = (_tables(run, found), _shares(found), _rates(found), _times(found))
    return [chart for chart in drawn if chart]


def _by_strategy(
    found: Sequence[Trial],
    value: Callable[[Trial], float | None],
    axis: str,
    *,
    scale: float,
    text: Callable[[float], str],
) -> tuple[go.Figure, Mapping[str, str]] | None:
    """A bar for each trial, and what each comes to; ``None`` where nothing is known."""
    known = {_name(trial): (trial, amount) for trial in found if (amount := value(trial)) is not None}
    if not known:
        return None
    parts = [
        Part(
            title, _COLOURS[name], {label: amount for label, (trial, amount) in known.items() if trial.strategy == name}
        )
        for name, title in STRATEGY_TITLES.items()
    ]
    ends = {label: text(amount) for label, (_, amount) in known.items()}
    return bars(list(known), [part for part in parts if part.values], axis, text, scale=scale, ends=ends), ends


def _tables(run: ExperimentRun, found: Sequence[Trial]) -> Chart | None:
    drawn = _by_strategy(found, lambda trial: trial.table_bytes, "Page tables (MiB)", scale=MIB, text=format_bytes)
    if drawn is None:
        return None
    where = f"memory of GPU {run.device}" if run.lab == "cuda" else "the kernel's page tables of the processes"
    return Chart(
        "registration-tables",
        "Page tables of all processes",
        f"What {where} grew by while the processes pinned the same {format_bytes(found[0].bytes)}. Where each "
        "registers it, every process pays again.",
        drawn[0],
        alt_text("Page tables of all processes", drawn[1].items()),
    )


def _name(trial: Trial) -> str:
    if trial.strategy == "one_owner":
        return f"one owner for {trial.processes}"
    shared = "" if trial.sharing == "memfd" else f", {trial.sharing_title}"
    return f"{trial.processes} register{'s' if trial.processes == 1 else ''}{shared}"


def _part(name: str, colour: str, shown: Sequence[Trial], value: Callable[[Trial], float | None]) -> Part:
    return Part(name, colour, {_name(trial): value(trial) or 0.0 for trial in shown})


def _ends(parts: Sequence[Part], shown: Sequence[Trial], text: Callable[[float], str]) -> Mapping[str, str]:
    """What stands at the end of each bar: its whole."""
    return {_name(trial): text(sum(part.values[_name(trial)] for part in parts)) for trial in shown}


def _shares(found: Sequence[Trial]) -> Chart | None:
    """GPU memory by what it is for."""
    shown = [trial for trial in found if trial.context_bytes is not None and trial.table_bytes is not None]
    if not shown:
        return None
    parts = (
        _part("contexts", "reference", shown, lambda trial: trial.context_bytes),
        _part("buffers", "device", shown, lambda trial: trial.buffer_bytes),
        _part("page tables", "page_table", shown, lambda trial: trial.table_bytes),
    )
    return Chart(
        "registration-memory",
        "What GPU memory is taken for",
        "Readings of the whole GPU between the steps: contexts once the processes had started, buffers once they "
        "had taken them, page tables once they had pinned.",
        bars(
            list(map(_name, shown)),
            parts,
            "GPU memory of all processes (GiB)",
            format_bytes,
            scale=GIB,
            ends=_ends(parts, shown, format_bytes),
        ),
        alt_text("GPU memory of all processes", _ends(parts, shown, format_bytes).items()),
    )


def _rates(found: Sequence[Trial]) -> Chart | None:
    drawn = _by_strategy(found, lambda trial: median(trial.rate), "Rate (GB/s)", scale=1e9, text=format_bandwidth)
    return drawn and Chart(
        "registration-rate",
        "How fast all copy at once",
        "Medians over the rounds: all bytes over the time from the first beginning to the last end.",
        drawn[0],
        alt_text("Rate of all processes together", drawn[1].items()),
    )


def _times(found: Sequence[Trial]) -> Chart | None:
    shown = [trial for trial in found if trial.pin_seconds]
    if not shown:
        return None
    parts = (
        _part("start-up (all at once)", "reference", shown, lambda trial: median(trial.start_seconds)),
        _part("touching", "touch", shown, lambda trial: trial.touch_seconds),
        _part(
            "pinning (one after the other)",
            "pinned",
            shown,
            lambda trial: (median(trial.pin_seconds) or 0.0) * trial.pinners,
        ),
    )
    return Chart(
        "registration-times",
        "How long it takes",
        "Start-up is the median of the processes. Shared memory is touched by the first process only; the owner's "
        "pinning includes touching.",
        bars(
            list(map(_name, shown)),
            parts,
            "Time until all had pinned (s)",
            format_seconds,
            ends=_ends(parts, shown, format_seconds),
        ),
        alt_text("Time until all processes had pinned", _ends(parts, shown, format_seconds).items()),
    )
