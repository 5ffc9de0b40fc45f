"""Every command in surroundings that nobody expects: it works, or says in one line why not; it shows no traceback."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.faults.campaign import Campaign
from tests.faults.child import TREE, run_pinscope

TIME_LIMIT = 120.0
TOGETHER = 3

COMMANDS = (
    "--help", "--version", "doctor", "doctor --json", "run --help", "run bandwidth -h",
    "run page_tables --lab host --quick --set total=4MiB", "runs list", "runs list --json", "runs show {recording}",
    "runs delete nothing", "report {recording} -o {out}/report.html", "report {recording} -o {out}/report.md",
    "export {recording} -o {out}/one.pinscope", "import {bundle}", "plan --pinned 1GiB", "plan --pinned 1GiB --json",
    "live --once", "live --once --json", "live --interval 0.1", "record --for 0.3s --interval 0.1",
    "record --for 0.3s --interval 0.1 -o {out}/night.pinscope", "exporter --print-rules",
    "exporter --port 0 --interval 0.1", "dashboard --port {port}",
)  # fmt: skip
ENDLESS = ("live --interval", "exporter --port", "dashboard")
"""These go on until a signal asks them to end."""
ENDLESS_SECONDS = 6.0

Limits = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Surroundings:
    """What a command finds when it begins.

    Attributes:
        environment: variables that differ; ``None`` takes one away. ``{folder}`` is the attempt's own,
            ``{clock}`` the library of a wall clock that is off.
        harmless: everything works as it does elsewhere.
        prefix: a command that runs it.
        working_folder: what becomes of it after the command's start there.
        streams: what the standard streams are, by number: "closed", "full" (a disk), "broken" (a pipe), or the columns
            of a terminal.
        limits: resource limits.
        mask: of files that are made.
        home: its mode.
    """

    environment: Mapping[str, str | None] = field(default_factory=dict)
    harmless: bool = True
    prefix: Sequence[str] = ()
    working_folder: str = ""
    streams: Mapping[int, str | int] = field(default_factory=dict)
    limits: Limits = ()
    mask: int = 0o022
    home: int = 0o700


NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
"""A user that no file of users knows, and without any privilege."""
NO_HOME: Mapping[str, str | None] = {
    "HOME": None, "XDG_DATA_HOME": None, "XDG_STATE_HOME": None, "XDG_CONFIG_HOME": None, "PINSCOPE_DATABASE": None,
}  # fmt: skip
OWN_HOME = NO_HOME | {"HOME": "{folder}/home"}


def _mounted(line: str) -> Sequence[str]:
    return ("unshare", "--mount", "sh", "-c", f'{line} && exec "$@"', "sh")


def _clock(**off: str) -> Mapping[str, str]:
    """A wall clock that is off; see tests/data/other_clock.c."""
    return {"LD_PRELOAD": "{clock}", **off}


SURROUNDINGS: Mapping[str, Surroundings] = {
    "folder deleted": Surroundings(working_folder="deleted"),
    "folder unreadable": Surroundings(prefix=NAMELESS, working_folder="unreadable"),
    "home read-only": Surroundings(OWN_HOME, harmless=False, prefix=NAMELESS, home=0o500),
    "home unreadable": Surroundings(OWN_HOME, harmless=False, prefix=NAMELESS, home=0o000),
    "home is a file": Surroundings(OWN_HOME | {"HOME": "/etc/hostname"}, harmless=False),
    "home relative": Surroundings(OWN_HOME | {"HOME": "home"}, harmless=False),
    "no home": Surroundings(NO_HOME, harmless=False, prefix=NAMELESS),
    "nameless user": Surroundings(OWN_HOME, prefix=NAMELESS),
    "nameless user, no locked memory": Surroundings(
        OWN_HOME, prefix=NAMELESS, harmless=False, limits=((resource.RLIMIT_MEMLOCK, 0),)
    ),
    "C locale": Surroundings({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "ASCII output": Surroundings({"PYTHONIOENCODING": "ascii"}),
    "ASCII output, strict": Surroundings({"PYTHONIOENCODING": "ascii:strict"}),
    "UTF-16 output": Surroundings({"PYTHONIOENCODING": "utf-16"}),
    "zone far away": Surroundings({"TZ": "Pacific/Chatham"}),
    "zone of no sense": Surroundings({"TZ": "XXX+24:59:59YYY-24:59:59,J1/0,J365/25"}),
    "zone missing": Surroundings({"TZ": ":/nowhere/at/all"}),
    "clock of 1970": Surroundings(_clock(CLOCK_OFF=str(-int(time.time()) + 86400))),
    "clock before 1970": Surroundings(_clock(CLOCK_OFF=str(-int(time.time()) - 400 * 86400))),
    "clock of 2250": Surroundings(_clock(CLOCK_OFF="7000000000")),
    "clock jumps an hour": Surroundings(_clock(CLOCK_JUMP="-3600")),
    "clock jumps a century": Surroundings(_clock(CLOCK_JUMP="3155760000")),
    "boot clock ahead": Surroundings(prefix=("unshare", "--time", "--monotonic", "8640000", "--boottime", "8640000",
                                             "--fork", "--kill-child")),
    "32 descriptors": Surroundings(limits=((resource.RLIMIT_NOFILE, 32),)),
    "64 descriptors": Surroundings(limits=((resource.RLIMIT_NOFILE, 64),)),
    "12 descriptors": Surroundings(harmless=False, limits=((resource.RLIMIT_NOFILE, 12),)),
    "1 GiB of addresses": Surroundings(harmless=False, limits=((resource.RLIMIT_AS, 2**30),)),
    "400 MiB of addresses": Surroundings(harmless=False, limits=((resource.RLIMIT_AS, 400 * 2**20),)),
    "files of 64 KiB": Surroundings(harmless=False, limits=((resource.RLIMIT_FSIZE, 2**16),)),
    "terminal of 1 column": Surroundings({"COLUMNS": None}, streams={1: 1}),
    "terminal of 20 columns": Surroundings({"COLUMNS": None}, streams={1: 20, 2: 20}),
    "1 column by name": Surroundings({"COLUMNS": "1", "LINES": "1"}, streams={1: 80}),
    "columns of no sense": Surroundings({"COLUMNS": "-3", "LINES": "x", "TERM": "nothing"}, streams={1: 80, 2: 80}),
    "stdin closed": Surroundings(streams={0: "closed"}),
    "stdout closed": Surroundings(streams={1: "closed"}),
    "stderr closed": Surroundings(streams={2: "closed"}),
    "all closed": Surroundings(streams={0: "closed", 1: "closed", 2: "closed"}),
    "stdout broken": Surroundings(harmless=False, streams={1: "broken"}),
    "stderr broken": Surroundings(streams={2: "broken"}),
    "stdout full": Surroundings(harmless=False, streams={1: "full"}),
    "stderr full": Surroundings(streams={2: "full"}),
    "mask 077": Surroundings(mask=0o077),
    "mask 777": Surroundings(OWN_HOME, harmless=False, prefix=NAMELESS, mask=0o777),
    "temporary folder missing": Surroundings({"TMPDIR": "{folder}/nothing"}),
    "temporary folder unwritable": Surroundings({"TMPDIR": "/proc"}),
    "no /dev/shm": Surroundings(prefix=_mounted("umount -l /dev/shm")),
    "/dev/shm read-only": Surroundings(prefix=_mounted("mount -t tmpfs -o ro none /dev/shm")),
    "no /proc": Surroundings(harmless=False, prefix=_mounted("umount -l /proc")),
    "no /sys": Surroundings(prefix=_mounted("umount -l /sys")),
    "no network": Surroundings(prefix=("unshare", "--net")),
    "PATH empty": Surroundings({"PATH": ""}),
    "no PATH": Surroundings({"PATH": None}),
    "long environment": Surroundings({f"LONG_{number}": "x" * 100_000 for number in range(12)}),
    "without docstrings": Surroundings({"PYTHONOPTIMIZE": "2"}),
    "warnings shown": Surroundings({"PYTHONWARNINGS": "default"}),
}  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What a command said to its surroundings."""

    exit_code: int | None
    stdout: str
    stderr: str
    left: Sequence[str]


