"""Runs from the outside: prepare, start and cancel one, and notice those whose child is gone."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import IO, Any, cast

from pinscope import errors, isolation
from pinscope.experiments.contract import AnyExperiment, BareParams, budget_of
from pinscope.experiments.registry import EXPERIMENTS, find
from pinscope.lab.harness import check_budget
from pinscope.lab.placement import placement
from pinscope.probes.environment import capture_environment, cupy_problem, machine_id
from pinscope.probes.process import is_alive, is_in_sight, on_this_boot, process_of, start_child
from pinscope.records.environment import Environment
from pinscope.records.run import LAB_TITLES, ExperimentRun, LabKind, Process, Progress, Run
from pinscope.store.documents import StoredRow
from pinscope.store.safe_writer import bring_in, find_saved
from pinscope.store.store import Store
from pinscope.text import quoted

LOOK_SECONDS = 0.2
"""From one look at how far a run is to the next."""
GRACE_SECONDS = 5.0
"""How long a cancelled child has to put things away before it is ended."""
UNBORN_SECONDS = 60.0
"""A run that has had no child for so long will get none: the process that was to start it is gone."""
LOADING_SECONDS = 30.0
"""How long workers are waited for that do not come to an end of loading."""
PATIENCE_SECONDS = 15.0
"""How long a database may be away when a run has ended, until its result is not given."""
SILENT_SECONDS = 60.0
"""A child in another container that has stored no progress for so long has ended; it stores some every 2 s."""


@dataclass(frozen=True)
class Request:
    """What somebody asked for.

    Attributes:
        experiment: its name.
        lab: ``None`` takes the GPU if there is a usable one, else the host model.
        device: GPU index.
        quick: quick instead of full size.
        overrides: parameter name → value, as text or as Python values.
        labels: what the run is called.
    """

    experiment: str
    lab: LabKind | None = None
    device: int = 0
    quick: bool = False
    overrides: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, Any] = field(default_factory=dict)


def prepare(request: Request, environment: Environment) -> ExperimentRun:
    """A validated and budgeted run, not stored yet; nothing on the machine is touched.

    Raises:
        BadInput: unknown experiment or parameter, or a value out of range.
        NotPossible: this machine cannot do it, with what it has and what is needed.
    """
    experiment = find(request.experiment).experiment
    lab = request.lab or ("cuda" if usable_gpu(environment) else "host")
    if lab not in ("cuda", "host"):
        raise errors.InvalidParameter(f"no lab {quoted(lab)}; there are: cuda, host")
    if reason := experiment.labs.get(lab, "it was not written for it"):
        raise errors.NotPossible(f"{experiment.title} does not run on the {LAB_TITLES[lab]}: {reason}")
    _check_device(lab, request.device, environment)
    params = experiment.Params.preset(lab, request.quick).with_overrides(request.overrides)
    chosen = placement(params.node, environment, lab, request.device)
    bound = chosen.node if chosen.only else None
    here = environment.model_copy(update={"limits": environment.limits.on_node(bound)}) if bound else environment
    params, notes = _fitting(experiment, params, request, lab, here)
    return ExperimentRun(
        id=new_id(),
        experiment=experiment.name,
        lab=lab,
        device=request.device,
        status="running",
        quick=request.quick,
        params=params.model_dump(mode="json"),
        budget=budget_of(experiment, params, here),
        environment=environment,
        created_at=datetime.now(UTC),
        notes=notes,
        **request.labels,
    )


def usable_gpu(environment: Environment) -> bool:
    """True when a run on the ``cuda`` lab can start here: a GPU, and a CuPy that fits its driver."""
    return bool(environment.devices) and cupy_problem(environment) is None


def new_id() -> str:
    """For a run: short, sortable by time, unique, such as 20261121-031500-4f2a9c."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def _check_device(lab: LabKind, device: int, environment: Environment) -> None:
    if lab == "host":
        if device != 0:
            raise errors.InvalidParameter(f"no device {device} on the host model; it has only 0")
        return
    if not environment.devices:
        reason = environment.missing.get("devices", "no NVIDIA driver answers")
        raise errors.NoDevice(f"there is no GPU to run on here: {reason}; use --lab host, or run on a GPU host")
    if problem := cupy_problem(environment):
        raise errors.NoDevice(f"{problem.reason}; {problem.advice}")
    if environment.device(device) is None:
        known = ", ".join(str(gpu.index) for gpu in environment.devices)
        raise errors.InvalidParameter(f"no GPU {device}; there are: {known}")


