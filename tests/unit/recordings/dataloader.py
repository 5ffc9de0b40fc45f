"""Headline of ``dataloader`` again: the fastest settings by their steady steps, and the busiest part of such a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pinscope.units import format_share
from tests.unit.recordings.raw import Recorded

Settings = tuple[bool, bool, int]


def cut(means: np.ndarray) -> int:
    """MSER-5: the cut in the first half after which the mean's standard error is least, doubled."""
    errors = [np.var(means[at:]) / (len(means) - at) for at in range(len(means) // 2 + 1)]
    return min(2 * int(np.argmin(errors)), len(means) // 2)


def steady(visits: Sequence[pd.DataFrame], workers: int) -> list[pd.DataFrame]:
    """What is left of each visit after the start that the other visits show; nothing where the halves disagree."""
    batch = -(-5 // max(workers, 1)) * max(workers, 1)
    length = min(map(len, visits))
    if length < 7 * batch:
        return []
    first = length % batch
    means = np.array([v["step_seconds"].to_numpy()[first:length].reshape(-1, batch).mean(axis=1) for v in visits])
    total = means.sum(axis=0)
    rest = total[cut(total) :]
    halves = np.split(rest, [len(rest) // 2])
    error = np.sqrt(sum(np.var(half, ddof=1) / len(half) for half in halves))
    if abs(halves[0].mean() - halves[1].mean()) > max(0.05 * abs(rest.mean()), 3 * error):
        return []
    starts = [first + batch * cut(total - own if len(visits) > 1 else total) for own in means]
    return [visit.iloc[start:] for visit, start in zip(visits, starts, strict=True)]


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def busiest(settings: Settings, mean: pd.Series) -> str | None:
    """The part that is at work for most of a step; ``None`` where making and pinning were not timed apart.

    The program is at work whenever it does not wait, also for others: any part that fills four fifths goes before it.
    """
    pin, _, workers = settings
    if "make_seconds" not in mean or np.isnan(mean["make_seconds"]):
        return None
    step = mean["step_seconds"]
    stream = "copying to the GPU" if mean["copy_seconds"] > mean["compute_seconds"] else "computing"
    parts = {stream: mean["copy_seconds"] + mean["compute_seconds"]}
    if workers:
        parts["making batches in the workers"] = mean["make_seconds"] / workers
        parts["PyTorch's pinning thread"] = mean["pin_seconds"] if pin else 0.0
    full = {name: seconds for name, seconds in parts.items() if seconds >= 0.8 * step}
    parts["the training program"] = step - mean["wait_seconds"] if workers else step
    part = max(full or parts, key=lambda name: parts[name])
    return f"{part}, {format_share(min(parts[part] / step, 1.0))} of a step"


def words_of(settings: Settings) -> str:
    pin, asynchronous, workers = settings
    return f"{'pinned' if pin else 'pageable'}, {'non_blocking' if asynchronous else 'blocking'}, {workers} workers"


def not_clearly_faster(best: Mapping[int, float], other: Mapping[int, float]) -> bool:
    """Whether the 95 % interval of the ratio of paces, by the rounds that both have, reaches down to 1."""
    logs = np.log([best[number] / other[number] for number in best if number in other])
    if len(logs) < 2:
        return False
    t_95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}[len(logs)]
    return bool(logs.mean() - t_95 * logs.std(ddof=1) / np.sqrt(len(logs)) <= 0)


def headline(recorded: Recorded) -> dict[str, object]:
    rows = recorded.counted
    rows = rows.assign(round=rows.get("round", 0))
    left: dict[Settings, dict[int, pd.DataFrame]] = {}
    for (pin, asynchronous, workers), alike in rows.groupby(["pin_memory", "non_blocking", "workers"], sort=False):
        rounds = dict(list(alike.groupby("round")))
        if found := steady(list(rounds.values()), workers):
            left[pin, asynchronous, workers] = dict(zip(rounds, found, strict=True))
    pace = {one: {number: 1 / v["step_seconds"].mean() for number, v in visits.items()} for one, visits in left.items()}
    if not pace:
        return {}
    best = max(pace, key=lambda one: geometric_mean(list(pace[one].values())))
    pin, asynchronous, workers = best
    everything = pd.concat(left[best].values())
    mean = everything.mean(numeric_only=True)
    mine = rows[(rows["pin_memory"] == pin) & (rows["non_blocking"] == asynchronous) & (rows["workers"] == workers)]
    held = mine["pinned_bytes"].max()
    found = {
        "Fastest loop": words_of(best),
        "Steps a second of the fastest loop": geometric_mean(list(pace[best].values())),
        "Busiest part of the fastest loop": busiest(best, mean),
        "GPU computes in the fastest loop, of a step": 1 - mean["stall_seconds"] / mean["step_seconds"],
        "Waiting for the loader in the fastest loop": mean["wait_seconds"] / mean["step_seconds"],
        "Pinned for the fastest loop": 0 if abs(held) <= 2**20 else held,
    }
    if close := [words_of(one) for one in pace if one != best and not_clearly_faster(pace[best], pace[one])]:
        found["As fast, as far as this run can tell"] = "; ".join(close)
    for (with_it, asynchronous, number), with_both in pace.items():
        plain = pace.get((False, False, number))
        if with_it and asynchronous and plain:
            both = [with_both[each] / plain[each] for each in with_both if each in plain]
            found[f"Speed-up by pin_memory with non_blocking, {number} workers"] = geometric_mean(both)
    return found
