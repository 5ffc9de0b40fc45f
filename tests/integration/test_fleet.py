"""Campaigns on hosts that are processes of this machine: some are killed, hang, are of another version, or refuse."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

import pinscope
from pinscope import isolation
from pinscope.store.store import Store
from tests.data.waiting import until
from tests.integration.processes import in_the_background, variables

Security = pytest.importorskip("distributed").Security

ONE_CELL = ("--set", "sizes=64KiB", "--set", "memory=pinned", "--set", "directions=h2d")
RUN = ("fleet", "run", "bandwidth", "--lab", "host", "--quick", "--json", *ONE_CELL)
LONG = ("--set", "repeats=10000", "--set", "precision=1e-9", "--set")
SHORT, ENDLESS = (*LONG, "time_limit=0.3"), (*LONG, "time_limit=60")
OTHER_VERSION = """
import sys, pinscope
pinscope.__version__ = "0.0.9"
from pinscope.fleet.worker import main
sys.exit(main(sys.argv[1:]))
"""
SCHEDULER = """
import asyncio, sys
from pathlib import Path
from distributed import Scheduler, Security
folder, security = Path(sys.argv[1]), Security.temporary()
for name in ("ca_file", "worker_cert", "worker_key"):
    (folder / name).write_text(getattr(security, f"tls_{name}"))
def write(name, text):
    (folder / "new").write_text(text)
    (folder / "new").rename(folder / name)
async def serve():
    where = {"host": "127.0.0.1", "port": 0, "dashboard_address": "127.0.0.1:0", "local_directory": str(folder)}
    async with Scheduler(protocol="tls://", security=security, **where) as scheduler:
        write("address", scheduler.address)
        while True:
            write("workers", " ".join(worker.name for worker in scheduler.workers.values()))
            await asyncio.sleep(0.05)
asyncio.run(serve())
"""
"""The scheduler of a Dask cluster of a user's own. Its folder has its address, certificates and workers' names."""


def parent_among(processes: list[psutil.Process]) -> psutil.Process | None:
    """The first that has children; short commands end while they are looked at."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.children():
                return process
    return None


