"""Two witnesses of what programs want of the network: a preloaded library, and a namespace without a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")
LOOPBACK_UP = """
import fcntl, socket, struct, sys
with socket.socket() as one:
    fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
print("up", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Witness:
    """A preloaded library that writes look-ups and addresses outside of loopback into ``log``."""

    library: Path
    log: Path

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment of the programs to be watched."""
        return {"LD_PRELOAD": str(self.library), "NETWORK_WITNESS": str(self.log)}

    def seen(self) -> list[str]:
        """What was looked up or turned to so far."""
        return self.log.read_text().splitlines() if self.log.exists() else []


def compile_witness(folder: Path) -> Path:
    """Compile the library; skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    library = folder / "network_witness.so"
    subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@dataclass(frozen=True)
class Namespace:
    """A network namespace in which there is nothing but loopback.

    Attributes:
        prefix: a command that starts another one in it.
    """

    pid: int
    prefix: Sequence[str]

    def listens(self, port: int) -> bool:
        """Whether a program in it listens on that port of 127.0.0.1."""
        return f" 0100007F:{port:04X} 00000000:0000 0A " in Path(f"/proc/{self.pid}/net/tcp").read_text()

    def unroutable(self) -> int:
        """How often the kernel had to send something out of it, and could not (RFC 4293's OutNoRoutes, IPv4)."""
        names, values = (
            line.split() for line in Path(f"/proc/{self.pid}/net/snmp").read_text().splitlines() if line[:3] == "Ip:"
        )
        return int(values[names.index("OutNoRoutes")])


@contextmanager
def empty_namespace() -> Iterator[Namespace]:
    """Skips the test where this user may make none."""
    own_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    holder = subprocess.Popen(
        ["unshare", *own_user, "--net", sys.executable, "-c", LOOPBACK_UP],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"up\n":
            pytest.skip(f"no network namespace can be made here: {holder.communicate()[1].decode().strip()}")
        same_user = ["--user", "--preserve-credentials"] if own_user else []
        yield Namespace(holder.pid, ["nsenter", "--target", str(holder.pid), *same_user, "--net", "--"])
    finally:
        holder.communicate()
