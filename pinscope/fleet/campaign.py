"""A campaign: the same runs on every GPU of every host; what came of each, and what is missing and why.

A run belongs to a campaign by its tag ``fleet=NAME``. Which run of it a run is say its host, GPU, experiment, lab, size
and the parameters that were set. A campaign of the same name measures only what is not there, and done, already.
"""

from __future__ import annotations

import io
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from distributed import Future

from pinscope.errors import InvalidParameter, NotPossible, PinScopeError, StoreFailed
from pinscope.experiments.registry import EXPERIMENTS, find
from pinscope.fleet.cluster import Cluster
from pinscope.fleet.host import LOOK_SECONDS, describe, end, measure
from pinscope.records.labels import TAG_CHARACTERS
from pinscope.records.run import LAB_TITLES, ExperimentRun, LabKind, Progress, Run
from pinscope.runner import jobs
from pinscope.store.bundle import BundleReader, this_version
from pinscope.store.documents import checked_labels
from pinscope.store.store import Store
from pinscope.text import error_line, quoted

TAG = "fleet="
"""Begins the tag by which a run belongs to a campaign."""
DESCRIBE_SECONDS = 60.0
"""How long a host may take to say who it is."""
THERE_SECONDS = 1.0
"""How soon a lost worker is noticed."""
END_SECONDS = 3.0
"""How long workers are waited for that are asked to end their runs."""
TRANSFER_SECONDS = 10.0
"""How much longer than its run a host is waited for, and how long its bundle may be on its way."""
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{TAG_CHARACTERS - len(TAG) - 1}}}")


@dataclass(frozen=True)
class Asked:
    """What a campaign asks of every GPU.

    Attributes:
        campaign: its name.
        requests: what to run, in this order.
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

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.campaign):
            raise InvalidParameter(
                f"{quoted(self.campaign)} cannot be a campaign's name: letters, digits, dot, hyphen and underscore, at "
                f"most {TAG_CHARACTERS - len(TAG)}"
            )
        for tags in ((), *self.host_tags.values()):
            checked_labels(tags=(*self.tags, *tags, self.tag))

    @property
    def tag(self) -> str:
        """The tag of all its runs."""
        return f"{TAG}{self.campaign}"

    @property
    def lab(self) -> LabKind:
        """The lab of its requests."""
        return self.requests[0].lab or "cuda"

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
    every = [entry.experiment for entry in EXPERIMENTS if entry.experiment.labs.get(lab) is None]
    chosen = every if jobs.ALL in names else [find(name).experiment for name in dict.fromkeys(names)]
    if unknown := set(settings).difference(*(experiment.Params.model_fields for experiment in chosen)):
        raise InvalidParameter(f"none of these experiments has a parameter {quoted(min(unknown))}")
    asked = []
    for experiment in chosen:
        if reason := experiment.labs.get(lab, "it was not written for it"):
            raise NotPossible(f"{experiment.title} does not run on the {LAB_TITLES[lab]}: {reason}")
        overrides = {key: value for key, value in settings.items() if key in experiment.Params.model_fields}
        experiment.Params.preset(lab, quick).with_overrides(overrides)
        asked.append(jobs.Request(experiment.name, lab, quick=quick, overrides=overrides))
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


@dataclass
class Result:
    """What came of a campaign: what is stored, what was there before, and what is missing."""

    stored: list[Run] = field(default_factory=list)
    already: list[Run] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)


@dataclass
class _Host:
    """A host that measures: its worker's address, what it and its machine are called, and its runs to come."""

    address: str
    name: str
    machine: str
    waiting: deque[tuple[jobs.Request, int]]


@dataclass(frozen=True)
class _Question:
    """What a host was asked, and how long it may take to answer."""

    address: str
    answer: Future[Any]
    seconds: float
    begun: float = field(default_factory=time.monotonic)


