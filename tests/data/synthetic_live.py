"""SYNTHETIC hosts for the page Now: what its one source gives, as a test wants it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pinscope.live.source import snapshot
from pinscope.probes.gpu import process_on_gpu, read_gpus
from pinscope.probes.proc import Answer
from pinscope.records.snapshot import DeviceFigures, Snapshot
from tests.data.gpu_fake import FakeNvml
from tests.data.synthetic_gpu import busy_h200
from tests.data.synthetic_host import SyntheticHost, zero

MIB, GIB = 2**20, 2**30
TRAINER, WORKER, LOCKER = 4242, 4250, 700


class Source(AbstractContextManager["Source"]):
    """Gives snapshots as ``LiveSource`` does; counts who opens and closes it.

    Args:
        take: gives one.
    """

    def __init__(self, take: Callable[[], Snapshot]) -> None:
        self.take_one = take
        self.taken = 0
        self.opened = 0
        self.closed = 0

    def __enter__(self) -> Self:
        self.opened += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed += 1

    def take(self) -> Snapshot:
        """The next one, taken now."""
        self.taken += 1
        return self.take_one().model_copy(update={"taken_at": datetime.now(UTC)})


def stuck(release: threading.Event) -> Snapshot:
    """A reading that goes on until it is released."""
    release.wait(30)
    raise OSError(5, "Input/output error")


def empty(folder: Path) -> Snapshot:
    """Nobody holds anything, and there is no driver."""
    host = SyntheticHost(folder)
    host.process("init", pid=1)
    return snapshot(host.proc, Answer.missing("no NVIDIA driver is installed here"))


def full(folder: Path, gpus: int = 2, command: str = "python", others: int = 0) -> Snapshot:
    """A trainer on every GPU with a worker, one process that locks, and ``others`` more of those."""
    pieces = [zero(4 * GIB, 1), zero(4 * GIB, 2), zero(512 * MIB, 3)]
    host = SyntheticHost(folder, pinned_bytes=14 * GIB)
    host.cuda_process(pieces, name=command, pid=TRAINER, VmRSS=12 * GIB)
    host.cuda_process(pieces, name="worker", parent=TRAINER, pid=WORKER, started=6000)
    host.process("postgres", pid=LOCKER, VmLck=96 * MIB)
    for number in range(others):
        host.process(f"other{number}", pid=10_000 + number, VmLck=(number + 1) * 64 * 1024)
    figures: Answer[tuple[DeviceFigures, ...]] = Answer.missing("no NVIDIA driver is installed here")
    if gpus:
        described = [busy_h200(78 * MIB, process_on_gpu(TRAINER, 20 * GIB)) for _ in range(gpus)]
        with FakeNvml(gpus=described) as nvml:
            figures = read_gpus(nvml, host.proc)
    return snapshot(host.proc, figures)


def with_locked(taken: Snapshot, locked_bytes: int) -> Snapshot:
    """The same, but the process that locks holds so much."""
    holders = tuple(
        one.model_copy(update={"locked_bytes": locked_bytes}) if one.pid == LOCKER else one for one in taken.holders
    )
    return taken.model_copy(update={"holders": holders})
