"""Browser tabs without a browser: they speak Streamlit's protocol with a dashboard and ask as the page Now does.

A page is asked for by its name. Its script then asks again and again for what changed, when the last answer said.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException

from tests.faults.child import TREE

HEALTH_SECONDS = 0.2
"""From one question after the server's health to the next."""
OPEN_SECONDS = 60.0
_Result = TypeVar("_Result")


@dataclass
class Dashboard:
    """A dashboard that runs."""

    port: int
    process: psutil.Process

    @property
    def memory_bytes(self) -> int:
        """Resident memory."""
        resident: int = self.process.memory_info().rss
        return resident

    @property
    def descriptors(self) -> int:
        """Open file descriptors."""
        open_now: int = self.process.num_fds()
        return open_now


def _ended(work: Coroutine[Any, Any, _Result]) -> _Result:
    """What comes of it, in a thread of its own: Playwright's loop may run in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


@contextmanager
def dashboard(log: IO[bytes] | None = None, most_descriptors: int | None = None) -> Iterator[Dashboard]:
    """Serve a dashboard until the block ends.

    Args:
        log: what it says goes there.
        most_descriptors: as many may be open.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    variables = {**os.environ, "PYTHONPATH": str(TREE), "PINSCOPE_PORT": str(port)}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "pinscope", "dashboard"], env=variables, cwd=TREE,
        stdout=log or subprocess.DEVNULL, stderr=log or subprocess.DEVNULL,
    )  # fmt: skip
    if most_descriptors:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (most_descriptors, most_descriptors))
    try:
        deadline = time.monotonic() + OPEN_SECONDS
        while _ended(_health(port)) is None:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        yield Dashboard(port, psutil.Process(process.pid))
    finally:
        process.terminate()
        process.wait(timeout=30)


@dataclass
class Tab:
    """One tab.

    Attributes:
        drawn_at: when it was told of a moment, each time.
        dropped: why the server, not the tab, ended the connection.
    """

    port: int
    page: str = "now"
    drawn_at: list[float] = field(default_factory=list)
    dropped: str | None = None

    async def look(self) -> None:
        """Until cancelled."""
        try:
            async with connect(
                f"ws://127.0.0.1:{self.port}/_stcore/stream", origin=f"http://127.0.0.1:{self.port}",  # type: ignore[arg-type]
                subprotocols=["streamlit"], max_size=None, open_timeout=OPEN_SECONDS,  # type: ignore[list-item]
            ) as connection, asyncio.TaskGroup() as group:  # fmt: skip
                message = BackMsg()
                message.rerun_script.page_name = self.page
                await connection.send(message.SerializeToString())
                script: asyncio.Task[None] | None = None
                async for told in connection:
                    if ForwardMsg.FromString(told).WhichOneof("type") == "script_finished" and script is None:
                        script = group.create_task(self._ask_what_changed())
                raise ConnectionError("closed by the server")
        except* (OSError, WebSocketException) as errors:
            self.dropped = ", ".join(f"{type(error).__name__}: {error}" for error in errors.exceptions)

    async def _ask_what_changed(self) -> None:
        known = ""
        while True:
            answer = await _get(self.port, f"/live/now.json?window=300&known={known}&chosen=")
            if answer is None:
                raise ConnectionError("the script of the page was not answered")
            told = json.loads(answer)
            if told["tag"] != known and (known or "figures" in told["document"]):
                self.drawn_at.append(time.monotonic())
            known = told["tag"]
            await asyncio.sleep(told["wait"])


@dataclass(frozen=True)
class Load:
    """What a number of tabs saw.

    Attributes:
        redraws_per_second: of one tab.
        longest_gap_seconds: in which a tab was not redrawn, from its opening on.
        worst_health_seconds: until the server said that it is well.
    """

    tabs: int
    seconds: float
    redraws_per_second: float
    longest_gap_seconds: float
    worst_health_seconds: float
    dropped: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.tabs} tabs for {self.seconds:.0f} s: {self.redraws_per_second:.2f} redraws a second and tab, "
            f"at most {self.longest_gap_seconds:.1f} s apart; {len(self.dropped)} dropped; health within "
            f"{self.worst_health_seconds:.2f} s"
        )


def load(dashboard: Dashboard, tabs: int, seconds: float) -> Load:
    """Let so many tabs look at the page Now at the same time, for so long and until each was drawn."""
    return _ended(_load(dashboard.port, tabs, seconds))


async def _load(port: int, count: int, seconds: float) -> Load:
    tabs = [Tab(port) for _ in range(count)]
    asked: list[float] = []
    begun = time.monotonic()
    tasks = [asyncio.create_task(tab.look()) for tab in tabs]
    tasks.append(asyncio.create_task(_ask_for_health(port, asked)))
    await asyncio.sleep(seconds)
    while not all(tab.drawn_at for tab in tabs) and time.monotonic() - begun < OPEN_SECONDS:
        await asyncio.sleep(0.1)
    ended = time.monotonic()
    dropped = tuple(tab.dropped for tab in tabs if tab.dropped)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    gaps = [
        later - earlier
        for tab in tabs
        for earlier, later in zip([begun, *tab.drawn_at], [*tab.drawn_at, ended], strict=True)
    ]
    redraws = sum(len(tab.drawn_at) for tab in tabs)
    return Load(count, ended - begun, redraws / count / (ended - begun), max(gaps), max(asked), dropped)


async def _ask_for_health(port: int, asked: list[float]) -> None:
    while True:
        begun = time.monotonic()
        answered = await _health(port)
        asked.append(time.monotonic() - begun if answered else OPEN_SECONDS)
        await asyncio.sleep(HEALTH_SECONDS)


async def _health(port: int) -> bytes | None:
    return await _get(port, "/_stcore/health")


async def _get(port: int, path: str) -> bytes | None:
    """The server's answer, or ``None`` if there is none yet."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return body if b" 200 " in head.splitlines()[0] else None
    finally:
        writer.close()