@dataclass(frozen=True)
class Material:
    """What commands ask for."""

    recording: str
    bundle: Path
    clock: Path


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """A shipped recording, and a bundle of it."""
    folder = tmp_path_factory.mktemp("material")
    listed = run_pinscope("runs", "list", "--json", environment={"PINSCOPE_DATABASE": f"sqlite:///{folder}/none"})
    recording = next(run["id"] for run in json.loads(listed.stdout) if run["experiment"] == "page_tables")
    bundle = folder / "one.pinscope"
    assert run_pinscope("export", recording, "-o", str(bundle)).exit_code == 0
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, for clocks that are off")
    clock = folder / "other_clock.so"
    source = TREE / "tests" / "data" / "other_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", clock, source, "-ldl"], check=True)
    folder.chmod(0o755)
    return Material(recording, bundle, clock)


def test_surroundings(campaign: Campaign, tmp_path: Path, material: Material) -> None:
    """Every command in all surroundings; a sample takes few of both."""
    pairs = [(name, command) for name in SURROUNDINGS for command in COMMANDS]
    chosen = campaign.random().sample(pairs, campaign.size(sample=2, whole=360))
    with ThreadPoolExecutor(TOGETHER) as several:
        tried = several.map(lambda one: _try(*one[1], tmp_path / str(one[0]), material), enumerate(chosen))
        for (name, command), wrong in zip(chosen, tried, strict=True):
            campaign.count("surroundings")
            for line in wrong:
                campaign.fail(f"{name}: pinscope {command}: {line}")


