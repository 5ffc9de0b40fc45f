"""The same memory registered by every process: what that takes on each GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pinscope.experiments.topology.team import Team


def register_all(team: Team, nbytes: int, touched: bool) -> Iterator[dict[str, Any]]:
    """One process after the other registers it; values of observations for each GPU, before and after each.

    Args:
        nbytes: of the memory.
        touched: whether its pages are there already.
    """
    team.progress(0.0, "registering memory")
    yield from _rows(team, nbytes, "before", None, None)
    for number, rank in enumerate(team.members):
        first = number == 0 and not touched
        reply = team.ask("registering memory", {rank: {"do": "register", "first": first}})[rank]
        yield from _rows(team, nbytes, "pin", rank, reply["seconds"])
    team.all("giving registered memory back", {"do": "unregister"})


def _rows(team: Team, nbytes: int, step: str, rank: int | None, seconds: float | None) -> Iterator[dict[str, Any]]:
    for device, used in team.used().items():
        yield {
            "kind": "pin",
            "repeat": 0,
            "warmup": False,
            "device": device,
            "contexts": team.contexts,
            "processes": len(team.members),
            "process": rank,
            "step": step,
            "bytes": nbytes,
            "used_bytes": used,
            "pin_seconds": seconds,
        }