class Campaign:
    """Asks the hosts of a cluster, and keeps what they answer.

    Args:
        cluster: its hosts.
        store: where the runs are kept.
        asked: what to run.
        is_stopped: whether somebody wants it to end.
        show: takes how far it is.
    """

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        asked: Asked,
        is_stopped: Callable[[], bool],
        show: Callable[[Progress], None],
    ) -> None:
        self._cluster, self._store, self._asked = cluster, store, asked
        self._is_stopped, self._show = is_stopped, show
        self._there: Mapping[str, str] = {}
        self.result = Result()

    def carry_out(self) -> Result:
        """Ask every host, and wait for the answers; what is stored when somebody stops it stays.

        Raises:
            NotPossible: the scheduler is gone.
        """
        try:
            self._join()
            hosts = self._describe()
            self._measure(self._without_done(hosts))
        finally:
            if self._is_stopped() and not self._cluster.launches:
                self._end()
        return self.result

    def _rounds(self) -> Iterator[None]:
        """Look again and again, until somebody stops it; now and then also who is there."""
        looked = -THERE_SECONDS
        while not self._is_stopped():
            if time.monotonic() - looked > THERE_SECONDS:
                self._there, looked = self._cluster.workers(), time.monotonic()
            yield
            time.sleep(LOOK_SECONDS)

    def _join(self) -> None:
        """Wait for the workers; those that do not come are missing."""
        deadline = time.monotonic() + self._asked.join_seconds
        late = f"no worker came within {self._asked.join_seconds:.0f} s"
        lacking = list[tuple[str, bool, str | None]]()
        for _ in self._rounds():
            lacking = self._cluster.absent(self._there.values())
            self._show(Progress(message=f"hosts: {len(self._there)} there, {len(lacking)} waited for"))
            if all(is_over for _, is_over, _ in lacking) or time.monotonic() > deadline:
                break
        for name, is_over, words in lacking:
            reason = words if is_over and words else f"{late}: {words}" if words else late
            self.result.missing.append(Missing(name, reason))

    def _ask(self, address: str, seconds: float, function: Callable[..., Any], *arguments: Any) -> _Question:
        """Ask one worker, and no other whatever becomes of it."""
        only = {"workers": [address], "allow_other_workers": False}
        answer = self._cluster.client.submit(function, *arguments, pure=False, retries=0, **only)
        return _Question(address, answer, seconds)

    def _answer(self, question: _Question) -> Mapping[str, Any] | None:
        """What a host answered: ``refused`` says why it has not, ``gone`` that it will not answer anything else;
        ``None``: it has not yet."""
        answer = question.answer
        try:
            if answer.status == "finished":
                return dict(answer.result(timeout=TRANSFER_SECONDS))
            error = answer.exception(timeout=TRANSFER_SECONDS) if answer.status == "error" else None
        except TimeoutError:  # a scheduler that stands still for a while has it yet
            error = None
        except (Exception, CancelledError) as failure:  # noqa: BLE001 - whatever a foreign process sends
            error = failure
        if question.address not in self._there or answer.status in ("cancelled", "lost"):
            return {"refused": "its worker was lost", "gone": True}
        if error is not None:
            lacks = isinstance(error, ModuleNotFoundError)
            return {"refused": f"its Python has no {error.name}" if lacks else f"unexpected {_line(error)}"}
        late = {"refused": f"it did not answer within {question.seconds:.0f} s", "gone": True}
        return late if time.monotonic() > question.begun + question.seconds else None

    def _describe(self) -> list[_Host]:
        """The hosts that are of this version, one worker each, with all that they are to run."""
        questions = {
            address: (name, self._ask(address, DESCRIBE_SECONDS, describe, self._asked.lab))
            for address, name in self._there.items()
        }
        own, hosts = this_version(), dict[str, _Host]()
        for _ in self._rounds():
            for address, (name, question) in list(questions.items()):
                if (answer := self._answer(question)) is None:
                    continue
                del questions[address]
                if reason := answer.get("refused") or _differing(answer, own.version, own.commit):
                    self.result.missing.append(Missing(answer.get("host", name), reason))
                elif other := hosts.get(answer["host"]):
                    if other.machine != answer["machine"]:
                        self.result.missing.append(Missing(other.name, "another machine is called so too"))
                else:
                    orders = [(request, gpu) for request in self._asked.requests for gpu in answer["gpus"]]
                    hosts[answer["host"]] = _Host(address, answer["host"], answer["machine"], deque(orders))
            if not questions:
                break
        return list(hosts.values())

    def _without_done(self, hosts: Sequence[_Host]) -> list[_Host]:
        """The hosts that have something to run that is not stored and done."""
        done = done_already(self._store, self._asked)
        for host in hosts:
            keys = {(host.name, request.experiment, gpu): (request, gpu) for request, gpu in host.waiting}
            self.result.already += [done[key] for key in keys if key in done]
            host.waiting = deque(order for key, order in keys.items() if key not in done)
        return [host for host in hosts if host.waiting]

    def _measure(self, hosts: Iterable[_Host]) -> None:
        """Have every host carry out its runs, one after the other, so many hosts at once."""
        limit = self._asked.limit_seconds
        queue, busy = deque(hosts), list[tuple[_Host, _Question]]()
        total = sum(len(host.waiting) for host in queue)
        for _ in self._rounds():
            while queue and len(busy) < (self._asked.at_once or len(busy) + 1):
                host = queue.popleft()
                what = measure, self._asked.campaign, self._asked.on(*host.waiting[0], host.name), limit
                busy.append((host, self._ask(host.address, limit + TRANSFER_SECONDS, *what)))
            for host, question in list(busy):
                if (answer := self._answer(question)) is not None:
                    busy.remove((host, question))
                    self._take(host, answer)
                    if host.waiting:
                        queue.appendleft(host)
            left = sum(len(host.waiting) for host in (*queue, *(host for host, _ in busy)))
            self._show(self._progress(total - left, total, [host.name for host, _ in busy]))
            if not busy and not queue:
                break

    def _take(self, host: _Host, answer: Mapping[str, Any]) -> None:
        """Keep what a host answered to its next request, or say why there is nothing."""
        request, gpu = host.waiting.popleft()
        missing = Missing(host.name, str(answer.get("refused")), request.experiment, gpu)
        if answer.get("gone"):
            host.waiting.clear()
            missing = replace(missing, experiment=None, device=None)
        elif "bundle" in answer:
            try:
                run = self._keep(answer["bundle"])
            except PinScopeError as error:
                missing = replace(missing, reason=str(error))
            else:
                self.result.stored.append(run)
                if run.status == "done":
                    return
                late = f"it did not end within {self._asked.limit_seconds:.0f} s"
                missing = replace(missing, reason=late if answer["late"] else run.error or run.status)
        self.result.missing.append(missing)

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

    def _progress(self, done: int, total: int, busy: Sequence[str]) -> Progress:
        some = ", ".join(busy[:3]) + (" …" if len(busy) > 3 else "")
        missing = f", {len(self.result.missing)} missing" if self.result.missing else ""
        return Progress(
            fraction=done / total if total else 1.0,
            message=f"{done} of {total} runs{missing}; measuring on {some or 'no host'}",
        )

    def _end(self) -> None:
        """Have every worker end its run, also those that Dask does not ask: the run is no task of Dask's."""
        client = self._cluster.client
        with suppress(Exception):  # a worker that hangs ends nothing
            client.sync(
                client._run, end, self._asked.campaign, wait=False, on_error="ignore", callback_timeout=END_SECONDS
            )


def _differing(answer: Mapping[str, Any], version: str, commit: str | None) -> str | None:
    """Why a host of that version does not take part; ``None``: it does."""
    if answer["version"] != version:
        return f"it has PinScope {answer['version']}; here is {version}"
    if commit and answer["commit"] and answer["commit"] != commit:
        return f"it has PinScope's commit {answer['commit'][:12]}; here is {commit[:12]}"
    return None


def _line(error: BaseException) -> str:
    return error_line(f"{type(error).__name__}: {error}")