def _try(name: str, command: str, folder: Path, material: Material) -> list[str]:
    where = SURROUNDINGS[name]
    if where.prefix and os.geteuid() != 0:
        return []  # only root makes them
    return list(_wrong(where, command, answer(where, command, folder, material)))


def answer(where: Surroundings, command: str, folder: Path, material: Material) -> Answer:
    """Carry out one command there."""
    out, home, work, temporary = (folder / part for part in ("out", "home", "work", "temporary"))
    for one in (out, home, work, temporary):
        one.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = command.format(recording=material.recording, bundle=material.bundle, out=out, port=port).split()
    variables = {
        **os.environ, "PYTHONPATH": str(TREE), "PINSCOPE_DATABASE": f"sqlite:///{folder}/runs.sqlite",
        "TMPDIR": str(temporary), "COLUMNS": "200",
        **{
            key: value and value.format(folder=folder, clock=material.clock)
            for key, value in where.environment.items()
        },
    }  # fmt: skip
    home.chmod(where.home)
    with _Streams(where.streams, folder) as streams:
        prefix = _found(where.prefix)
        process = subprocess.Popen(
            [*prefix, sys.executable, "-P", "-m", "pinscope", *words], cwd=work, start_new_session=True,
            env={key: value for key, value in variables.items() if value is not None},
            stdin=streams.files[0], stdout=streams.files[1], stderr=streams.files[2],
            preexec_fn=_prepared(where, work),  # noqa: PLW1509 - what it does needs no lock
        )  # fmt: skip
        streams.begun()
        code = _ended(process, command, streams)
        said = streams.said()
    home.chmod(0o700)
    left = [str(path.relative_to(folder)) for part in (temporary, work) if part.is_dir() for path in part.iterdir()]
    return Answer(code, said[1], said[2], left)


def _found(prefix: Sequence[str]) -> list[str]:
    """The command, to be found without PATH."""
    return [f"/usr/bin/{prefix[0]}", *prefix[1:]] if prefix else []


def _prepared(where: Surroundings, work: Path) -> Callable[[], None]:
    def prepare() -> None:
        os.umask(where.mask)
        for kind, most in where.limits:
            resource.setrlimit(kind, (most, most))
        if where.working_folder == "deleted":
            work.rmdir()
        elif where.working_folder == "unreadable":
            work.chmod(0)
        for number, kind in where.streams.items():
            if kind == "closed":
                os.close(number)

    return prepare


