"""Processes that work together, from the side of the one that starts them.

Each is told what to do and answers (:mod:`pinscope.lab.orders`). One that dies, hangs or breaks off ends all of them,
and the error names the process and the step.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, Self

from pinscope import isolation
from pinscope.errors import MeasurementFailed, NotEnoughMemory, PinScopeError
from pinscope.lab.backing import shared_file
from pinscope.lab.harness import Clock
from pinscope.probes.parent import start_child

Order = Mapping[str, Any]
Reply = Mapping[str, Any]
POLL_SECONDS = 0.1
END_SECONDS = 10.0
"""How long processes that were told to end may take to."""


@contextmanager
def shared_region(nbytes: int) -> Iterator[int]:
    """The descriptor of shared memory that is gone with its last user."""
    descriptor = shared_file(nbytes)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class Members:
    """Processes with ranks 0 to ``count`` − 1.

    Args:
        count: how many.
        configuration: what each gets beside its rank: ``place``, ``seed``, ``descriptor``, ``nbytes``.
        limit: seconds that a step may take.
        check: called while waiting; raises to stop.
        module: what each runs.
        called: how errors name a process; by default its number.
    """

    def __init__(
        self,
        count: int,
        configuration: Mapping[str, Any],
        limit: float,
        check: Callable[[], None],
        *,
        module: str = "pinscope.lab.member",
        called: str | None = None,
    ) -> None:
        self._count = count
        self._module = module
        self._called = called
        self._configuration = configuration
        self._limit = limit
        self._check = check
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Start them; they answer to their first order once they run."""
        try:
            for rank in range(self._count):
                self._children[rank] = self._start(rank)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Wait for their end if all went well; end them at once if not."""
        if kind is None:
            for child in self._children.values():
                _pipe(child.stdin).close()
            deadline = time.monotonic() + END_SECONDS
            for child in self._children.values():
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(deadline - time.monotonic(), 0.0))
        self._kill()

    def ask(
        self, step: str, orders: Mapping[int, Order], clock: Clock, limit: float | None = None
    ) -> dict[int, tuple[float, Reply]]:
        """Give each rank its order at once; for each, the moment of its answer by ``clock``, and the answer.

        ``limit`` is another number of seconds for this step alone.

        Raises:
            NotEnoughMemory: a process found too little memory.
            MeasurementFailed: a process died, hung or broke off.
        """
        for rank, order in orders.items():
            with suppress(BrokenPipeError):  # it has died: its missing answer says so
                _pipe(self._children[rank].stdin).write(json.dumps(order).encode() + b"\n")
        replies: dict[int, tuple[float, Reply]] = {}
        limit = limit or self._limit
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as waiting:
            texts = dict.fromkeys(orders, b"")
            for rank in orders:
                waiting.register(_pipe(self._children[rank].stdout), selectors.EVENT_READ, rank)
            while waiting.get_map():
                self._check()
                if time.monotonic() > deadline:
                    late = self._name(*(key.data for key in waiting.get_map().values()))
                    raise MeasurementFailed(f"{late} did not answer within {limit:g} s while {step}")
                for key, _ in waiting.select(POLL_SECONDS):
                    rank = key.data
                    piece = os.read(key.fd, 65536)
                    if not piece:
                        raise self._death(rank, step)
                    texts[rank] += piece
                    if texts[rank].endswith(b"\n"):
                        waiting.unregister(key.fileobj)
                        replies[rank] = clock(), self._reply(rank, step, texts[rank])
        return dict(sorted(replies.items()))

    def _start(self, rank: int) -> subprocess.Popen[bytes]:
        configuration = {**self._configuration, "rank": rank, "parent": os.getpid()}
        return start_child(
            isolation.command(self._module, json.dumps(configuration)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            pass_fds=(self._configuration["descriptor"],) if "descriptor" in self._configuration else (),
        )  # fmt: skip

    def _name(self, *ranks: int) -> str:
        return self._called or f"process {' and '.join(str(rank + 1) for rank in ranks)} of {self._count}"

    def _reply(self, rank: int, step: str, text: bytes) -> Reply:
        reply: Reply = json.loads(text)
        if "error" not in reply:
            return reply
        kind = NotEnoughMemory if reply["class"] == NotEnoughMemory.__name__ else MeasurementFailed
        raise kind(f"{self._name(rank)} broke off while {step}: {reply['error']}")

    def _death(self, rank: int, step: str) -> PinScopeError:
        try:
            code = self._children[rank].wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return MeasurementFailed(f"{self._name(rank)} fell silent while {step}")
        how = f"ended with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (by somebody, or by the kernel for want of memory)" if code == -signal.SIGKILL else ""
        return MeasurementFailed(f"{self._name(rank)} {how} while {step}")

    def _kill(self) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
        for child in self._children.values():
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with suppress(BrokenPipeError):
                    _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise TypeError("started without this pipe")
    return pipe
