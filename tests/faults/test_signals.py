"""Signals to a command, to the process that measures for it and to their groups, while they begin, go on and end.

Afterwards everything has ended, nothing is left, no traceback was shown, and what the run says of itself is true.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pinscope.probes.process import is_alive
from pinscope.records.run import Run
from pinscope.report.facts import open_document
from pinscope.runner import jobs
from pinscope.runner.worker import turn
from pinscope.store.bundle import read_bundle
from pinscope.store.store import Store
from tests.faults.campaign import Campaign, whole_only
from tests.faults.child import TREE

WORKER = "pinscope.runner.worker"
END_SECONDS = 60.0
"""A busy machine may take so long to end a run in order. What is killed with its parent takes none of it."""
GONE_SECONDS = 10.0
"""After the command's end nothing that it started may live longer than this."""
PYTHON_BEGINS_SECONDS = 0.1
"""Processor time after which a command runs PinScope's own code, however busy the machine is."""
TOGETHER = 4

_LITTLE = "--lab host --quick --set repeats=8"
RUNS = {
    "bandwidth": f"run bandwidth {_LITTLE} --set sizes=64KiB --set directions=h2d",
    "overlap": f"run overlap {_LITTLE} --set chunk=64KiB --set chunks=4 --set directions=h2d",
    "allocation": f"run allocation {_LITTLE} --set sizes=64KiB --set directions=h2d",
    "page_tables": "run page_tables --lab host --quick --set total=16MiB",
    "registration": "run registration --lab host --quick --set repeats=2 --set shared=8MiB --set buffer=2MiB "
    "--set processes=2",
    "pressure": "run pressure --lab host --quick --set cap=64MiB --set file=4MiB --set step_seconds=0.05",
}
"""Every experiment that the host model measures, each in about a second; pressure in a control group, which needs root,
is killed in a test of its own."""
OTHERS = {
    "record": "record --for 1.5s --interval 0.1 -o {folder}/night.pinscope",
    "exporter": "exporter --port 0 --interval 0.1",
    "live": "live --interval 0.1",
    "live --json": "live --interval 0.1 --json",
}
ENDLESS = ("exporter", "live", "live --json")
SIGNALS = ("KILL", "TERM", "INT", "HUP", "STOP, CONT", "STOP, then KILL of the command")
TARGETS = ("worker", "command", "both", "command's group", "worker's group")
MOMENTS = ("start", "start", "middle", "end", "end")
"""Beginnings and ends are where things go wrong."""