def _fitting(
    experiment: AnyExperiment, params: BareParams, request: Request, lab: LabKind, environment: Environment
) -> tuple[BareParams, tuple[str, ...]]:
    """The parameters, reduced where a preset is more than is safe here; what was asked for by name is refused."""
    device = environment.device(request.device) if lab == "cuda" else None
    asked, why = params, ""
    while True:
        try:
            check_budget(
                budget_of(experiment, params, environment), environment.limits, device, lab, environment.huge_pages
            )
        except errors.NotEnoughMemory as error:
            smaller = params.smaller()
            if smaller is None or _changed(params, smaller) & set(request.overrides):
                raise
            params, why = smaller, why or str(error)
        else:
            changed = ", ".join(sorted(_changed(asked, params)))
            note = f"Reduced to what is safe on this machine: {changed}. Before that, {why}."
            return params, (note,) if changed else ()


def _changed(before: BareParams, after: BareParams) -> set[str]:
    """Names of the parameters that differ."""
    return {name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)}


Worker = subprocess.Popen[bytes]
"""A child that measures one run."""
_launcher = ThreadPoolExecutor(1, "pinscope-launcher")
"""A thread that lives as long as this process, to start children from.

A child asks the kernel to be killed when its parent ends (PR_SET_PDEATHSIG), and the kernel counts the *thread* that
started it as the parent. A page's script thread ends within seconds; this one does not, and neither does the main one.
"""


@dataclass(frozen=True)
class Job:
    """A started run, and the child that measures it."""

    run_id: str
    child: Worker


_started: list[Job] = []


@contextmanager
def workers_for(store: Store, requests: Sequence[Request]) -> Iterator[Sequence[Worker | None]]:
    """A worker for each request, of which the lab is known. Of several, all have loaded their libraries: none does so
    while another one measures. Those that get no run end with this.

    ``None``: it could not be started; :func:`start` tries again.
    """
    reading, loading = os.pipe()
    workers: list[Worker | None] = []
    try:
        try:
            for request in requests:
                worker = None
                with suppress(errors.MeasurementFailed):
                    worker = _start_worker(store, request.experiment, request.lab, loading)
                workers.append(worker)
        finally:
            os.close(loading)
        if len(requests) > 1:
            select.select([reading], [], [], LOADING_SECONDS)  # ends when no worker has the other end any more
        yield workers
    finally:
        os.close(reading)
        for worker in workers:
            if worker is not None and not _stdin(worker).closed:
                _hand_over(worker, b"")
                worker.kill()  # it holds nothing, and may hang
                worker.wait()


def _start_worker(store: Store, experiment: str, lab: LabKind | None, output: int) -> Worker:
    """Start a child that loads what such a run takes; then it closes ``output`` and waits for the run.

    Raises:
        MeasurementFailed: it could not be started.
    """

    def launch() -> Worker:
        return start_child(
            isolation.command("pinscope.runner.worker", experiment, lab or "", str(os.getpid())),
            env={**os.environ, "PINSCOPE_DATABASE": store.url},
            stdin=subprocess.PIPE,
            stdout=output,
            start_new_session=True,  # Ctrl-C reaches the command line only, which cancels in order
        )

    in_main_thread = threading.current_thread() is threading.main_thread()
    try:
        return launch() if in_main_thread else _launcher.submit(launch).result()
    except OSError as error:
        raise errors.MeasurementFailed(f"the process that measures could not be started: {error.strerror}") from None


def _stdin(worker: Worker) -> IO[bytes]:
    return cast("IO[bytes]", worker.stdin)


def _hand_over(worker: Worker, order: bytes) -> None:
    """Give a worker the run that it is to measure; nothing: it is to end."""
    with suppress(BrokenPipeError), _stdin(worker) as pipe:  # it has been killed already: its exit code says so
        pipe.write(order)


