"""Several runs: which experiments can run here, and measuring them one after the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pinscope.errors import BadInput, InvalidParameter, NotEnoughMemory, NotPossible, PinScopeError, StoreFailed
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.probes.environment import capture_environment
from pinscope.records.environment import Environment
from pinscope.records.run import LAB_TITLES
from pinscope.runner.jobs import Request, cancel, prepare, reconcile, start, usable_gpu, workers_for
from pinscope.store.store import Store
from pinscope.text import quoted

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


def select(asked: Request, environment: Environment) -> Selection:
    """The experiment asked for, or all that run on the lab; nothing on the machine is touched.

    One experiment of several whose preset this machine cannot hold is left out; bad input, and settings that this
    machine cannot hold, refuse them all.

    Raises:
        BadInput: one of the requests makes no sense.
        NotPossible: none can run here, or one cannot with the settings asked for.
    """
    if asked.experiment != ALL:
        return possible([asked], environment)
    experiments = [entry.experiment for entry in EXPERIMENTS]
    known = dict.fromkeys(field for experiment in experiments for field in experiment.Params.model_fields)
    if unknown := set(asked.overrides) - set(known):
        raise InvalidParameter(f"no experiment has a parameter {quoted(min(unknown))}; there are: {', '.join(known)}")
    lab = asked.lab or ("cuda" if usable_gpu(environment) else "host")
    requests, left_out = [], []
    for experiment in experiments:
        if reason := experiment.labs.get(lab):
            left_out.append(f"{experiment.name} does not run on the {LAB_TITLES[lab]}: {reason}")
            continue
        overrides = {key: value for key, value in asked.overrides.items() if key in experiment.Params.model_fields}
        requests.append(replace(asked, experiment=experiment.name, overrides=overrides))
    if not requests:
        raise NotPossible(f"no experiment has a meaning on the {lab} lab")
    chosen = possible(requests, environment)
    return Selection(chosen.requests, (*left_out, *chosen.left_out))


def possible(requests: Sequence[Request], environment: Environment) -> Selection:
    """Those of the requests that can run here. Errors as of :func:`select`."""
    accepted: list[Request] = []
    refused: list[tuple[str, NotPossible]] = []
    for request in requests:
        try:
            accepted.append(replace(request, lab=prepare(request, environment).lab))
        except NotPossible as error:
            if request.overrides and isinstance(error, NotEnoughMemory):
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
            with suppress(BadInput, StoreFailed):  # it ended in the same moment
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
                except PinScopeError as error:
                    step.problem = str(error)
                step.has_ended = True