def connections(process: psutil.Process) -> list[Any]:
    """Its sockets; none once it has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.net_connections()
    return []


@dataclass(frozen=True)
class Cluster:
    """A Dask cluster of a user's own, and what its workers and their hosts are called."""

    folder: Path
    """Has its address and certificates, and what its workers keep."""
    workers: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """Of its scheduler."""
        return (self.folder / "address").read_text()

    def start(self, *names: str, other_version: str = "") -> None:
        """Have workers stand for these hosts, and wait until they are there."""
        security = {f"tls_{name}": f"{self.folder}/{name}" for name in ("ca_file", "worker_cert", "worker_key")}
        for name in names:
            folder = self.folder / name
            order = {"campaign": "", "scheduler": self.address, "security": security, "name": name, "pretends": True}
            own = isolation.command("pinscope.fleet.worker")
            command = [sys.executable, "-c", OTHER_VERSION] if name == other_version else own
            variables_here = variables(PINSCOPE_QUEUE=str(self.folder / f"queue-{name}"))
            worker = subprocess.Popen(command, env=variables_here, stdin=subprocess.PIPE, text=True)
            self.workers[name] = worker
            assert worker.stdin is not None
            worker.stdin.write(f"{json.dumps({**order, 'folder': str(folder)})}\n")
            worker.stdin.flush()
        until(lambda: set(names) <= set((self.folder / "workers").read_text().split()))

    def end(self, *names: str) -> None:
        """End these workers in order, if they still are."""
        for name in names:
            self.workers[name].send_signal(signal.SIGCONT)
            self.workers[name].terminate()
        for name in names:
            with self.workers[name] as worker:  # which closes its input
                worker.wait(60)

    def campaign(self, *more: str, kill: Sequence[str] = (), stop: Sequence[str] = ()) -> tuple[int, Any]:
        """Carry one out; hosts are killed or stopped while they measure. Its exit code and JSON."""
        tls = "DASK_DISTRIBUTED__COMM__TLS__"
        files = {"CA_FILE": "ca_file", "CLIENT__CERT": "worker_cert", "CLIENT__KEY": "worker_key"}
        known = {f"{tls}{name}": f"{self.folder}/{file}" for name, file in files.items()}
        arguments = [*RUN, *SHORT, "--scheduler", self.address, "--campaign", "c1", *more]
        with in_the_background(*arguments, **known) as process:
            workers = {name: psutil.Process(self.workers[name].pid) for name in (*kill, *stop)}
            while workers:  # in any order: a host begins as soon as it is there
                name = until(lambda: next((name for name in workers if workers[name].children()), None))
                workers.pop(name).send_signal(signal.SIGSTOP if name in stop else signal.SIGKILL)
            for name in kill:
                with self.workers[name] as killed:
                    killed.wait()
            said, complaints = process.communicate(timeout=240)
        assert "Traceback" not in complaints, complaints
        return process.returncode, json.loads(said)

    def left_of_runs(self) -> list[Path]:
        """Folders of runs that nobody measures any more. Those of a killed worker go with the start of the next one."""
        return list(self.folder.rglob("run-*"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Without workers as yet."""
    with subprocess.Popen([sys.executable, "-c", SCHEDULER, str(tmp_path)], env=variables()) as scheduler:
        cluster = Cluster(tmp_path)
        try:
            until((tmp_path / "workers").exists)
            yield cluster
        finally:
            cluster.end(*cluster.workers)
            scheduler.terminate()


def is_heard(port: int, stranger: ssl.SSLContext | None) -> bool:
    """Whether a listener of Dask answers, in the clear or to this certificate, with its own greeting."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as plain:
        try:
            if stranger is None:
                plain.sendall(bytes(64))
                return plain.recv(1) != b""
            stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
            with stranger.wrap_socket(plain) as wrapped:
                return wrapped.recv(1) != b""
        except (ssl.SSLError, ConnectionError):
            return False


def hosts_of(runs: Any) -> list[str]:
    """Their names."""
    return sorted(run["host"] for run in runs)


def reasons(result: Any) -> dict[str, str]:
    """Host → why something of it is missing."""
    return {line["host"]: line["reason"] for line in result["missing"]}


OTHER = f"it has PinScope 0.0.9; here is {pinscope.__version__}"


def test_a_lost_host_and_one_of_another_version_are_named_and_the_rest_is_kept(cluster: Cluster) -> None:
    cluster.start("a", "b", "c", other_version="c")
    code, result = cluster.campaign("--label", "rack=r1", kill=["b"])
    assert (code, hosts_of(result["stored"])) == (1, ["a"]), result
    assert reasons(result) == {"b": "its worker was lost", "c": OTHER}
    with Store() as store:
        (run,) = store.runs(recordings=False)
    assert (run.environment.host, run.status, run.tags) == ("a", "done", ("rack=r1", "fleet=c1"))
    assert [path.relative_to(cluster.folder).parts[0] for path in cluster.left_of_runs()] == ["b"]
    known = ssl.create_default_context()
    known.load_cert_chain(cluster.folder / "worker_cert", cluster.folder / "worker_key")
    assert is_heard(int(cluster.address.rpartition(":")[2]), known)


def test_of_eight_hosts_two_are_killed_one_hangs_and_one_is_of_another_version(cluster: Cluster) -> None:
    names = [f"host{number}" for number in range(8)]
    cluster.start(*names, other_version="host6")
    code, result = cluster.campaign("--limit", "60s", kill=["host1", "host3"], stop=["host5"])
    assert (code, hosts_of(result["stored"])) == (1, ["host0", "host2", "host4", "host7"]), result
    assert reasons(result) == {
        "host1": "its worker was lost",
        "host3": "its worker was lost",
        "host5": "it did not answer within 70 s",
        "host6": OTHER,
    }
    cluster.end("host5", "host6")
    cluster.start("host1", "host3", "host5", "host6")
    code, again = cluster.campaign()
    assert (code, again["missing"]) == (0, [])
    assert hosts_of(again["stored"]) == ["host1", "host3", "host5", "host6"]
    assert hosts_of(again["already"]) == hosts_of(result["stored"])
    assert cluster.left_of_runs() == []


def test_hosts_that_one_machine_pretends_to_be_measure_in_turn() -> None:
    """They share its processors and links."""
    with in_the_background(*RUN, *LONG, "time_limit=1", "--local", "2") as process:
        said, complaints = process.communicate(timeout=180)
    assert process.returncode == 0, complaints
    with Store() as store:
        runs = [store.run(each["id"]) for each in json.loads(said)["stored"]]
    first, second = sorted(runs, key=lambda run: run.created_at)
    assert first.finished_at is not None
    assert first.finished_at <= second.created_at


def test_what_a_host_cannot_hold_is_refused_there_and_the_rest_is_kept() -> None:
    arguments = (*RUN, *SHORT, "page_tables", "--set", "total=64TiB", "--local", "1")
    with in_the_background(*arguments) as process:
        said, complaints = process.communicate(timeout=180)
    result = json.loads(said)
    assert (process.returncode, len(result["stored"])) == (1, 1), complaints
    assert [line["experiment"] for line in result["missing"]] == ["page_tables"]
    assert "64.0 TiB" in result["missing"][0]["reason"]


def test_only_who_holds_its_certificate_is_heard_and_ctrl_c_ends_all_of_it() -> None:
    with in_the_background(*RUN, *ENDLESS, "--local", "1") as process:
        command = psutil.Process(process.pid)
        worker = until(lambda: parent_among(command.children()))
        listening = {  # a child has its parent's sockets until it has become its program
            connection.laddr
            for process_here in (command, *command.children(recursive=True))
            for connection in connections(process_here)
            if connection.status == psutil.CONN_LISTEN
        }
        assert len(listening) == 2, "the scheduler's and the worker's"
        assert {address.ip for address in listening} == {"127.0.0.1"}
        folders = [Path(os.environ["TMPDIR"]).glob("pinscope-fleet-*")]
        assert [folder.stat().st_mode & 0o777 for some in folders for folder in some] == [0o700]
        for address in listening:
            strangers = [None, ssl.create_default_context(), *(
                Security.temporary().get_connection_args(role)["ssl_context"] for role in ("client", "worker")
            )]  # fmt: skip
            assert [is_heard(address.port, stranger) for stranger in strangers] == [False] * 4
        assert worker.is_running()
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=90)
    assert process.returncode == 130
    assert json.loads(said)["stored"] == []