def start(store: Store, run: ExperimentRun, worker: Worker | None = None) -> Job:
    """Store the run with the worker that is to measure it, which is started if there is none, and hand it over.

    In this order, so that the run carries its child from the moment it is stored: a reader knows then whether it
    still goes on. The child gets the run itself, not its id: it begins though the database fails right then.

    Raises:
        MeasurementFailed: the child could not be started; nothing was stored.
        StoreFailed: the run could not be stored; its child has ended.
    """
    _started[:] = [job for job in _started if job.child.poll() is None]  # reaps those that ended
    job = Job(run.id, worker or _start_worker(store, run.experiment, run.lab, subprocess.DEVNULL))
    try:
        run = store.add(run.model_copy(update={"process": process_of(job.child.pid)}))
    except BaseException:
        _hand_over(job.child, b"")
        job.child.wait()
        raise
    _hand_over(job.child, run.model_dump_json().encode())
    _started.append(job)
    return job


@contextmanager
def running(store: Store, run: ExperimentRun, worker: Worker | None = None) -> Iterator[Job]:
    """The job of a run, started as by :func:`start`. Who leaves the block before the run has ended cancels it; then its
    child is waited for."""
    job = start(store, run, worker)
    try:
        yield job
    finally:
        if job.child.poll() is None:
            try:
                cancel(store, run.id)
            except (errors.BadInput, errors.StoreFailed):  # it has just ended, or saves what the database does not take
                job.child.terminate()
        job.child.wait()


def progress_of(store: Store, job: Job) -> Iterator[Progress | errors.PinScopeError]:
    """How far a run is, some times a second until its child ends; an error where the database does not say.

    A database that fails meanwhile ends nothing: the child would end with this process, and it alone holds what the
    database did not take.
    """
    while job.child.poll() is None:
        try:
            yield store.run(job.run_id).progress
        except (errors.StoreFailed, errors.UnknownName) as error:  # a database file that was deleted knows no run
            yield error
        with suppress(subprocess.TimeoutExpired):
            job.child.wait(LOOK_SECONDS)


def ended_run(store: Store, run_id: str) -> tuple[Run, Sequence[StoredRow], bool]:
    """A run whose child has ended, its observations, and whether the database has them.

    What the database did not take, the child has saved to a file. A database that fails in this very moment is
    waited for: it may have the run whole.

    Raises:
        MeasurementFailed: somebody deleted the run.
        StoreFailed: the database does not come back.
    """
    if saved := find_saved(store, run_id):
        return *saved, False
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if store.run(run_id).status == "running":  # killed before it could say how it ended
                mark_interrupted(store, run_id)
            return store.run(run_id), store.observations(run_id), True
        except errors.UnknownName:
            raise errors.MeasurementFailed(f"run {run_id} is no longer in the database; was it deleted?") from None
        except errors.StoreFailed as error:
            if time.monotonic() > deadline:
                raise errors.StoreFailed(
                    f"run {run_id} has ended, but cannot be read: {error}; "
                    f"pinscope runs show {run_id} shows it when that has passed"
                ) from None
            time.sleep(0.5)


def cancel(store: Store, run_id: str) -> None:
    """Stop a run of any process on any machine; what it measured stays.

    A child that signals from here do not reach (another machine, another container, another user's) reads it in the
    database, and stops within seconds.

    Raises:
        UnknownName: no such run.
        BadInput: it is not running.
    """
    run = store.run(run_id)
    if run.status != "running":
        raise errors.BadInput(f"run {run.id} is not running; it is {run.status}")
    if _is_gone(run):
        reconcile(store)
        return
    if run.process is not None and is_in_sight(run.process) and is_alive(run.process):
        _end(run.process, by_force=run.lab not in ("live", "traced"))
    if store.run(run.id).status == "running":
        store.update(run.id, status="cancelled", finished_at=datetime.now(UTC))


