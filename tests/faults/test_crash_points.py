"""Killed at the n-th call that changes a file, for every n, as SQLite's own crash tests do it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.faults.campaign import WHOLE, Campaign
from tests.faults.disk import OPERATIONS, Operation, complaints, disks
from tests.faults.forked import Fault, Forks

WORKER = "pinscope.runner.worker"
EVERY = 10_000
"""More than any command makes calls."""


def test_crash_points(campaign: Campaign, forks: Forks, tmp_path: Path) -> None:
    with disks(tmp_path) as fresh:
        for operation in OPERATIONS if WHOLE else (OPERATIONS[-1], campaign.random().choice(OPERATIONS[:-1])):
            # Of a sample, the worker of a run is killed, and the command of another operation.
            programs = ((None, WORKER) if WHOLE else (WORKER,)) if operation.name == "run" else (None,)
            for program in programs:
                _kill_at_each(campaign, Attack(forks, fresh, operation, program))


@dataclass(frozen=True)
class Attack:
    """Where calls are counted: in one command, or in the program that it starts."""

    forks: Forks
    fresh: Callable[[], Path]
    operation: Operation
    program: str | None

    def calls(self, chance: random.Random) -> Iterable[int]:
        """Which calls to try: all in turn, until the command ends before it makes so many; or some."""
        if WHOLE:
            return range(1, EVERY)
        fault = Fault(program=self.program)
        made = self.forks.run(*self.operation.arguments, disk=self.fresh(), fault=fault).calls
        return [chance.randrange(1, made)]


def _kill_at_each(campaign: Campaign, attack: Attack) -> None:
    operation = attack.operation
    chance = campaign.random(OPERATIONS.index(operation))
    for at in attack.calls(chance):
        fault = Fault(at, chance.choice(("kill", "tear")), program=attack.program)
        disk = attack.fresh()
        ended = attack.forks.run(*operation.arguments, disk=disk, fault=fault)
        if not ended.killed and ended.calls < at:
            return  # it ends before it makes so many
        campaign.count("kills")
        what = f"{operation.name}, {fault}"
        for complaint in complaints(disk, operation, ended):
            campaign.fail(f"{what}: {complaint}")
        if "Traceback" in ended.stderr:
            campaign.fail(f"{what}: {ended.stderr[-300:]}")
        if at % 5 == 0:
            _next_one_works(campaign, attack.forks, disk, operation, what)


def _next_one_works(campaign: Campaign, forks: Forks, disk: Path, operation: Operation, what: str) -> None:
    """The same command again, on the disk as it was left."""
    for path in (disk / "out").iterdir():
        path.unlink()
    done = operation.name == "delete" and "run-goes" not in forks.run("runs", "list", disk=disk).stdout
    again = forks.run(*operation.arguments, disk=disk)
    if again.code != (2 if done else 0):
        campaign.fail(f"{what}: the next one ends with {again.code}: {again.stderr[-300:]}")
