"""Workers that a real Slurm and a real sshd of this machine start, both on the loopback interface alone."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.data.waiting import until
from tests.integration.processes import in_the_background, variables
from tests.integration.test_fleet import RUN, SHORT, hosts_of

pytest.importorskip("distributed")

SLURM = """
ClusterName=fleet
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
UsePAM no
StrictModes no
PermitUserEnvironment no
AcceptEnv *
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def daemon(*command: str, **variables: str) -> Iterator[None]:
    """A daemon in the foreground, until the block ends."""
    said = Path(os.environ["TMPDIR"]).parent / f"{Path(command[0]).name}.log"
    with said.open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, **variables}
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of one node, this machine."""
    if os.getuid() or not all(map(shutil.which, ("munged", "slurmctld", "slurmd", "srun"))):
        pytest.skip("needs root, and apt-get install slurmctld slurmd slurm-client munge")
    for name in ("munge", "state", "spool"):
        (tmp_path / name).mkdir(0o700)
    key = tmp_path / "munge" / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    conf = tmp_path / "slurm.conf"
    conf.write_text(SLURM.format(folder=tmp_path, host=host, cpus=os.cpu_count(), ports=free_ports(2)))
    monkeypatch.setenv("SLURM_CONF", str(conf))
    files = {name: f"{tmp_path}/munge/{name}" for name in ("socket", "log-file", "pid-file", "seed-file")}
    munge = [
        "munged",
        "--foreground",
        "--force",
        f"--key-file={key}",
        *(f"--{name}={path}" for name, path in files.items()),
    ]
    with daemon(*munge):
        until((tmp_path / "munge" / "socket").exists)
        with daemon("slurmctld", "-D", "-f", str(conf)), daemon("slurmd", "-D", "-f", str(conf)):
            until(lambda: "idle" in subprocess.run(["sinfo"], capture_output=True, text=True, check=False).stdout)
            yield


@pytest.fixture
def ssh_options(tmp_path: Path) -> Iterator[str]:
    """How ssh reaches an sshd of this machine without a question."""
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    if os.getuid() or not Path(sshd).exists():
        pytest.skip("needs root, and apt-get install openssh-server")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    (port,) = free_ports(1)
    conf = tmp_path / "sshd.conf"
    conf.write_text(SSHD.format(folder=tmp_path, port=port))
    Path("/run/sshd").mkdir(exist_ok=True)
    with daemon(sshd, "-D", "-e", "-f", str(conf)):
        until(lambda: answers(port))
        known = f"-o StrictHostKeyChecking=no -o UserKnownHostsFile={tmp_path}/known"
        own = " ".join(
            f"{name}={variables()[name]}" for name in ("TMPDIR", "PINSCOPE_QUEUE", "PINSCOPE_COMMIT", "PYTHONPATH")
        )
        yield f"-p {port} -i {tmp_path}/user {known} -o 'SetEnv={own}'"


def carried_out(*arguments: str) -> Any:
    """The JSON of a campaign on this machine's loopback interface."""
    with in_the_background(*RUN, *SHORT, "--listen", "127.0.0.1", *arguments) as process:
        said, complaints = process.communicate(timeout=240)
    assert "Traceback" not in complaints, complaints
    return process.returncode, json.loads(said)


def kept_by_workers() -> list[str]:
    """What workers of this test's temporary folder left of their runs and of themselves."""
    return [path.name for path in Path(os.environ["TMPDIR"]).rglob("*worker-*")]


@pytest.fixture(autouse=True)
def _own_folder_goes() -> Iterator[None]:
    """A user's folder of workers stays on a host, and in the test's temporary folder it must not."""
    yield
    shutil.rmtree(Path(os.environ["TMPDIR"]) / f"pinscope-{os.geteuid()}", ignore_errors=True)


def test_slurm_starts_a_worker_on_its_node_and_keeps_no_job(slurm: None) -> None:
    code, result = carried_out("--slurm", "1")
    assert (code, hosts_of(result["stored"]), result["missing"]) == (0, [socket.gethostname()], [])
    until(lambda: subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout == "")
    assert kept_by_workers() == []


def test_nodes_that_slurm_does_not_give_are_named(slurm: None) -> None:
    code, result = carried_out("--slurm", "2", "--join", "5s")
    assert (code, result["stored"]) == (1, [])
    (missing,) = result["missing"]
    assert missing["host"] == "2 of 2 hosts of slurm"
    assert missing["reason"].startswith("no worker came within 5 s: srun: ")
    assert subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True).stdout == ""


def test_ssh_starts_a_worker_and_a_host_that_refuses_is_named(ssh_options: str) -> None:
    code, result = carried_out("--ssh", "127.0.0.1,nowhere.invalid", "--options", ssh_options)
    assert (code, hosts_of(result["stored"])) == (1, [socket.gethostname()]), result
    (missing,) = result["missing"]
    assert missing["host"] == "nowhere.invalid"
    assert "nowhere.invalid" in missing["reason"]
    assert kept_by_workers() == []
