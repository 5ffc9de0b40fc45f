"""GPU memory of one process, opened by a process whose context is on another GPU, and copied through (CUDA IPC)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

from pinscope.experiments.topology.team import Team
from pinscope.lab.harness import Turn

SOURCES = ("host", "device")
"""Where the opener copies from: its pinned memory, or memory of its own GPU."""


def share_all(team: Team, nbytes: int, copies: int, repeats: int, begun: float) -> Iterator[dict[str, Any]]:
    """Every GPU's memory opened from every other GPU's process, as values of observations.

    Args:
        nbytes: of one copy.
        copies: how many follow each other.
        repeats: how often, after one to warm up.
        begun: how much of the team's work is done before.
    """
    pairs = list(permutations(team.devices, 2))
    for number, (device, opener) in enumerate(pairs):
        team.progress(begun + (1 - begun) * number / len(pairs), f"memory of GPU {device} opened from GPU {opener}")
        yield from _one(team, device, opener, (nbytes, copies, repeats))


def _one(team: Team, device: int, opener: int, amount: tuple[int, int, int]) -> Iterator[dict[str, Any]]:
    nbytes, copies, repeats = amount
    owner, other = team.copiers[device], team.copiers[opener]
    common = {"device": device, "opener": opener, "bytes": nbytes}
    exported = team.ask("exporting memory", {owner: {"do": "export", "device": device, "nbytes": nbytes}})[owner]
    before = team.used()[device]
    order = {"do": "reach", "device": opener, "handle": exported["handle"], "nbytes": nbytes}
    opened = team.ask("opening memory", {other: order})[other]
    if opened["refused"]:
        team.harness.note(f"GPU {opener}'s process cannot open memory of GPU {device}: {opened['refused']}")
    else:
        yield common | {
            "kind": "open",
            "repeat": 0,
            "warmup": False,
            "used_before_bytes": before,
            "used_bytes": team.used()[device],
            "open_seconds": opened["seconds"],
        }
        for source in SOURCES:
            for turn in (Turn(0, warmup=True), *(Turn(number, warmup=False) for number in range(repeats))):
                copied = team.ask("copying through", {other: {"do": "through", "source": source, "copies": copies}})
                reply = copied[other]
                check = {"do": "verify", "offset": reply["offset"], "key": reply["key"]}
                yield common | {
                    "kind": "through",
                    "repeat": turn.repeat,
                    "warmup": turn.warmup,
                    "source": source,
                    "copies": copies,
                    "device_seconds": reply["seconds"],
                    "wrong_words": team.ask("checking what arrived", {owner: check})[owner]["wrong"],
                }
    for rank in (other, owner):
        team.ask("closing memory", {rank: {"do": "let_go"}})
