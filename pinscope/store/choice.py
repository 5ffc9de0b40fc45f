"""Which runs are meant: those that fit what is asked for, their order, and the run that a word stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:  # the command line's help waits for this module
    from pinscope.records.run import Origin, Run, Status

NEWEST = 2000
"""Runs that a page looks at: a store may hold a million, and reading 60,000 takes 11 s."""
COLUMNS = ("experiment", "lab", "status")
"""What the database itself can choose by."""
_WORD = re.compile(r"(?:(?P<last>latest|@(?:-(?P<back>[0-9]{1,6}))?)|baseline)(?::(?P<experiment>\w{1,100}))?")
WORDS = (
    "latest or @ (the last run), @-1 (the last but one), baseline (the last starred one), each also of one experiment, "
    "such as latest:bandwidth"
)
"""What may stand in the place of an id, beside a beginning of it and a run's name."""


class Wanted(TypedDict, total=False):
    """Which runs are asked for; what is left out, or ``None``, leaves any."""

    experiment: str | None
    lab: Origin | None
    status: Status | None
    host: str | None
    tags: Sequence[str] | None
    """All of these."""
    search: str | None
    """Each of these words somewhere in what a list shows of a run, in its note, or in the name of its machine; of
    ``#tag`` the tag."""
    baseline: bool | None
    """Starred, or not."""
    recordings: bool
    """Also those that ship with PinScope, as without it."""
    most: int | None
    """Of the store's own no more than so many are looked at, the newest."""


def fits(run: Run, wanted: Wanted) -> bool:
    """Whether a run is one of those that are asked for."""
    plain = {field: wanted.get(field) for field in (*COLUMNS, "baseline")}
    return (
        all(value is None or getattr(run, field) == value for field, value in plain.items())
        and wanted.get("host") in (None, run.environment.host)
        and set(wanted.get("tags") or ()) <= set(run.tags)
        and all(_has(run, word) for word in (wanted.get("search") or "").split())
    )


def _has(run: Run, word: str) -> bool:
    """Whether a list shows the word of a run, or it has the tag of which that is the name."""
    gpus = [device.name for device in run.environment.devices]
    texts = (run.id, run.experiment, run.name, *run.tags, run.note, run.verdict, run.error, run.environment.host, *gpus)
    return word[1:] in run.tags if word[0] == "#" else any(word.casefold() in (text or "").casefold() for text in texts)


def stands_for(text: str) -> tuple[int, Wanted] | None:
    """Of a word in the place of an id: how many runs to go back among which; ``None`` if it is none (:data:`WORDS`)."""
    if not (word := _WORD.fullmatch(text)):
        return None
    starred = None if word["last"] else True
    return int(word["back"] or 0), Wanted(experiment=word["experiment"], baseline=starred, recordings=False)


def as_sides(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The ids of runs as two sides to compare: those that are starred, else the oldest, against the others."""
    starred = [run for run in runs if run.baseline]
    if not starred or len(starred) == len(runs):
        starred = [min(runs, key=lambda run: run.created_at)]
    return [run.id for run in starred], [run.id for run in runs if run not in starred]


def _by_figure(run: Run) -> Any:
    if run.figure is None or run.figure.number is None:
        return run.experiment, True, "", 0.0
    return run.experiment, False, run.figure.key or "", -run.figure.number


ORDERS: Mapping[str, Callable[[Run], Any]] = {
    "newest": lambda run: -run.created_at.timestamp(),
    "oldest": lambda run: run.created_at.timestamp(),
    "experiment": lambda run: run.experiment,
    "name": lambda run: (run.name is None, (run.name or "").casefold()),
    "host": lambda run: run.environment.host,
    "figure": _by_figure,
}
"""Name → by what runs are sorted; those that are alike in it stay as they were. Figures: the greatest first, among the
runs of one experiment."""
