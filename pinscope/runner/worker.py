"""The child that measures one run: ``python -m pinscope.runner.worker EXPERIMENT LAB PARENT_PID``.

It loads what that experiment takes on that lab, closes its output, and reads the run from its input: what it does until
then touches no GPU. It stores every observation as it comes, and ends when its parent ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any, Self

import platformdirs

from pinscope.errors import Cancelled, MeasurementFailed, PinScopeError, StoreFailed
from pinscope.experiments.registry import answer_at_end, find
from pinscope.lab.harness import Harness, check_budget
from pinscope.lab.placement import NEAR, HostNodes, place, placement, residence
from pinscope.lab.protocol import Lab
from pinscope.probes.environment import capture_devices, read_huge_pages
from pinscope.probes.host_memory import read_limits
from pinscope.probes.process import current_process, die_with_parent, install_handler
from pinscope.records.environment import Device
from pinscope.records.run import ExperimentRun, Progress, Run, Status
from pinscope.store.new_file import PRIVATE_FILE, SHARED_FOLDERS, check_private, make_private, own_folder
from pinscope.store.safe_writer import FLUSH_SECONDS, SafeWriter, saved_line
from pinscope.store.store import Store
from pinscope.text import error_line, one_line, visible

POLL_SECONDS = 0.1
SHARED = Path("/run/lock/pinscope")
"""For users who are to wait for each other. Root makes it: ``install -d -g GROUP -m 2770 /run/lock/pinscope``."""
VARIABLE = "PINSCOPE_QUEUE"
"""Environment variable with the folder in which this user's runs queue instead."""
_MOST_READ = 200
"""Bytes that a holder says of itself."""
_NO_NAME = re.compile(r"[^0-9A-Za-z_-]")


@contextmanager
def turn(
    name: str, waiting: Callable[[str], None], holder: str = "", folders: Sequence[Path] | None = None
) -> Iterator[str | None]:
    """Hold the lock of ``name`` while the block runs; gives ``None``, or why nothing could be locked.

    Args:
        name: what is locked: a GPU's UUID, or ``host`` for the host model.
        waiting: called with what holds the lock, again and again while it is held; may raise to give up.
        holder: what the waiting ones say of this one, beside its process id.
        folders: where the lock may lie; the first that can be used is taken. By default those of :func:`places`.

    Raises:
        MeasurementFailed: the file system refuses the lock for another reason than that it is held.
    """
    folders = places() if folders is None else folders
    lock = _opened(name, folders)
    if lock is None:
        unsafe = ", ".join(map(str, folders))
        yield f"Other runs may have measured at the same time: no folder for a lock is safe ({unsafe})."
        return
    with lock:
        while not _is_taken(lock):
            said = os.pread(lock.fileno(), _MOST_READ, 0).decode(errors="replace")
            waiting(one_line(said) or "another run")
            time.sleep(POLL_SECONDS)
        process = f"process {os.getpid()}"
        with suppress(OSError):  # a full disk: they wait all the same
            lock.truncate(0)
            os.pwrite(lock.fileno(), (f"{holder} ({process})" if holder else process).encode()[:_MOST_READ], 0)
        yield None


def _is_taken(lock: FileIO) -> bool:
    """Lock the file if nobody has."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise MeasurementFailed(f"cannot queue for the device: {lock.name}: {error.strerror}") from None
    return True


def places() -> list[Path]:
    """Folders for locks, best first. They do not depend on the session: runs from all of a user's sessions queue."""
    if named := os.environ.get(VARIABLE):
        return [Path(named)]
    folders = [SHARED, *(own_folder(Path(shared)) for shared in (*SHARED_FOLDERS, "/dev/shm"))]  # noqa: S108 - checked
    with suppress(RuntimeError):  # this user has no home folder
        folders.append(platformdirs.user_state_path("pinscope", appauthor=False) / "queue")
    return folders


def _opened(name: str, folders: Sequence[Path]) -> FileIO | None:
    """The file in the first folder that can be used; it stays when the turn is over."""
    for folder in folders:
        with suppress(OSError):
            shared = _checked(folder)
            path = str(folder / f"{_NO_NAME.sub('_', name)[:100]}.lock")
            file = FileIO(path, "r+", opener=partial(_open_lock, shared=shared))
            status = os.fstat(file.fileno())
            is_own = stat.S_ISREG(status.st_mode) and (shared or status.st_uid == os.geteuid())
            if is_own and status.st_nlink == 1:  # by another name it may be a file that somebody needs
                return file
            file.close()
    return None


def _open_lock(path: str, _flags: int, shared: bool) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        # Not one call with the above: in some folders the kernel lets nobody "create" what another has made.
        file = os.open(path, flags | os.O_CREAT, PRIVATE_FILE)
        if shared:
            os.fchmod(file, 0o666)  # whatever the umask is: the folder says who may
        return file