@dataclass(frozen=True)
class Attempt:
    """One command, and what is sent to whom, when."""

    subject: str
    signal: str
    target: str
    moment: str
    delay: float
    """Seconds after the moment."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.signal} to {self.target}, {self.delay:.3f} s after its {self.moment}"


def drawn(chance: random.Random, number: int) -> Attempt:
    """Every subject in turn; the rest by chance."""
    subject = (*RUNS, *OTHERS)[number % (len(RUNS) + len(OTHERS))]
    target = chance.choice(TARGETS if subject in RUNS else ("command", "command's group"))
    moment = chance.choice(MOMENTS if subject not in ENDLESS else MOMENTS[:3])
    most = {"start": 0.4, "middle": 0.8, "end": 0.2}[moment]
    return Attempt(subject, chance.choice(SIGNALS), target, moment, chance.uniform(0.0, most))


@pytest.fixture(autouse=True)
def _marked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed before its child was known is marked after a minute; here nothing goes on by then."""
    monkeypatch.setattr(jobs, "UNBORN_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _hang_up_is_heard() -> Iterator[None]:
    """Under nohup the commands would inherit that it is ignored, and rightly go on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@whole_only
def test_signals(campaign: Campaign, tmp_path: Path) -> None:
    """Whatever is sent to whom and when: everything ends, nothing is left, and what is said is true."""
    attempts = [drawn(campaign.random(n), n) for n in range(260)]
    for attempt in attempts:
        campaign.count("kills" if "KILL" in attempt.signal else "signals")
    with ThreadPoolExecutor(TOGETHER) as several:
        tried = several.map(lambda one: try_signals(one[1], tmp_path / str(one[0])), enumerate(attempts))
        for attempt, wrong in zip(attempts, tried, strict=True):
            for line in wrong:
                campaign.fail(f"{attempt}: {line}")


@whole_only
def test_stopped_worker(campaign: Campaign, tmp_path: Path) -> None:
    """A worker that is stopped before its Python has begun ends with its command."""
    for number in range(20):
        attempt = Attempt("bandwidth", SIGNALS[-1], "worker", "start", 0.0)
        campaign.count("kills")
        for line in try_signals(attempt, tmp_path / str(number)):
            campaign.fail(f"{attempt}: {line}")


def test_a_worker_that_is_interrupted_cancels_its_run_without_a_traceback(tmp_path: Path) -> None:
    attempt = Attempt("bandwidth", "INT", "worker", "start", 0.1)
    with started(attempt, tmp_path / "one") as command:
        send(attempt, command)
        assert command.process.wait(END_SECONDS) == 130
        (run,) = command.runs()
    assert (run.status, run.error) == ("cancelled", None)
    assert "Traceback" not in command.said()
    assert f"run {run.id} was cancelled" in command.said()


class Command:
    """PinScope as a child of this test, with a database, a temporary folder and a queue of its own."""

    def __init__(self, attempt: Attempt, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir(parents=True)
        self.url = f"sqlite:///{folder}/runs.sqlite"
        self.mark = uuid.uuid4().hex
        text = {**RUNS, **OTHERS}[attempt.subject].format(folder=folder)
        variables = {
            **os.environ, "PYTHONPATH": str(TREE), "PINSCOPE_DATABASE": self.url, "TMPDIR": str(self.temporary),
            "PINSCOPE_QUEUE": f"{folder}/queue", "ATTEMPT": self.mark,
        }  # fmt: skip
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "pinscope", *text.split()], env=variables, cwd=folder,
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip

    def said(self) -> str:
        """All that it printed."""
        return "".join((self.folder / name).read_text(errors="replace") for name in ("out", "err"))

    def living(self) -> list[int]:
        """Processes that it started, however deep or orphaned, and itself."""
        return [pid for pid in _numbers("/proc") if self._is_own(pid)]

    def _is_own(self, pid: int) -> bool:
        try:
            return self.mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def worker(self, seconds: float = 30.0) -> int | None:
        """The process that measures, as soon as it runs a program of its own; ``None`` if the command ended before."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            for child in _children(self.process.pid):
                with suppress(OSError):
                    words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                    if WORKER.encode() in words:
                        return child
            time.sleep(0.002)
        return None

    def runs(self) -> list[Run]:
        """What is stored."""
        with Store(self.url) as store:
            return store.runs(recordings=False)


def _numbers(folder: str) -> list[int]:
    return [int(path.name) for path in Path(folder).iterdir() if path.name.isdecimal()]


def _children(pid: int) -> list[int]:
    try:
        threads = [Path(f"/proc/{pid}/task/{thread}/children") for thread in _numbers(f"/proc/{pid}/task")]
        return [int(child) for thread in threads for child in thread.read_text().split()]
    except OSError:
        return []


@contextmanager
def started(attempt: Attempt, folder: Path) -> Iterator[Command]:
    """The command, running; whatever of it lives at the end is killed."""
    command = Command(attempt, folder)
    try:
        yield command
    finally:
        for pid in command.living():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        command.process.wait()


def try_signals(attempt: Attempt, folder: Path) -> list[str]:
    """What was wrong, one line each."""
    with started(attempt, folder) as command:
        sent = send(attempt, command)
        begun = time.monotonic()
        late, goes_on = False, attempt.subject in ENDLESS and attempt.signal == "STOP, CONT"
        try:
            command.process.wait(3.0 if goes_on else END_SECONDS)
        except subprocess.TimeoutExpired:
            # It goes on, as it should: only a signal that asks for it ends such a command.
            late = not goes_on
            command.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                command.process.wait(END_SECONDS)
        wrong = [f"had not ended after {time.monotonic() - begun:.0f} s"] if late else []
        deadline = time.monotonic() + GONE_SECONDS
        while (living := command.living()) and time.monotonic() < deadline:
            time.sleep(0.1)
        wrong += [f"left process {pid}, state {_state(pid)}" for pid in living]
    return wrong + list(_untrue(attempt, sent, command))


def send(attempt: Attempt, command: Command) -> bool:
    """Wait for the moment, and send; true if what is sent reached the command itself."""
    _await(attempt, command)
    pids = {"command": command.process.pid, "worker": None}
    if attempt.target in ("worker", "both", "worker's group"):
        pids["worker"] = command.worker()
    time.sleep(attempt.delay)
    numbers = {"STOP, CONT": ("STOP", "CONT"), SIGNALS[-1]: ("STOP",)}.get(attempt.signal, (attempt.signal,))
    for name in numbers:
        number = signal.Signals[f"SIG{name}"]
        for key in ("command", "worker") if attempt.target == "both" else (attempt.target.partition("'")[0],):
            if (pid := pids[key]) and command.process.poll() is None:
                with suppress(ProcessLookupError):
                    (os.killpg if "group" in attempt.target else os.kill)(pid, number)
        if name == "STOP":
            time.sleep(0.2 if len(numbers) > 1 else 0.0)
    if attempt.signal == SIGNALS[-1]:
        command.process.kill()
    return attempt.target not in ("worker", "worker's group") or attempt.signal == SIGNALS[-1]


def _await(attempt: Attempt, command: Command) -> None:
    """Until the moment has come, or the command has ended."""
    if attempt.moment == "start" and "worker" not in attempt.target:
        _until_it_loads_pinscope(command)
        return
    share = {"start": -1.0, "middle": 0.0, "end": 0.8}[attempt.moment]
    deadline = time.monotonic() + END_SECONDS
    while attempt.moment != "start" and command.process.poll() is None and time.monotonic() < deadline:
        if attempt.subject in ENDLESS:
            if command.said():
                return
        elif any(run.progress.fraction >= share or run.status != "running" for run in command.runs()):
            return
        time.sleep(0.2)


def _until_it_loads_pinscope(command: Command) -> None:
    """Before its first line runs, an interrupt is answered by Python itself, not by PinScope."""
    deadline = time.monotonic() + 30
    while command.process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            caught = re.search(r"^SigCgt:\s*(\w+)", Path(f"/proc/{command.process.pid}/status").read_text(), re.M)
            worked = int(Path(f"/proc/{command.process.pid}/schedstat").read_text().split()[0]) / 1e9
            if caught and int(caught[1], 16) & 1 << (signal.SIGINT - 1) and worked > PYTHON_BEGINS_SECONDS:
                return
        time.sleep(0.01)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def _given_up() -> Callable[[str], None]:
    """To wait with for a turn whose holder was killed.

    What it was starting has its files, so also its turn, until it is a program of its own: a moment longer than it.
    """
    deadline = time.monotonic() + GONE_SECONDS

    def wait(holder: str) -> None:
        if time.monotonic() > deadline:
            raise AssertionError(f"nobody lives, and {holder} still holds its turn")

    return wait


def _untrue(attempt: Attempt, reached: bool, command: Command) -> Iterator[str]:
    """What is left, or is not so, after the end."""
    said, code = command.said(), command.process.returncode
    if "Traceback" in said:
        yield f"showed a traceback: {said[said.index('Traceback') :][:2000]}"
    if "KILL" in attempt.signal:  # what was killed cannot remove its turn: the next run takes it, and does
        with turn("host", _given_up(), folders=[command.folder / "queue"]):
            pass
    left = [path.name for path in command.temporary.iterdir()]
    left += [path.name for path in command.folder.iterdir() if path.name not in _EXPECTED]
    if left:
        yield f"left {left}"
    killed = -signal.SIGKILL
    uncaught = (killed, -signal.SIGTERM, -signal.SIGHUP, -signal.SIGINT)
    runs = command.runs()
    if attempt.subject in ENDLESS:
        if code not in ((0, 130, *uncaught[1:]) if "KILL" not in attempt.signal else (0, killed)):
            yield f"exit code {code}; {said[-300:]}"
        return
    if code < 0 and not (reached and code in uncaught):
        yield f"exit code {code} without a signal that reached it; {said[-300:]}"
    if code < 0 and code != killed and runs:
        yield f"exit code {code} after the run had begun; {said[-300:]}"
    if not runs and code not in (*uncaught, 130):
        yield f"exit code {code} without a run; {said[-300:]}"
    if len(runs) > 1:
        yield f"{len(runs)} runs"
    for run in runs:
        yield from _untrue_of(run, attempt, code, command)


_EXPECTED = ("out", "err", "temporary", "queue", "runs.sqlite", "runs.sqlite-wal", "runs.sqlite-shm", "night.pinscope")
_CODES = {"done": (0,), "cancelled": (130,), "interrupted": (1,), "failed": (1,)}


def _untrue_of(run: Run, attempt: Attempt, code: int, command: Command) -> Iterator[str]:
    said = command.said()
    with Store(command.url) as store:
        jobs.reconcile(store)
        ended, rows = store.run(run.id), store.observations(run.id)
    if ended.status not in _CODES or (ended.process and is_alive(ended.process)):
        yield f"the run reads {ended.status}"
        return
    if run.status != "running" and ended != run:
        yield f"the run read {run.status}, then {ended.status}"
    if code >= 0 and code not in _CODES[ended.status] and not (ended.status == "done" and code == 130):
        yield f"exit code {code}, and the run reads {ended.status}; {said[-300:]}"
    if ended.status == "failed" and not (attempt.target == "worker's group" and "was killed by" in (ended.error or "")):
        yield f"the run failed: {ended.error}"
    if ended.status == "interrupted" and "KILL" not in attempt.signal and code >= 0:
        yield "the run was interrupted by a signal that asks it to end in order"
    if len(rows) != ended.observations or (ended.status == "done" and not rows):
        yield f"{len(rows)} observations of {ended.observations}"
    for claimed in re.findall(r"run \S+ was (\w+)", said):
        if claimed != ended.status:
            yield f"said that the run was {claimed}; it is {ended.status}"
    list(open_document(ended, rows).charts)
    bundle = command.folder / "night.pinscope"
    if bundle.exists():
        ((kept, its_rows),) = read_bundle(bundle)
        if kept.id != ended.id or its_rows != rows[: len(its_rows)]:
            yield "the bundle holds something else than the database"
    if attempt.subject in ("bandwidth", "overlap", "allocation"):
        yield from _no_prefix(rows, attempt)


def _no_prefix(rows: Sequence[dict[str, object]], attempt: Attempt) -> Iterator[str]:
    """Repeats of one combination come one after the other: one that is missing between others was lost."""
    last: dict[str, int] = {}
    for row in rows:
        repeat = row.get("repeat")
        if not isinstance(repeat, int):
            return
        labels = str([value for key, value in row.items() if isinstance(value, str) or key == "bytes"])
        if repeat > last.get(labels, -1) + 1:
            yield f"repeat {repeat} of {labels} has no predecessor"
        last[labels] = repeat