def _ended(process: subprocess.Popen[bytes], command: str, streams: _Streams) -> int | None:
    """The exit code; ``None`` if it had to be killed."""
    endless = command.startswith(ENDLESS)
    try:
        if endless and not _ends_within(ENDLESS_SECONDS, process, streams):
            os.killpg(process.pid, signal.SIGTERM)
        return process.returncode if _ends_within(TIME_LIMIT, process, streams) else None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ends_within(seconds: float, process: subprocess.Popen[bytes], streams: _Streams) -> bool:
    """Its terminals are read meanwhile: one that nobody reads would hold it up, as it does every program."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        streams.read()
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
            return True
    return False


class _Streams:
    """Three standard streams of a child, and what came out of them."""

    def __init__(self, kinds: Mapping[int, str | int], folder: Path) -> None:
        self._kinds = kinds
        self._paths = {number: folder / f"stream-{number}" for number in (1, 2)}
        self.files: list[int] = []
        self._masters: dict[int, int] = {}

    def __enter__(self) -> _Streams:
        for number in range(3):
            self.files.append(self._opened(number, self._kinds.get(number)))
        return self

    def _opened(self, number: int, kind: str | int | None) -> int:
        if isinstance(kind, int):
            master, slave = os.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, kind, 0, 0))
            self._masters[number] = master
            os.set_blocking(master, False)
            return slave
        if kind == "broken":
            read, write = os.pipe()
            os.close(read)
            return write
        if kind == "full":
            return os.open("/dev/full", os.O_WRONLY)
        if number == 0:
            return os.open(os.devnull, os.O_RDONLY)
        return os.open(self._paths[number], os.O_WRONLY | os.O_CREAT, 0o600)

    def begun(self) -> None:
        """The child has them: from now on they are its alone."""
        for file in self.files:
            os.close(file)
        self.files = []
        self._text = dict.fromkeys(self._masters, b"")

    def said(self) -> dict[int, str]:
        """What came out, by number."""
        texts = {1: "", 2: ""}
        for number, path in self._paths.items():
            if path.exists():
                texts[number] = path.read_bytes().replace(b"\0", b"").removeprefix(b"\xff\xfe").decode(errors="replace")
        self.read()
        return texts | {number: text.decode(errors="replace") for number, text in self._text.items()}

    def read(self) -> None:
        """Take what came out of terminals until now."""
        for number, master in self._masters.items():
            with suppress(OSError):  # nothing is there, or the other end is closed
                while piece := os.read(master, 65536):
                    self._text[number] += piece

    def __exit__(self, *exception: object) -> None:
        for descriptor in (*self.files, *self._masters.values()):
            os.close(descriptor)


DOCUMENTED = (0, 1, 2, 3, 130)
_UNACCEPTABLE = ("Traceback (most recent call last)", "Exception ignored", "Fatal Python error", "pinscope: unexpected")


def _wrong(where: Surroundings, command: str, got: Answer) -> Iterator[str]:
    """What a user could not accept, one line each."""
    said = got.stdout + got.stderr
    if got.exit_code is None:
        yield f"had not ended after {TIME_LIMIT:.0f} s; {said[-300:]!r}"
        return
    for sign in (
        "Traceback (most recent call last)",
        "Exception ignored",
        "Fatal Python error",
        "pinscope: unexpected",
    ):
        if sign in said:
            yield f"{sign}: …{said[said.index(sign) :][-700:]!r}"
    meant = 2 if "delete nothing" in command else 0
    if command.startswith(ENDLESS) and got.exit_code == -signal.SIGTERM and (not said or "dashboard is at" in said):
        return  # a busy machine had not loaded it yet; the dashboard says where it will be before it loads its server
    if got.exit_code not in DOCUMENTED or (where.harmless and got.exit_code != meant):
        yield f"exit code {got.exit_code}; {said[-300:]!r}"
    heard = not {2: "closed"}.items() <= where.streams.items() and where.streams.get(2) not in ("full", "broken")
    lines = [line for line in got.stderr.splitlines() if line.startswith("pinscope: ")]
    if got.exit_code not in (0, 130) and heard and not lines:
        yield f"exit code {got.exit_code} without a line that says why; {said[-300:]!r}"
    if got.exit_code == 2 and meant == 0 and len(lines) > 1:
        yield f"{len(lines)} lines: {got.stderr[-300:]!r}"
    if left := [path for path in got.left if Path(path).name not in said]:  # what was saved is named
        yield f"left {left}"