def _checked(folder: Path) -> bool:
    """Whether the users of the folder share it. One of this user alone is made where it is not.

    Raises:
        OSError: it is not there, or somebody who should not may write in it.
    """
    if folder != SHARED:
        make_private(folder)
        check_private(folder)
        return False
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != 0:
        raise PermissionError(f"{folder} is not a folder that root made")
    return True


PROGRESS_SECONDS = 0.2
"""Progress is written at most this often."""
BEAT_SECONDS = 2.0
"""Progress is written at least this often, unless the database fails."""


@dataclass(frozen=True)
class Outcome:
    """How a run went."""

    status: Status
    error: str | None = None
    """Why it failed, one line."""
    exit_code: int = 0

    @classmethod
    def of(cls, work: Callable[[], Status]) -> Outcome:
        """Do the work, which gives the run's status. Whatever it raises, the run must say so."""
        try:
            return cls(work())
        except Cancelled as error:
            return cls("cancelled", exit_code=error.exit_code)
        except PinScopeError as error:
            return cls("failed", str(error), error.exit_code)
        except Exception as error:  # noqa: BLE001 - whatever it was, the run says so
            if os.environ.get("PINSCOPE_DEBUG"):
                traceback.print_exc()
            return cls("failed", f"unexpected {type(error).__name__}: {error}".splitlines()[0], 1)

    def keep(self, writer: SafeWriter, *, has_answer: bool) -> Path | None:
        """Store it, with what the run answers; the file that holds the run where the database does not."""
        ended: dict[str, Any] = {}
        if has_answer:
            progress = Progress(fraction=1.0, message=self.status)
            ended = {"progress": progress, **answer_at_end(writer.run, writer.rows)}
        return writer.close(status=self.status, error=self.error, finished_at=datetime.now(UTC), **ended)


class Reporter:
    """Writes progress and notes of a run: progress not too often, and now and then though nothing happens."""

    def __init__(self, writer: SafeWriter, run: Run) -> None:
        self._writer = writer
        self._notes = list(run.notes)
        self._written = -PROGRESS_SECONDS
        self._last = Progress()
        self._storing = threading.Lock()
        self._ended = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="pinscope-heart", daemon=True)

    def __enter__(self) -> Self:
        self._heart.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._heart.join()

    def progress(self, fraction: float, message: str) -> None:
        """Store how far the run is."""
        if time.monotonic() - self._written >= PROGRESS_SECONDS or fraction >= 1:
            self._store(Progress(fraction=fraction, message=message))

    def waiting(self, holder: str) -> None:
        """Store what the run waits for."""
        if time.monotonic() - self._written >= PROGRESS_SECONDS:
            self._store(Progress(message=f"waiting for {holder}", waiting_for=holder))

    def _store(self, progress: Progress | None) -> None:
        with self._storing:
            self._last = progress or self._last
            self._written = time.monotonic()
            self._writer.update(progress=self._last.model_copy(update={"at": self._written}))

    def _beat(self) -> None:
        """Others who cannot see this process learn from it that it lives, and it learns whether they cancelled it."""
        while not self._ended.wait(FLUSH_SECONDS):
            self._writer.flush()
            if time.monotonic() - self._written >= BEAT_SECONDS:
                self._store(None)

    def note(self, text: str) -> None:
        """Store what a reader of the run must know, once."""
        if text not in self._notes:
            self._notes.append(text)
            self._writer.update(notes=tuple(self._notes))


def queues(run: ExperimentRun) -> list[str]:
    """Names of the turns that the run must have: its GPU's, or every GPU's if it measures on all of them.

    Always in the same order, so that no two runs wait for each other.
    """
    if run.lab == "host":
        return ["host"]
    everywhere = bool(run.params.get("all_devices"))
    return sorted({gpu.uuid for gpu in run.environment.devices if everywhere or gpu.index == run.device})


def open_lab(run: ExperimentRun, near: bool = False) -> Lab:
    """The lab that the run asks for; ``near``: each further GPU copies from host memory of its own NUMA node."""
    if run.lab == "host":
        from pinscope.lab.hostmodel import HostModelLab  # noqa: PLC0415 - each lab needs its own machine

        return HostModelLab()
    from pinscope.lab.cuda import CudaLab  # noqa: PLC0415 - imports CuPy

    devices = run.environment.devices
    if any(device.pci_bus_id is None for device in devices):
        return CudaLab(run.device)
    bus_ids = {device.index: device.pci_bus_id for device in devices if device.pci_bus_id}
    several = near and len(run.environment.nodes) > 1
    nodes = {device.index: device.numa_node for device in devices if several and device.numa_node is not None}
    return CudaLab(run.device, bus_ids, near=nodes)