def _end(process: Process, by_force: bool) -> None:
    """Ask a process to end, and make it end if it does not.

    A recording is not made to: it may be writing its file, or taking the probe out of everybody's programs. Nor is a
    trace: it hands the signal to the program, and keeps what was recorded when that has ended.
    """
    with suppress(PermissionError, ProcessLookupError):  # the second: it ended by itself meanwhile
        os.kill(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        if by_force and is_alive(process):
            os.kill(process.pid, signal.SIGKILL)


@contextmanager
def open_store(to_write: bool = False) -> Iterator[Store]:
    """The store, with runs marked whose child is gone.

    Raises:
        StoreFailed: it cannot be read; ``to_write``: or nothing can be stored in it.
    """
    with Store() as store:
        reconcile(store)
        if to_write and store.refusal:
            raise errors.StoreFailed(f"nothing can be stored in {store.name}: {store.refusal}")
        yield store


def reconcile(store: Store) -> list[str]:
    """Store what writers saved, and mark runs as interrupted whose child is gone; the ids of those that were marked.

    A database that takes no mark (its disk is full, or it may only be read) is still good for reading and exporting:
    ``store`` shows these runs as interrupted all the same.
    """
    bring_in(store)
    store.presumed.clear()
    return [run.id for run in store.unfinished() if _is_gone(run) and mark_interrupted(store, run.id)]


def mark_interrupted(store: Store, run_id: str) -> bool:
    """Mark a run whose child has certainly ended, or show it so where the database takes no mark; whether it did."""
    changes = {
        "status": "interrupted",
        "error": "the process that measured it ended before the run did",
        "finished_at": datetime.now(UTC),
    }
    if not store.presumed:  # else it is known to take none, which it may have taken seconds to say
        with suppress(errors.StoreFailed):
            with suppress(errors.UnknownName):  # somebody else has marked and deleted it in this moment
                store.update(run_id, **changes)
            return True
    store.presumed[run_id] = changes
    return False


def _is_gone(run: Run) -> bool:
    """Whether the child of an unfinished run has certainly ended."""
    here = run.environment.machine_id == machine_id()
    if run.process is None:
        # It was stored by a version that started the child afterwards, milliseconds later, or /proc did not show the
        # child. The clock may have been set back since then, and that of another machine may differ.
        age = abs((datetime.now(UTC) - run.created_at).total_seconds())
        return age >= (UNBORN_SECONDS if here else 60 * UNBORN_SECONDS)
    if not on_this_boot(run.process):
        return here and not is_alive(run.process)  # restarted since, or the kernel does not tell its boots apart
    if is_in_sight(run.process):
        return not is_alive(run.process)
    return run.progress.at is not None and time.monotonic() - run.progress.at > SILENT_SECONDS


ALL = "all"
"""Stands for every experiment, where one is named."""


@dataclass(frozen=True)
class Selection:
    """What can run of what was asked for.

    Attributes:
        requests: one for each experiment, each with its lab.
        left_out: a line for each other experiment: its name, and why it is left out.
    """

    requests: tuple[Request, ...]
    left_out: tuple[str, ...] = ()


def select_experiments(asked: Request, environment: Environment) -> Selection:
    """The experiment asked for, or all that run on the lab; nothing on the machine is touched.

    One experiment of several whose preset this machine cannot hold is left out; bad input, and settings that this
    machine cannot hold, refuse them all.

    Raises:
        BadInput: one of the requests makes no sense.
        NotPossible: none can run here, or one cannot with the settings asked for.
    """
    if asked.experiment != ALL:
        return possible([asked], environment)
    lab = asked.lab or ("cuda" if usable_gpu(environment) else "host")
    requests, left_out = requests_of(asked, lab, [entry.experiment for entry in EXPERIMENTS])
    if not requests:
        raise errors.NotPossible(f"no experiment has a meaning on the {lab} lab")
    chosen = possible(requests, environment)
    return Selection(chosen.requests, (*left_out, *chosen.left_out))


def requests_of(asked: Request, lab: LabKind, experiments: Sequence[AnyExperiment]) -> tuple[list[Request], list[str]]:
    """A request for each experiment that runs on the lab, with those settings that it has; for each other why it does
    not.

    Raises:
        InvalidParameter: a setting that none has.
    """
    known = dict.fromkeys(field for experiment in experiments for field in experiment.Params.model_fields)
    if unknown := set(asked.overrides) - set(known):
        raise errors.InvalidParameter(
            f"no experiment has a parameter {quoted(min(unknown))}; there are: {', '.join(known)}"
        )
    requests, left_out = [], []
    for experiment in experiments:
        if reason := experiment.labs.get(lab):
            left_out.append(f"{experiment.name} does not run on the {LAB_TITLES[lab]}: {reason}")
            continue
        overrides = {key: value for key, value in asked.overrides.items() if key in experiment.Params.model_fields}
        requests.append(replace(asked, experiment=experiment.name, overrides=overrides))
    return requests, left_out


def possible(requests: Sequence[Request], environment: Environment) -> Selection:
    """Those of the requests that can run here. Errors as of :func:`select_experiments`."""
    accepted: list[Request] = []
    refused: list[tuple[str, errors.NotPossible]] = []
    for request in requests:
        try:
            accepted.append(replace(request, lab=prepare(request, environment).lab))
        except errors.NotPossible as error:
            if request.overrides and isinstance(error, errors.NotEnoughMemory):
                raise  # asked for by name, not a preset that is too large for this machine
            refused.append((request.experiment, error))
    if not accepted:
        raise refused[0][1]
    return Selection(tuple(accepted), tuple(f"{experiment}: {refusal}" for experiment, refusal in refused))


@dataclass
class Step:
    """One run of a suite.

    Attributes:
        request: what it measures.
        expected_seconds: how long it takes, as estimated beforehand.
        run_id: once it has begun.
        problem: why it could not begin, one line.
        has_ended: it was measured, or could not begin.
    """

    request: Request
    expected_seconds: float
    run_id: str | None = field(default=None, init=False)
    problem: str | None = field(default=None, init=False)
    has_ended: bool = field(default=False, init=False)


class Suite:
    """Measures requests one after the other, in a thread of its own; every run is stored as if it had been alone.

    Args:
        store: where the runs are kept.
        requests: what to measure, in this order.
        environment: the machine, for the estimate of the time.

    Raises:
        PinScopeError: one of the requests cannot run here.
    """

    def __init__(self, store: Store, requests: Sequence[Request], environment: Environment) -> None:
        runs = [prepare(request, environment) for request in requests]
        self.steps = tuple(
            Step(replace(request, lab=run.lab), run.expected_seconds)
            for request, run in zip(requests, runs, strict=True)
        )
        self._store = store
        self._is_cancelled = threading.Event()
        self._thread = threading.Thread(target=self._measure, name="pinscope-suite", daemon=True)

    def start(self) -> None:
        """Begin with the first request."""
        self._thread.start()

    def cancel(self) -> None:
        """Stop the run that goes on and begin no other; what was measured stays."""
        self._is_cancelled.set()
        step = self.current
        if step is not None and step.run_id is not None:
            with suppress(errors.BadInput, errors.StoreFailed):  # it ended in the same moment
                cancel(self._store, step.run_id)

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    @property
    def has_ended(self) -> bool:
        """Whether nothing is measured any more."""
        return not self._thread.is_alive()

    @property
    def current(self) -> Step | None:
        """The step that goes on, or is next; ``None`` after the last."""
        return next((step for step in self.steps if not step.has_ended), None)

    @property
    def expected_seconds(self) -> float:
        """How long all steps take, as estimated beforehand."""
        return sum(step.expected_seconds for step in self.steps)

    def fraction(self) -> float:
        """How much of the time has passed, 0 to 1, by the estimates of the steps.

        Raises:
            StoreFailed: the progress of the run that goes on cannot be read.
        """
        passed = sum(step.expected_seconds for step in self.steps if step.has_ended)
        step = self.current
        if step is not None and step.run_id is not None:
            passed += step.expected_seconds * self._store.run(step.run_id).progress.fraction
        return passed / (self.expected_seconds or 1.0)

    def _measure(self) -> None:
        with workers_for(self._store, [step.request for step in self.steps]) as workers:
            for step, worker in zip(self.steps, workers, strict=True):
                if self._is_cancelled.is_set():
                    return
                try:
                    run = prepare(step.request, capture_environment())
                    job = start(self._store, run, worker)
                    step.run_id = run.id
                    if self._is_cancelled.is_set():
                        job.child.terminate()
                    job.child.wait()
                    reconcile(self._store)
                except errors.PinScopeError as error:
                    step.problem = str(error)
                step.has_ended = True
