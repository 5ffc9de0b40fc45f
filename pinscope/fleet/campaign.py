"""A campaign: the same runs on every GPU of every host; what came of each, and what is missing and why.

A run belongs to a campaign by its tag ``fleet=NAME``. Which run of it a run is say its host, GPU, experiment, lab, size
and the parameters that were set. A campaign of the same name measures only what is not there, and done, already.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from distributed import Future

from pinscope.errors import NotPossible, PinScopeError, StoreFailed
from pinscope.experiments.registry import EXPERIMENTS, find
from pinscope.fleet.cluster import Cluster
from pinscope.fleet.host import LOOK_SECONDS, describe, end, measure
from pinscope.records.run import ExperimentRun, LabKind, Progress, Run
from pinscope.runner import jobs
from pinscope.store.bundle import BundleReader, this_version
from pinscope.store.documents import checked_labels
from pinscope.store.store import Store
from pinscope.text import error_line

DESCRIBE_SECONDS = 60.0
"""How long a host may take to say who it is."""
THERE_SECONDS = 1.0
"""How soon a lost worker is noticed."""
END_SECONDS = 3.0
"""How long workers are waited for that are asked to end their runs."""
TRANSFER_SECONDS = 10.0
"""How much longer than its run a host is waited for, and how long its bundle may be on its way."""


@dataclass(frozen=True)
class Asked:
    """What a campaign asks of every GPU.

    Attributes:
        campaign: its name.
        requests: what to run, in this order; ``lab``: theirs.
        tags: of all its runs.
        host_tags: host → tags of its runs.
        limit_seconds: how long a run may take.
        join_seconds: how long hosts are waited for.
        at_once: how many hosts measure at the same time; ``None``: all.
    """

    campaign: str
    requests: tuple[jobs.Request, ...]
    tags: tuple[str, ...] = ()
    host_tags: Mapping[str, Sequence[str]] = field(default_factory=dict)
    limit_seconds: float = 1800.0
    join_seconds: float = 120.0
    at_once: int | None = None
    lab: LabKind = "cuda"

    def __post_init__(self) -> None:
        for tags in ((), *self.host_tags.values()):
            checked_labels(tags=(*self.tags, *tags, self.tag))

    @property
    def tag(self) -> str:
        """The tag of all its runs."""
        return f"fleet={self.campaign}"

    def on(self, request: jobs.Request, device: int, name: str) -> dict[str, Any]:
        """A request for one GPU of a host, as it is sent there."""
        tags = dict.fromkeys((*self.tags, *self.host_tags.get(name, ()), self.tag))
        return asdict(replace(request, device=device, labels={"tags": list(tags)}))


def requests(names: Sequence[str], lab: LabKind, quick: bool, settings: Mapping[str, str]) -> tuple[jobs.Request, ...]:
    """What is asked of each GPU, checked as far as that can be done without it.

    Raises:
        BadInput: no such experiment or parameter, or a value out of range.
        NotPossible: an experiment does not run on that lab.
    """
    every = [entry.experiment for entry in EXPERIMENTS]
    chosen = every if jobs.ALL in names else [find(name).experiment for name in dict.fromkeys(names)]
    asked, left_out = jobs.requests_of(jobs.Request(jobs.ALL, lab, quick=quick, overrides=settings), lab, chosen)
    if left_out and chosen is not every:
        raise NotPossible(left_out[0])
    for request in asked:
        find(request.experiment).experiment.Params.preset(lab, quick).with_overrides(request.overrides)
    return tuple(asked)


def done_already(store: Store, asked: Asked) -> Mapping[tuple[str, str, int], Run]:
    """Host, experiment and GPU → the run of this campaign that is stored and done, with the parameters that are set."""
    done = {}
    for request in asked.requests:
        preset = find(request.experiment).experiment.Params.preset(asked.lab, request.quick)
        wanted = preset.with_overrides(request.overrides).model_dump(mode="json")
        stored = store.each_run(
            experiment=request.experiment, lab=asked.lab, status="done", tags=[asked.tag], recordings=False
        )
        for run in stored:
            same = all(run.params.get(name) == wanted[name] for name in request.overrides)
            if same and isinstance(run, ExperimentRun) and run.quick == request.quick:
                done[run.environment.host, run.experiment, run.device] = run
    return done


@dataclass(frozen=True)
class Missing:
    """What was asked for and is not there."""

    host: str
    reason: str
    experiment: str | None = None
    """``None``: everything on that host."""
    device: int | None = None


class Campaign:
    """Asks the hosts of a cluster, each as soon as it is there, and keeps what they answer.

    Args:
        cluster: its hosts.
        store: where the runs are kept.
        asked: what to run.

    Attributes:
        stored: runs that came.
        already: those that were there before.
        missing: what is not there, and why.
    """

    def __init__(self, cluster: Cluster, store: Store, asked: Asked) -> None:
        self._cluster, self._store, self._asked = cluster, store, asked
        self._done = done_already(store, asked)
        self._there: Mapping[str, str] = {}
        self._machines = dict[str, str]()
        self._to_come, self._measuring = list[list[tuple[jobs.Request, int]]](), 0
        self.stored, self.already, self.missing = list[Run](), list[Run](), list[Missing]()

    def carry_out(self, is_stopped: Callable[[], bool], show: Callable[[Progress], None]) -> None:
        """Ask every host, and wait for the answers; what is stored when somebody stops it stays.

        Args:
            is_stopped: whether somebody wants it to end.
            show: takes how far it is.

        Raises:
            NotPossible: the scheduler is gone.
        """
        met, talks = dict[str, str](), list[Iterator[None]]()
        lacking = list[tuple[str, bool, str | None]]()
        deadline, looked = time.monotonic() + self._asked.join_seconds, -math.inf
        try:
            while not is_stopped():
                if time.monotonic() - looked > THERE_SECONDS:
                    self._there, looked = self._cluster.workers(), time.monotonic()
                    talks += [self._talk(*new) for new in self._there.items() if new[0] not in met]
                    met |= self._there
                go_on = [next(talk, "over") is None for talk in talks]
                lacking = self._cluster.absent(met.values())
                show(self._progress(len(lacking)))
                is_joined = all(is_over for _, is_over, _ in lacking) or time.monotonic() > deadline
                if is_joined and not any(go_on):
                    break
                time.sleep(LOOK_SECONDS)
        finally:
            if is_stopped() and not self._cluster.launches:
                self._end()
        late = f"no worker came within {self._asked.join_seconds:.0f} s"
        for name, is_over, words in lacking:
            reason = words if is_over and words else f"{late}: {words}" if words else late
            self.missing.append(Missing(name, reason))

    def _talk(self, address: str, worker: str) -> Iterator[None]:
        """Ask one host who it is, then for its runs, one after the other; yields while it waits."""
        answer = yield from self._ask(address, DESCRIBE_SECONDS, describe, self._asked.lab)
        name, limit = answer.get("host", worker), self._asked.limit_seconds
        runs = self._to_run(name, answer)
        self._to_come.append(runs)
        while runs:
            while self._asked.at_once and self._measuring >= self._asked.at_once:
                yield
            self._measuring += 1
            request, gpu = runs.pop(0)
            run = self._asked.on(request, gpu, name)
            answer = yield from self._ask(address, limit + TRANSFER_SECONDS, measure, self._asked.campaign, run, limit)
            self._measuring -= 1
            if answer.get("gone"):
                runs.clear()
                self.missing.append(Missing(name, answer["refused"]))
            elif reason := self._take(answer):
                self.missing.append(Missing(name, reason, request.experiment, gpu))

    def _ask(self, address: str, seconds: float, *what: Any) -> Generator[None, None, Mapping[str, Any]]:
        """Ask one worker, and no other whatever becomes of it; yields until it has answered.

        Returns:
            Its answer: ``refused`` says why there is none, ``gone`` that it will not answer anything else.
        """
        submit, deadline = self._cluster.client.submit, time.monotonic() + seconds
        question: Future[Any] = submit(*what, workers=[address], allow_other_workers=False, pure=False, retries=0)
        while time.monotonic() < deadline:
            yield
            try:
                if question.status == "finished":
                    return dict(question.result(timeout=TRANSFER_SECONDS))
                error = question.exception(timeout=TRANSFER_SECONDS) if question.status == "error" else None
            except TimeoutError:  # a scheduler that stands still for a while has it yet
                error = None
            except (Exception, CancelledError) as failure:  # noqa: BLE001 - whatever a foreign process sends
                error = failure
            if address not in self._there or question.status in ("cancelled", "lost"):
                return {"refused": "its worker was lost", "gone": True}
            if error is not None:
                return {"refused": error_line(f"unexpected {type(error).__name__}: {error}")}
        return {"refused": f"it did not answer within {seconds:.0f} s", "gone": True}

    def _to_run(self, name: str, answer: Mapping[str, Any]) -> list[tuple[jobs.Request, int]]:
        """What is not stored and done of a host of this version, which takes part by one worker."""
        runs = list[tuple[jobs.Request, int]]()
        if reason := answer.get("refused") or _differing(answer):
            self.missing.append(Missing(name, reason))
        elif name in self._machines:
            if self._machines[name] != answer["machine"]:
                self.missing.append(Missing(name, "another machine is called so too"))
        else:
            self._machines[name] = answer["machine"]
            for request in self._asked.requests:
                for gpu in answer["gpus"]:
                    if run := self._done.get((name, request.experiment, gpu)):
                        self.already.append(run)
                    else:
                        runs.append((request, gpu))
        return runs

    def _take(self, answer: Mapping[str, Any]) -> str | None:
        """Keep the run that a host answered; why there is none, or none that is done."""
        if "bundle" not in answer:
            return str(answer.get("refused"))
        try:
            run = self._keep(answer["bundle"])
        except PinScopeError as error:
            return str(error)
        self.stored.append(run)
        late = f"it did not end within {self._asked.limit_seconds:.0f} s"
        return {"done": None, "cancelled": late}.get(run.status, run.error or run.status)

    def _keep(self, bundle: bytes) -> Run:
        """Store a run; a database that is away is waited for.

        Raises:
            PinScopeError: it is no bundle, or the database did not come back.
        """
        deadline = time.monotonic() + jobs.PATIENCE_SECONDS
        with BundleReader(io.BytesIO(bundle), "what it sent") as opened:
            while True:
                try:
                    self._store.import_runs(opened.items(), opened.parts)
                except StoreFailed:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(LOOK_SECONDS)
                else:
                    return next(opened.runs())

    def _progress(self, lacking: int) -> Progress:
        stored, left = len(self.stored), self._measuring + sum(map(len, self._to_come))
        counts = {"to come": left, "missing": len(self.missing), "hosts waited for": lacking}
        said = "".join(f", {count} {what}" for what, count in counts.items() if count)
        return Progress(fraction=stored / (stored + left) if stored else 0.0, message=f"{stored} runs{said}")

    def _end(self) -> None:
        """Have every worker end its run, also those that Dask does not ask: the run is no task of Dask's."""
        client = self._cluster.client
        with suppress(Exception):  # a worker that hangs ends nothing
            client.sync(
                client._run, end, self._asked.campaign, wait=False, on_error="ignore", callback_timeout=END_SECONDS
            )


def _differing(answer: Mapping[str, Any]) -> str | None:
    """Why a host of that version does not take part; ``None``: it does."""
    own = this_version()
    if answer["version"] != own.version:
        return f"it has PinScope {answer['version']}; here is {own.version}"
    if own.commit and answer["commit"] and answer["commit"] != own.commit:
        return f"it has PinScope's commit {answer['commit'][:12]}; here is {own.commit[:12]}"
    return None