def measure(writer: SafeWriter, run: ExperimentRun, signals: Sequence[int]) -> Status:
    """Measure the run from queueing to its last observation; gives the status that it has then.

    Args:
        writer: takes the observations.
        run: the run.
        signals: those by which somebody has asked to stop; looked at between turns, so that none is torn.

    Raises:
        Cancelled: somebody asked to stop.
        PinScopeError: the experiment broke off; what was measured is stored.
    """

    def cancelled() -> bool:
        return bool(signals) or writer.cancelled  # the latter by somebody whose signals do not reach here

    def waiting(holder: str) -> None:
        if cancelled():
            raise Cancelled("the run was cancelled while it waited")
        reporter.waiting(holder)

    experiment = find(run.experiment).experiment
    params = experiment.Params.model_validate(run.params)
    with Reporter(writer, run) as reporter, ExitStack() as held:
        for name in queues(run):
            if note := held.enter_context(turn(name, waiting, f"run {run.id}")):
                reporter.note(note)
        chosen = placement(params.node, run.environment, run.lab, run.device)
        for line in place(chosen):  # before the lab takes memory or starts a thread
            reporter.note(line)
        # Memory that was free when the run was prepared may have gone while it waited.
        check_budget(run.budget, read_limits(), run.gpu, run.lab, read_huge_pages())
        lab = held.enter_context(open_lab(run, near=params.node == NEAR))
        harness = Harness(report=reporter.progress, cancelled=cancelled, note=reporter.note, budget=run.budget)
        reporter.progress(0.0, "starting")
        before = capture_devices() if run.gpu else ()
        try:
            for observation in experiment.measure(params, lab, harness):
                writer.append([observation.model_dump(mode="json") | _where(lab.host_nodes)])
            for line in residence(chosen, lab.host_nodes):
                reporter.note(line)
        finally:
            if run.gpu:
                devices = _with_links(run.environment.devices, before, capture_devices())
                writer.update(environment=run.environment.model_copy(update={"devices": devices}))
    return "done"


def _where(nodes: HostNodes) -> dict[str, Any]:
    """What an observation tells of the NUMA nodes of the host buffers."""
    numbers = nodes.take()
    several = ", ".join(map(str, numbers)) if len(numbers) > 1 else None
    return {"host_node": numbers[0] if len(numbers) == 1 else None, "host_nodes": several}


def _with_links(devices: Sequence[Device], before: Sequence[Device], after: Sequence[Device]) -> tuple[Device, ...]:
    """The GPUs with the errors of their links right before and right after measuring.

    The link itself is as it is right after copying: an idle one trains down to save power.
    """
    first = {device.uuid: device.link_errors for device in before}
    last = {device.uuid: device for device in after}
    measured = []
    for device in devices:
        missing = {name: reason for name, reason in device.missing.items() if name != "link_errors_after"}
        changes: dict[str, Any] = {"link_errors": first.get(device.uuid, device.link_errors), "missing": missing}
        if now := last.get(device.uuid):
            changes |= {"link": now.link or device.link, "link_errors_after": now.link_errors}
        else:
            missing["link_errors_after"] = "the driver did not show the GPU after the run"
        measured.append(device.model_copy(update=changes))
    return tuple(measured)


def main(arguments: list[str]) -> int:
    """Load, and measure the run that comes; its exit code."""
    experiment, lab, parent = arguments
    die_with_parent(int(parent))  # an exec of a Python with file capabilities drops what was asked before it
    signals: list[int] = []
    install_handler(lambda number, _frame: signals.append(number))
    _load(experiment, lab)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    order = sys.stdin.buffer.read()
    if not order:
        return StoreFailed.exit_code  # no run could be stored, or none is wanted: its starter says so
    try:
        # Opened when it is first needed: a database that fails right now may be back before the run has ended.
        with Store(at_once=False) as store:
            return _run(store, ExperimentRun.model_validate_json(order), signals)
    except PinScopeError as error:
        print(f"pinscope: {error_line(str(error))}", file=sys.stderr)  # noqa: T201 - the only word a child without a store can say
        return error.exit_code


def _load(experiment: str, lab: str) -> None:
    """Import what a run takes before it measures."""
    with suppress(ImportError):  # measuring says it
        find(experiment).experiment  # noqa: B018 - imports it
        import_module(f"pinscope.lab.{'hostmodel' if lab == 'host' else 'cuda'}")


def _run(store: Store, run: ExperimentRun, signals: Sequence[int]) -> int:
    """Measure, and store how it went; the exit code."""
    writer = SafeWriter(store, run)
    if run.process is None:
        writer.update(process=current_process())
    outcome = Outcome.of(partial(measure, writer, run, signals))
    if saved := outcome.keep(writer, has_answer=outcome.status == "done"):
        print(f"pinscope: {visible(saved_line(saved))}", file=sys.stderr)  # noqa: T201
    return outcome.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
