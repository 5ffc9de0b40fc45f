"""Processes that work beside a measurement: requests and replies, from both sides.

A request is one JSON object a line on the worker's standard input, its reply one line in answer. A worker ends with the
process that started it, or when its standard input ends. One that dies, hangs or breaks off ends all of them, and the
error names the process and the step.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Generic, Self, TypeVar

from pinscope import isolation
from pinscope.errors import MeasurementFailed, NotEnoughMemory, PinScopeError
from pinscope.probes.child_lifetime import die_with_parent, start_child

Key = TypeVar("Key")
Request = Mapping[str, Any]
Reply = dict[str, Any]
Clock = Callable[[], float]
POLL_SECONDS = 0.1
END_SECONDS = 10.0
"""How long processes that were asked to end may take to."""


@dataclass(frozen=True)
class Child:
    """One process.

    Attributes:
        name: how errors name it.
        module: what it runs: one that ends with :func:`pinscope.lab.worker_protocol.serve_requests`.
        configuration: the arguments of the class that serves there; goes through JSON.
        group: folder of the control group that it enters before it does anything else.
    """

    name: str
    module: str
    configuration: Mapping[str, Any]
    group: str | None = None


class ChildDied(MeasurementFailed):
    """A process ended unasked."""


class ChildProcesses(Generic[Key]):
    """Processes, each with a key of the starter's.

    Args:
        children: what to start.
        limit: seconds that a step may take.
        check: called while waiting; raises to stop.
        descriptors: open files that they inherit.
        ready_limit: seconds that each may take, one after the other, for the request ``start`` on entering; without it
            there is no such request.

    Attributes:
        ready: their replies to that.
    """

    def __init__(
        self,
        children: Mapping[Key, Child],
        limit: float,
        check: Callable[[], None] = lambda: None,
        descriptors: Sequence[int] = (),
        ready_limit: float | None = None,
    ) -> None:
        self._described = children
        self._limit = limit
        self._check = check
        self._descriptors, self._ready_limit = descriptors, ready_limit
        self.ready: dict[Key, Reply] = {}
        self._children: dict[Key, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Start them, and await their readiness. Raises as :meth:`ask`."""
        try:
            for key, child in self._described.items():
                self._children[key] = self._start(child)
            for key in self._described if self._ready_limit else ():
                self.ready[key] = self.ask("getting ready", {key: {"do": "start"}}, limit=self._ready_limit)[key][1]
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
        self, step: str, requests: Mapping[Key, Request], clock: Clock = time.monotonic, limit: float | None = None
    ) -> dict[Key, tuple[float, Reply]]:
        """Send each its request at once; for each, the moment of its reply by ``clock``, and the reply.

        ``limit`` is another number of seconds for this step alone.

        Raises:
            NotEnoughMemory: a process found too little memory.
            ChildDied: a process ended.
            MeasurementFailed: a process hung or broke off.
        """
        self.tell(requests)
        return self.answers(step, requests, clock, limit)

    def tell(self, requests: Mapping[Key, Request]) -> None:
        """Send each its request and do not wait: :meth:`answers` does."""
        for key, request in requests.items():
            with suppress(BrokenPipeError):  # it has died: its missing reply says so
                _pipe(self._children[key].stdin).write(json.dumps(request).encode() + b"\n")

    def answers(
        self, step: str, keys: Iterable[Key], clock: Clock = time.monotonic, limit: float | None = None
    ) -> dict[Key, tuple[float, Reply]]:
        """The replies of those that have requests, as :meth:`ask` gives them."""
        texts = dict.fromkeys(keys, b"")
        replies: dict[Key, tuple[float, Reply]] = {}
        limit = limit or self._limit
        deadline = time.monotonic() + limit
        with selectors.DefaultSelector() as waiting:
            for key in texts:
                waiting.register(_pipe(self._children[key].stdout), selectors.EVENT_READ, key)
            while waiting.get_map():
                self._check()
                if time.monotonic() > deadline:
                    late = " and ".join(self._described[silent.data].name for silent in waiting.get_map().values())
                    raise MeasurementFailed(f"{late} did not answer within {limit:g} s while {step}")
                for ready, _ in waiting.select(POLL_SECONDS):
                    key = ready.data
                    piece = os.read(ready.fd, 65536)
                    if not piece:
                        raise self._death(key, step)
                    texts[key] += piece
                    if texts[key].endswith(b"\n"):
                        waiting.unregister(ready.fileobj)
                        replies[key] = clock(), self._reply(key, step, texts[key])
        return {key: replies[key] for key in texts}

    def lives(self, key: Key) -> bool:
        """Whether that process has not ended."""
        return self._children[key].poll() is None

    def _start(self, child: Child) -> subprocess.Popen[bytes]:
        configuration = {**child.configuration, "parent": os.getpid(), "group": child.group}
        return start_child(
            isolation.command(child.module, json.dumps(configuration)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=self._descriptors,
        )

    def _reply(self, key: Key, step: str, text: bytes) -> Reply:
        reply: Reply = json.loads(text)
        if "error" not in reply:
            return reply
        kind = NotEnoughMemory if reply["class"] == NotEnoughMemory.__name__ else MeasurementFailed
        raise kind(f"{self._described[key].name} broke off while {step}: {reply['error']}")

    def _death(self, key: Key, step: str) -> PinScopeError:
        name = self._described[key].name
        try:
            code = self._children[key].wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return MeasurementFailed(f"{name} fell silent while {step}")
        how = f"ended with code {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            how += " (by somebody, or by the kernel for want of memory)" if code == -signal.SIGKILL else ""
        return ChildDied(f"{name} {how} while {step}")

    def _kill(self) -> None:
        for child in self._children.values():
            child.kill()
        for child in self._children.values():
            child.wait()
            for pipe in (child.stdin, child.stdout):
                _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise TypeError("started without this pipe")
    return pipe


def serve_requests(make: Callable[..., object]) -> int:
    """Make the worker from this program's configuration, and serve until the requests end, or their sender does.

    A request names a method of the worker; the reply is what that returns, or its error, after which none is served.
    """
    configuration = json.loads(sys.argv[1])
    die_with_parent(configuration.pop("parent"))
    if group := configuration.pop("group", None):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))  # what it takes from here on is the group's
    # What a library prints must not be taken for a reply.
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        worker = make(**configuration)
        for line in _requests(worker):
            request: dict[str, Any] = json.loads(line)
            try:
                reply = getattr(worker, request.pop("do"))(**request)
            except PinScopeError as error:
                reply = {"error": str(error), "class": type(error).__name__}
            except Exception as error:  # noqa: BLE001 - the sender must learn of it, whatever it was
                reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0], "class": ""}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()
            if "error" in reply:
                break
    return 0


def _requests(worker: Any) -> Iterator[str]:
    """Lines; while none waits, a worker with ``pause_seconds`` does its ``meanwhile`` that often.

    A request is sent only once the last is answered: none can wait unseen in a buffer.
    """
    pause: float | None = getattr(worker, "pause_seconds", None)
    while True:
        if pause is None or select.select([sys.stdin], [], [], pause)[0]:
            if not (line := sys.stdin.readline()):
                return
            yield line
        if pause is not None:
            worker.meanwhile()
