"""Ways to the hosts: a Dask cluster that stands already, or one for the campaign alone, whose workers start on this
machine, by ssh, by Slurm or in Kubernetes.

A campaign's own scheduler has a certificate of its own, made for it and kept in memory, which workers get through their
input: it lies in no shared folder and stands on no command line, and who does not hold it can neither ask nor answer.
Nothing listens but the scheduler and one port of each worker. A worker ends with its input, so none outlives its
campaign.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shlex
import socket
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import dask
from distributed import Client, Scheduler, Security, SpecCluster

from pinscope import isolation
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
    """A command that starts workers, and hands its input on to them.

    Attributes:
        name: of its only worker; else of the launcher.
        command: the program and its arguments.
        hosts: how many workers it starts, on hosts that it chooses; ``None``: the one of that name.
        share: place of its worker among those of this machine, and how many they are; ``None``: it is elsewhere.
    """

    name: str
    command: Sequence[str]
    hosts: int | None = None
    share: tuple[int, int] | None = None
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _errors: Path = field(default=Path(os.devnull), init=False)

    def start(self, order: Mapping[str, Any], errors: Path) -> None:
        """Begin.

        Args:
            order: what each worker must know.
            errors: file that takes what the program complains of.

        Raises:
            NotPossible: there is no such program here, or no room for it.
        """
        own: dict[str, Any] = {"name": self.name} if self.hosts is None else {}
        if self.share:
            own |= {"share": self.share, "pretends": self.share[1] > 1, "folder": str(errors.parent)}
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
            raise NotPossible(f"{self.command[0]}: {error.strerror}") from None
        with suppress(BrokenPipeError):  # it has ended already, and says why
            input_ = cast("IO[bytes]", self._process.stdin)
            input_.write(json.dumps({**order, **own}).encode() + b"\n")
            input_.flush()

    @property
    def is_over(self) -> bool:
        """Whether no worker will come any more."""
        return self._process is None or self._process.poll() is not None

    @property
    def last_words(self) -> str | None:
        """What its program complained of last, or how it ended."""
        if said := self._errors.read_text("utf-8", "replace").strip().splitlines():
            return error_line(said[-1].removeprefix("pinscope: "))
        return f"it ended with exit code {self._process.returncode}" if self._process and self.is_over else None

    def ask_to_end(self) -> None:
        """Close its input."""
        if self._process and self._process.stdin:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

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
            few = launch.hosts - len(names) if launch.hosts else launch.name not in names
            if few > 0:
                name = f"{few} of {launch.hosts} hosts of {launch.name}" if launch.hosts else launch.name
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
        raise BadInput(f"{address} takes orders from anybody; --scheduler takes a cluster with TLS, as tls://HOST:PORT")
    try:
        client = Client(address, security=Security(), timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise NotPossible(f"the scheduler {address} does not let us in: {error_line(str(error))}") from None
    with client:
        yield Cluster(client)


@contextmanager
def own(campaign: str, launches: Sequence[Launch], listen: str | None = None) -> Iterator[Cluster]:
    """A scheduler in this process, and workers; at the end nothing of them is left.

    Args:
        campaign: its name.
        launches: what starts the workers.
        listen: address of this machine at which workers reach the scheduler; by default that of its outward route.

    Raises:
        NotPossible: the scheduler cannot listen there, or a launch not start.
    """
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
            try:
                for number, launch in enumerate(launches):
                    launch.start(order, Path(folder, f"{number}.err"))
                yield Cluster(client, launches)
            finally:
                for launch in launches:
                    launch.ask_to_end()
                deadline = time.monotonic() + END_SECONDS
                for launch in launches:
                    launch.end(deadline)


# What starts the workers


_MODULE = "pinscope.fleet.worker"


def local(count: int) -> list[Launch]:
    """Workers on this machine; several pretend to be a host each, and share the GPUs between them."""
    name, command = f"{socket.gethostname()}-local", isolation.command(_MODULE)
    return [Launch(f"{name}-{place + 1}", command, share=(place, count)) for place in range(count)]


def ssh(hosts: Sequence[str], options: Sequence[str] = (), python: str | None = None) -> list[Launch]:
    """A worker on each host that ``ssh`` reaches without asking anything.

    Args:
        hosts: as ssh takes them.
        options: further options of ssh.
        python: the interpreter there, by default as here.
    """
    command, remote = ["ssh", "-T", "-o", "BatchMode=yes", *options, "--"], shlex.join(_started_by(python))
    return [Launch(host, [*command, host, remote]) for host in hosts]


def slurm(nodes: int, options: Sequence[str] = (), python: str | None = None) -> list[Launch]:
    """A worker on each of so many nodes, in one allocation of ``srun``.

    Args:
        nodes: how many.
        options: further options of srun.
        python: the interpreter there, by default as here.
    """
    size = [f"--nodes={nodes}", "--ntasks-per-node=1", "--job-name=pinscope"]
    keep_others = ["--kill-on-bad-exit=0", "--no-kill", "--wait=0"]
    return [Launch("slurm", ["srun", *size, *keep_others, *options, *_started_by(python)], nodes)]


def kubernetes(
    nodes: int, image: str | None, gpus: int, options: Sequence[str] = (), python: str | None = None
) -> list[Launch]:
    """A pod on each of so many nodes, by ``kubectl run``, which removes it at the end.

    Args:
        nodes: how many.
        image: the image of its container, which has PinScope.
        gpus: how many of a node's GPUs a pod gets.
        options: further options of kubectl.
        python: the interpreter there, by default ``python3``.

    Raises:
        BadInput: no image.
    """
    if not image:
        raise BadInput("--kubernetes takes --image: an image that has PinScope")
    campaign, launches = secrets.token_hex(4), []
    for name in (f"pinscope-{campaign}-{place}" for place in range(nodes)):
        manifest = json.dumps(pod(name, campaign, image, gpus, python or "python3"))
        how = ["--restart=Never", "--rm", "--quiet", "--stdin", f"--image={image}", f"--overrides={manifest}", *options]
        launches.append(Launch(name, ["kubectl", "run", name, *how]))
    return launches


def pod(name: str, campaign: str, image: str, gpus: int, python: str) -> dict[str, Any]:
    """The pod of one node as its manifest says it: no two of a campaign on a node, and called as the node is."""
    ours = {"pinscope-campaign": campaign}
    apart = {"labelSelector": {"matchLabels": ours}, "topologyKey": "kubernetes.io/hostname"}
    container = {
        "name": "worker",
        "image": image,
        "command": [*_started_by(python), "$(NODE)"],
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
        "stdin": True,
        "stdinOnce": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": ours},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "containers": [container],
        },
    }


def _started_by(python: str | None) -> list[str]:
    return [python or isolation.command(_MODULE)[0], "-P", "-m", _MODULE]
