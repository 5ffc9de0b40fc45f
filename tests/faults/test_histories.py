"""Several writers at once, whose server restarts while they begin, go on and end.

Afterwards, as in Jepsen's tests: what a command acknowledged is stored or saved, each run has ended once, and what was
said is so.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pinscope.errors import PinScopeError
from pinscope.runner.jobs import reconcile
from pinscope.store.store import Store
from tests.conftest import Outliving
from tests.faults.campaign import Campaign, whole_only
from tests.faults.child import TREE
from tests.faults.disk import RUN
from tests.integration.postgresql_server import PostgreSQLServer

LIMIT_SECONDS = 240.0
RECORD = ("record", "--for", "1.5", "--interval", "0.1", "--json")
ENDED = ("done", "failed", "cancelled", "interrupted")


@dataclass
class Writer:
    """A command that stores a run."""

    folder: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, folder: Path, url: str, arguments: Sequence[str]) -> Writer:
        """Start it, in a folder of its own."""
        folder.mkdir(parents=True)
        environment = _environment(folder, url)
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pinscope", *arguments], env=environment, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            )  # fmt: skip
        return cls(folder, process)

    def text(self, name: str) -> str:
        """What it wrote to ``stdout`` or ``stderr``."""
        return (self.folder / name).read_text(errors="replace")

    @property
    def printed(self) -> dict[str, Any] | None:
        """Its document, if it came that far."""
        text = self.text("stdout")
        return dict(json.loads(text)) if text else None

    def next_command(self, url: str) -> None:
        """What comes after it in its place: it stores what was saved."""
        if [*self.folder.rglob("unsaved-*")]:
            command = [sys.executable, "-P", "-m", "pinscope", "runs", "list", "--json"]
            subprocess.run(command, env=_environment(self.folder, url), check=True, stdout=subprocess.DEVNULL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it and to what it started."""
        with suppress(psutil.NoSuchProcess):
            command = psutil.Process(self.process.pid)
            for one in (*command.children(recursive=True), command):
                with suppress(psutil.NoSuchProcess):
                    one.send_signal(number)


def _environment(folder: Path, url: str) -> dict[str, str]:
    own = dict.fromkeys(("TMPDIR", "HOME", "XDG_DATA_HOME"), str(folder))
    return {**os.environ, **own, "PYTHONPATH": str(TREE), "PINSCOPE_DATABASE": url}


def writers(folder: Path, url: str) -> list[Writer]:
    """A measurement and two recordings, one of which writes a file as well."""
    commands = (RUN, (*RECORD, "-o", "file.pinscope"), RECORD)
    return [Writer.start(folder / str(number), url, words) for number, words in enumerate(commands)]


def wait(started: Sequence[Writer], url: str) -> Iterator[str]:
    """Until all have ended; those that do not are killed, which is a complaint."""
    deadline = time.monotonic() + LIMIT_SECONDS
    for writer in started:
        try:
            writer.process.wait(max(deadline - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            yield f"no end after {LIMIT_SECONDS:g} s: {writer.text('stderr')[-300:]}"
            writer.signal(signal.SIGKILL)
            writer.process.wait()
    for writer in started:
        writer.next_command(url)


class Watch(threading.Thread):
    """Which statuses each run was seen with, in their order."""

    def __init__(self, url: str) -> None:
        super().__init__(name="tests-watch", daemon=True)
        self.seen: dict[str, list[str]] = defaultdict(list)
        self._url = url
        self._ended = threading.Event()
        self.start()

    def run(self) -> None:
        with Store(self._url, at_once=False) as store:
            while not self._ended.wait(0.1):
                with suppress(PinScopeError):
                    for run in store.runs(recordings=False):
                        if run.status not in self.seen[run.id][-1:]:
                            self.seen[run.id].append(run.status)

    def end(self) -> dict[str, list[str]]:
        """The statuses."""
        self._ended.set()
        self.join()
        return self.seen


def complaints(url: str, started: Sequence[Writer], seen: dict[str, list[str]]) -> Iterator[str]:
    """What of the history is not as it was said to be."""
    for run_id, statuses in seen.items():
        ends = [status for status in statuses if status in ENDED]
        # A writer that is gone is interrupted, until what it had saved in its file comes in and tells how it ended.
        if len(ends[1:] if ends[:1] == ["interrupted"] else ends) > 1:
            yield f"run {run_id} ended more than once: {statuses}"
    with Store(url) as store:
        reconcile(store)
        for writer in started:
            yield from _of(writer, store)
        for run in store.runs(recordings=False):
            if run.status not in ENDED:
                yield f"run {run.id} reads as {run.status}"
            rows = store.observations(run.id)
            if len(rows) != run.observations:
                yield f"run {run.id} has {len(rows)} observations and says {run.observations}"


def _of(writer: Writer, store: Store) -> Iterator[str]:
    """What is wrong with one writer."""
    said, code = writer.text("stderr"), writer.process.returncode
    if code not in (0, 1) or "Traceback" in said:
        yield f"it ends with {code}: {said[-400:]}"
    yield from (f"a line not its own: {line}" for line in said.splitlines() if not line.startswith("pinscope: "))
    printed = writer.printed
    if printed is None:
        if "the run goes on" in said or not code:
            yield f"it said that the run goes on, or ended with {code}, and printed nothing: {said[-600:]}"
        return
    run_id, count = printed["run"]["id"], len(printed["observations"])
    if code and "was saved to" not in said:
        yield f"it ends with {code} and does not say where the run is: {said[-400:]}"
    if not code and store.run(run_id).observations != count:
        yield f"{count} observations were acknowledged, {store.run(run_id).observations} are stored"
    ended = store.run(run_id)
    if (ended.status, ended.observations) != (printed["run"]["status"], count):
        yield f"printed: {printed['run']['status']}, {count}; kept: {ended.status}, {ended.observations}"
    if ended.status != "done":
        yield f"nobody stopped it, and it is {ended.status}: {said[-400:]}"


@whole_only
def test_histories(campaign: Campaign, server: PostgreSQLServer, outliving: Outliving, tmp_path: Path) -> None:
    for number in range(100):
        chance = campaign.random(number)
        server.empty()
        Store(server.url).close()  # makes the tables
        watch = Watch(server.url)
        started = writers(tmp_path / str(number), server.url)
        for _ in range(chance.choice((1, 2, 3))):
            time.sleep(chance.uniform(0.3, 2.0))
            server.stop()
            time.sleep(chance.choice((0.0, 0.0, 1.0, 3.0)))
            server.start()
            outliving.processes.add(server.pid)
            campaign.count("database restarts")
        wrong = [*wait(started, server.url)]
        wrong += complaints(server.url, started, watch.end())
        for complaint in wrong:
            campaign.fail(f"history {number}: {complaint}")
