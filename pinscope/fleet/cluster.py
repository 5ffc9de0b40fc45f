"""Ways to the hosts: a Dask cluster that stands already, or one for the campaign alone, whose workers start on this
machine, by ssh, by Slurm or in Kubernetes.

A campaign's own scheduler has a certificate of its own, made for it and kept in memory, which workers get through their
input: who does not hold it can neither ask nor answer. Nothing listens but the scheduler and one port of each worker.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import dask
from distributed import Client, Scheduler, Security, SpecCluster

from pinscope.errors import BadInput, NotPossible
from pinscope.fleet.worker import QUIET
from pinscope.probes.process import ending_with_this
from pinscope.text import error_line

CONNECT_SECONDS = 10.0
"""How long an existing scheduler may take to answer."""
END_SECONDS = 10.0
"""How long a worker may take to end its run and itself, until it is killed."""
_OWN: Mapping[str, Any] = {
    **QUIET,
    "distributed.scheduler.allowed-failures": 0,  # what a lost host was asked is asked nobody else
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.preload": [],
}


class QuietScheduler(Scheduler):
    """A scheduler without the page about itself that Dask would serve to anybody."""

    def start_http_server(self, *_arguments: Any, **_options: Any) -> None:
        """Serve nothing."""


@dataclass
class Launch:
    """A command that starts workers, and hands on to them what it is given.

    Attributes:
        name: of its only worker; else of the launcher.
        command: the program and its arguments.
        order: what a worker reads from its input.
        hosts: how many workers it starts, on hosts that it chooses; ``None``: the one of that name.
    """

    name: str
    command: Sequence[str]
    order: Mapping[str, Any]
    hosts: int | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _errors: Path = field(default=Path(os.devnull), init=False)

    def start(self, errors: Path) -> None:
        """Begin. ``errors``: file that takes what the program complains of."""
        self._errors = errors
        try:
            with errors.open("wb") as file:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,  # Ctrl-C reaches the command line only, which ends all in order
                    preexec_fn=ending_with_this(),  # noqa: PLW1509 - it only makes calls of the system
                )
        except OSError as error:
            errors.write_text(f"{self.command[0]}: {error.strerror}")
        if self._input:
            with suppress(BrokenPipeError):  # it has ended already, and says why
                self._input.write(json.dumps(self.order).encode() + b"\n")
                self._input.flush()

    @property
    def _input(self) -> IO[bytes] | None:
        return self._process.stdin if self._process else None

    @property
    def is_over(self) -> bool:
        """Whether no worker will come any more."""
        return self._process is None or self._process.poll() is not None

    @property
    def last_words(self) -> str | None:
        """What its program complained of last, or how it ended."""
        if said := self._errors.read_text("utf-8", "replace").strip().splitlines():
            return error_line(said[-1].removeprefix("pinscope: "))
        return (
            f"its program ended with exit code {self._process.returncode}" if self._process and self.is_over else None
        )

    def ask_to_end(self) -> None:
        """Close its input."""
        if self._input:
            with suppress(BrokenPipeError):
                self._input.close()

    def end(self, deadline: float) -> None:
        """Wait for its end until then, and make it end: a launcher that has started nothing yet takes it back."""
        if self._process is not None:
            for signal_ in (self._process.terminate, self._process.kill):
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(max(deadline - time.monotonic(), 0.2))
                signal_()
            self._process.wait()


@dataclass(frozen=True)
class Cluster:
    """A scheduler, and the launches of its workers; none where it stood already."""

    client: Client
    launches: Sequence[Launch] = ()

    def workers(self) -> dict[str, str]:
        """The workers that are there: address → name.

        Raises:
            NotPossible: the scheduler is gone.
        """
        try:
            known = self.client.scheduler_info(n_workers=-1)["workers"]
        except OSError as error:
            raise NotPossible(f"the scheduler no longer answers: {error}") from None
        return {address: str(worker["name"]) for address, worker in known.items()}

    def absent(self, names: Collection[str]) -> list[tuple[str, bool, str | None]]:
        """What was asked for and is not there: its name, whether it will not come any more, and what is known of it."""
        if not self.launches:
            return [] if names else [("the cluster", False, None)]
        lacking = []
        for launch in self.launches:
            name = launch.name if launch.name not in names else None
            if launch.hosts is not None:
                few = launch.hosts - len(names)
                name = f"{few} of {launch.hosts} hosts of {launch.name}" if few > 0 else None
            if name:
                lacking.append((name, launch.is_over, launch.last_words))
        return lacking


@contextmanager
def existing(address: str) -> Iterator[Cluster]:
    """A cluster of the user's own, with the certificates that Dask's configuration names.

    Raises:
        BadInput: it would take orders from anybody.
        NotPossible: it does not answer, or does not let this user in.
    """
    if not address.startswith("tls://"):
        raise BadInput(
            f"{address} takes orders from anybody who reaches it; --scheduler takes a cluster with TLS, as tls://HOST:PORT"
        )
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(address, security=Security(), timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise NotPossible(f"the scheduler {address} does not let us in: {error_line(str(error))}") from None
    with client:
        yield Cluster(client)


Plan = Callable[[Mapping[str, Any], Path], Sequence[Launch]]
"""What to launch, given what each worker must know and a folder that is private and removed at the end."""


@contextmanager
def own(campaign: str, plan: Plan, listen: str | None = None) -> Iterator[Cluster]:
    """A scheduler in this process, and the workers of a plan; at the end nothing of them is left.

    Args:
        campaign: its name.
        plan: what to launch, of :mod:`pinscope.fleet.launch`.
        listen: address of this machine at which workers reach the scheduler; by default that of its outward route.

    Raises:
        NotPossible: the scheduler cannot listen there.
    """
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # three or four a host, and often 1,024 are allowed
    security = Security.temporary()
    fields = ("tls_ca_file", "tls_worker_cert", "tls_worker_key")
    with dask.config.set(_OWN), tempfile.TemporaryDirectory(prefix="pinscope-fleet-") as folder:
        options = {"protocol": "tls://", "host": listen, "port": 0, "security": security, "local_directory": folder}
        try:
            cluster = SpecCluster({}, {"cls": QuietScheduler, "options": options}, security=security)
        except (OSError, RuntimeError, ValueError) as error:
            raise NotPossible(f"the scheduler cannot listen at {listen}: {error_line(str(error))}") from None
        with cluster, Client(cluster, set_as_default=False) as client:
            known = {field: getattr(security, field) for field in fields}
            order = {"campaign": campaign, "scheduler": cluster.scheduler_address, "security": known}
            launches = plan(order, Path(folder))
            try:
                for number, launch in enumerate(launches):
                    launch.start(Path(folder, f"{number}.err"))
                yield Cluster(client, launches)
            finally:
                for launch in launches:
                    launch.ask_to_end()
                deadline = time.monotonic() + END_SECONDS
                for launch in launches:
                    launch.end(deadline)
