"""The n-th call that changes a file fails, once or from then on, for every n: the disk is full, broken or read-only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

from tests.faults.campaign import WHOLE, Campaign
from tests.faults.disk import KEPT, OPERATIONS, ROWS, Operation, complaints, disks, rescued
from tests.faults.forked import Ended, Fault, Forks
from tests.faults.test_crash_points import WORKER

ERRORS = ("ENOSPC", "EIO", "EROFS")
READS = (
    ("runs", "list", "--json"),
    ("runs", "show", KEPT, "--json"),
    ("export", KEPT, "-o", "/elsewhere/e.pinscope"),
    ("report", KEPT, "-o", "/elsewhere/r.csv"),
    ("plan", "--pinned", "1GiB", "--json"),
)
"""What must work while the disk fails; ``/elsewhere`` is a folder on another disk."""


def test_io_errors(campaign: Campaign, forks: Forks, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with disks(tmp_path) as fresh:
        for operation in OPERATIONS if WHOLE else [campaign.random().choice(OPERATIONS)]:
            program = WORKER if operation.name == "run" else None
            made = forks.run(*operation.arguments, disk=fresh(), fault=Fault(program=program)).calls
            for fault in _faults(campaign, operation, made, program):
                _fail_at(campaign, forks, fresh(), operation, fault)
                _read_meanwhile(campaign, forks, elsewhere, fresh, operation, fault)


def _faults(campaign: Campaign, operation: Operation, made: int, program: str | None) -> Iterator[Fault]:
    """Each call in turn, with an error of the three by turns, once and lasting; or some of them."""
    chance = campaign.random(OPERATIONS.index(operation))
    every = list(product(range(1, made + 1), (False, True)))
    wanted = every if WHOLE else chance.sample(every, 1)
    for at, lasts in wanted:
        yield Fault(at, ERRORS[(at + lasts) % len(ERRORS)], lasts, program)


def _fail_at(campaign: Campaign, forks: Forks, disk: Path, operation: Operation, fault: Fault) -> None:
    ended = forks.run(*operation.arguments, disk=disk, fault=fault)
    campaign.count("I/O errors")
    what = f"{operation.name}, {fault}"
    for complaint in (*_misleading(disk, ended), *complaints(disk, operation, ended)):
        campaign.fail(f"{what}: {complaint}")


def _misleading(disk: Path, ended: Ended) -> Iterator[str]:
    """What is wrong with how a command ended and with what it said."""
    if ended.code not in (0, 1, 2):
        yield f"it ends with {ended.code}: {ended.stderr[-300:]}"
    if "Traceback" in ended.stderr or "unexpected" in ended.stderr:
        yield f"it says {ended.stderr[-400:]}"
    if ended.code and not ended.stderr.strip():
        yield "it fails without a word"
    for line in ended.stderr.splitlines():
        if not line.startswith("pinscope: "):
            yield f"a line that is not its own: {line[:200]}"
        if "was saved to " in line and not Path(line.rpartition("was saved to ")[2].partition(", ")[0]).exists():
            yield f"no such file: {line}"
    if ended.code and rescued(disk) and "was saved to" not in ended.stderr:
        yield f"nothing says that the run was saved to {rescued(disk)}"


def _read_meanwhile(
    campaign: Campaign, forks: Forks, elsewhere: Path, fresh: Callable[[], Path], operation: Operation, fault: Fault
) -> None:
    """While the disk goes on failing, what is stored is read: another command each time."""
    if not fault.lasts:
        return
    disk = fresh()
    # As it was when the program that wrote to it was killed: its log beside it.
    forks.run(*operation.arguments, disk=disk, fault=Fault(fault.at, "kill", program=fault.program))
    words = READS[fault.at % len(READS)]
    arguments = [word.replace("/elsewhere", str(elsewhere)) for word in words]
    ended = forks.run(*arguments, disk=disk, fault=Fault(1, fault.does, lasts=True), TMPDIR=str(elsewhere))
    campaign.count("I/O errors")
    what = f"{' '.join(words)} after {operation.name}, {fault}"
    if ended.code:
        campaign.fail(f"{what}: it ends with {ended.code}: {ended.stderr[-300:]}")
    elif words[0] == "runs":
        found = json.loads(ended.stdout)
        shown = (
            len(found["observations"])
            if words[1] == "show"
            else {run["id"]: run for run in found}[KEPT]["observations"]
        )
        if shown != ROWS:
            campaign.fail(f"{what}: {shown} observations are shown")
    if len(ended.stderr.splitlines()) > 1 or "Traceback" in ended.stderr:
        campaign.fail(f"{what}: it says {ended.stderr}")
    for path in elsewhere.iterdir():
        if path.name not in ("e.pinscope", "r.csv"):
            campaign.fail(f"{what}: left behind: {path.name}")
        path.unlink()
