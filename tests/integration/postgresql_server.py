"""A PostgreSQL server of the tests' own: made, started and thrown away by them."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Outliving

_SUPERUSER = "tester"
_SYSTEM_USER = "postgres"
"""PostgreSQL refuses to run as root: there it runs as the user that its packages make."""
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",  # thrown away anyway
    "dynamic_shared_memory_type": "mmap",  # in its folder, not in /dev/shm
    "max_connections": "50",
    "shared_buffers": "16MB",
}


class ServerMissingError(Exception):
    """What is missing here, and how to get it."""


def _program(name: str) -> str:
    """The newest installed version of one of the server's programs."""
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which(name)
    if found is None:
        raise ServerMissingError(
            f"{name} is not installed: these tests need a PostgreSQL server. "
            "scripts/test installs it; by hand: apt-get install postgresql"
        )
    return found


class PostgreSQLServer:
    """A cluster in a folder of its own. It listens on 127.0.0.1, with passwords, and on a socket in that folder."""

    def __init__(self) -> None:
        self._initdb, self._pg_ctl = _program("initdb"), _program("pg_ctl")
        # Not below pytest's folders: their paths are too long for a socket and closed to other users.
        self.folder = Path(tempfile.mkdtemp(prefix="pinscope-pg-", dir="/tmp"))
        self.password = secrets.token_hex(8)
        self.port = _free_port()
        try:
            self._initialize()
        except BaseException:
            self.remove()
            raise

    def _initialize(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.password)
        if os.geteuid() == 0:
            if shutil.which("runuser") is None:
                raise ServerMissingError("runuser is not installed: as root, PostgreSQL must run as another user")
            try:
                owner = pwd.getpwnam(_SYSTEM_USER)
            except KeyError:
                raise ServerMissingError(f"there is no user {_SYSTEM_USER} for PostgreSQL to run as") from None
            for path in (self.folder, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        self._call(
            self._initdb, "-D", str(self.folder / "data"), "-U", _SUPERUSER, "-A", "scram-sha-256",
            "--pwfile", str(secret), "-E", "UTF8", "--locale", "C", "--no-sync",
        )  # fmt: skip

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {**_SETTINGS, "port": self.port, "unix_socket_directories": self.folder}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._call(
            self._pg_ctl, "start", "-w", "-D", str(self.folder / "data"), "-l", str(self.folder / "log"), "-o", options
        )

    def stop(self) -> None:
        """Stop the server at once, as a crash would: connections break."""
        self._call(self._pg_ctl, "stop", "-w", "-m", "immediate", "-D", str(self.folder / "data"))

    @property
    def pid(self) -> int:
        """The process that all others of the server descend from."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def remove(self) -> None:
        """Stop the server if it runs, and delete everything."""
        if (self.folder / "data" / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder)

    @property
    def url(self) -> str:
        """The database, as a user would write it."""
        return f"postgresql://{_SUPERUSER}:{self.password}@127.0.0.1:{self.port}/postgres"

    def empty(self) -> None:
        """Take away all tables; far quicker than another database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")

    def _call(self, *command: str) -> None:
        prefix = ("runuser", "-u", _SYSTEM_USER, "--") if os.geteuid() == 0 else ()
        # An environment of its own: nothing of a single test may cling to a server that outlives it.
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": str(self.folder)}
        # The server would keep a pipe open: its output goes to a file.
        with (self.folder / "output").open("w+") as output:
            done = subprocess.run(
                [*prefix, *command], cwd=self.folder, env=environment, stdout=output, stderr=output, check=False
            )
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"{Path(command[0]).name} failed: {output.read()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started_server(outliving: Outliving) -> Iterator[PostgreSQLServer]:
    """A server that runs; the tests fail where none is installed."""
    try:
        server = PostgreSQLServer()
    except ServerMissingError as error:
        pytest.fail(str(error), pytrace=False)
    try:
        server.start()
        outliving.processes.add(server.pid)
        yield server
    finally:
        server.remove()
