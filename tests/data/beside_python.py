"""Runs programs twice, with ``python …`` and with ``pinscope trace …``, and compares what can be seen from outside.

The programs are data: ``programs/*.toml``, whose ``README.md`` says what an entry may have. Both runs of a program take
place in the same folder, made anew, so that nothing must be replaced before what they wrote is compared. Each folder
has a virtual environment of its own, in which PinScope, what it needs and a stand-in for CUPTI are installed:
``PYTHONPATH``, ``-E`` and ``-I`` are left to the programs.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.data.fake_cupti import ROOT, packages

FOLDER = Path(__file__).parent / "programs"
TRACED = ("-m", "pinscope", "trace")
"""What stands between Python's options and the program."""
LONGEST_SECONDS = 240
"""A program that runs longer hangs: each takes less than one, but for PinScope with `-X tracemalloc` on a busy host."""
_WRITTEN_NS = 1_700_000_000 * 10**9
"""When all files were written: compiled files say it."""
_ADDRESS = re.compile(rb"\b0x[0-9a-f]{6,16}\b")
_HANDED_ON = ("PATH", "PINSCOPE_TEST_MARK")
"""Variables of this process that the programs get."""
_SUMMARY = re.compile(
    rb"\r?\npinscope: (?:(?!\r?\npinscope: ).)*\nRun \d{8}-\d{6}-\w+\. Next:\r?\n(?:  pinscope [^\n]*\n)+", re.DOTALL
)
"""What PinScope itself writes when the program has ended."""


@dataclass(frozen=True)
class Program:
    """One entry of the table; ``{here}`` in its texts is the working folder.

    Attributes:
        kind: what it is about, the name of its file.
        name: what it shows.
        source: its ``program.py``.
        run: what stands behind Python's options, as in a shell.
        options: Python's options, likewise.
        files: further files in the working folder.
        site: files in ``site-packages``.
        prepare: commands of a shell, before the start; ``$PYTHON`` is the interpreter.
        shell: commands of a shell that start it, as ``"$@"``.
        env: variables; all others are the same for all programs.
        stdin: what it can read.
        python: oldest version that can run it.
        differs: the kind of its known difference, which the document on traces names.
        since: oldest version that shows this difference.
    """

    kind: str
    name: str
    source: str | None = None
    run: str = "program.py"
    options: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    site: Mapping[str, str] = field(default_factory=dict)
    prepare: str | None = None
    shell: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None
    python: str = "3.11"
    differs: str | None = None
    since: str = "3.11"


@dataclass(frozen=True)
class Interpreter:
    """A Python that has what PinScope needs.

    Attributes:
        path: how it is started.
        version: such as 3.11.
        base: the installed one, where it is that of a virtual environment.
        packages: folders that have what PinScope needs.
    """

    path: str
    version: str
    base: str
    packages: Sequence[str]

    @classmethod
    def at(cls, path: str) -> Interpreter:
        """Ask the interpreter."""
        question = (
            "import json, site, sys; print(json.dumps(['%d.%d' % sys.version_info[:2], "
            "getattr(sys, '_base_executable', sys.executable), site.getsitepackages()]))"
        )
        answer = subprocess.run([path, "-c", question], capture_output=True, text=True, check=True)
        version, base, packages = json.loads(answer.stdout)
        return cls(path, version, base, packages)

    def can_run(self, program: Program) -> bool:
        """Whether the program is for this version."""
        return _numbers(self.version) >= _numbers(program.python)

    def has_known_difference(self, program: Program) -> bool:
        """Whether the table says that the program differs here."""
        return program.differs is not None and _numbers(self.version) >= _numbers(program.since)


@dataclass(frozen=True)
class Ended:
    """All that can be seen of a program: its exit code (below 0: the signal), what it wrote, the files it left."""

    code: int | str
    stdout: bytes
    stderr: bytes
    files: Mapping[str, tuple[str, bytes]]


@dataclass(frozen=True)
class Difference:
    """In what a traced program differs, and the first lines that do; empty where one has less."""

    what: str
    plain: str
    traced: str


def programs() -> Iterator[Program]:
    """The whole table."""
    for path in sorted(FOLDER.glob("*.toml")):
        for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
            yield Program(kind=path.stem.replace("-", " "), name=name, **entry)


def compare_all(
    chosen: Iterable[Program],
    interpreter: Interpreter,
    folder: Path,
    library: Path,
    *,
    traced: Sequence[str] = TRACED,
    at_once: int | None = None,
) -> Iterator[tuple[Program, Sequence[Difference]]]:
    """The programs and how they differ, several at once.

    Args:
        chosen: programs that the interpreter can run.
        interpreter: runs them.
        folder: an existing one, for their folders.
        library: the stand-in for CUPTI.
        traced: what stands between Python's options and the program in the second run.
        at_once: how many; by default as many as there are processors, and two.
    """

    def compare(numbered: tuple[int, Program]) -> tuple[Program, Sequence[Difference]]:
        number, program = numbered
        return program, compared(program, interpreter, folder / str(number), library, traced)

    with ThreadPoolExecutor(at_once or (os.cpu_count() or 1) + 2) as pool:
        yield from pool.map(compare, enumerate(chosen))


def compared(
    program: Program, interpreter: Interpreter, folder: Path, library: Path, traced: Sequence[str] = TRACED
) -> Sequence[Difference]:
    """How the traced program differs."""
    plain, other = (_run(program, interpreter, folder, library, through) for through in ((), traced))
    differences = list(_differences(plain, other))
    if traced == TRACED and program.shell is None and not _SUMMARY.search(other.stderr + other.stdout):
        differences.append(Difference("summary of the trace", "", ""))
    return differences


def _run(program: Program, interpreter: Interpreter, folder: Path, library: Path, through: Sequence[str]) -> Ended:
    """Run it once, in a folder that is there for this run only."""
    here = folder / "here"
    for each in (here, folder / "home", folder / "tmp"):
        each.mkdir(parents=True)
    python = _install(interpreter, folder / "python", _at(here, program.site), library)
    sources = {} if program.source is None else {"program.py": program.source}
    _write(here, _at(here, {**sources, **program.files}))
    variables = {
        **{name: os.environ[name] for name in _HANDED_ON if name in os.environ},
        "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "LANG": "C.UTF-8", "TERM": "dumb",
        "FAKE_CUPTI": str(library), "LD_LIBRARY_PATH": str(library.parent),
        "PINSCOPE_DATABASE": f"sqlite:///{folder / 'pinscope.sqlite'}",
        "PINSCOPE_QUEUE": str(folder / "queue"), "PINSCOPE_COMMIT": "0" * 40,
        **_at(here, program.env),
    }  # fmt: skip
    try:
        if program.prepare:
            command = ["/bin/sh", "-ec", program.prepare]
            subprocess.run(command, cwd=here, env={**variables, "PYTHON": str(python)}, check=True)
            for path in here.rglob("*"):
                os.utime(path, ns=(_WRITTEN_NS, _WRITTEN_NS), follow_symlinks=False)
        options, words = (shlex.split(text.replace("{here}", str(here))) for text in (program.options, program.run))
        command = [str(python), *options, *through, *words]
        if program.shell:
            command = ["/bin/sh", "-c", program.shell.replace("{here}", str(here)), "sh", *command]
        code, stdout, stderr = _end(command, here, variables, program.stdin)
        return Ended(code, stdout, stderr, {**_files(here, "here"), **_files(folder / "tmp", "tmp")})
    finally:
        shutil.rmtree(folder)


def _at(here: Path, texts: Mapping[str, str]) -> dict[str, str]:
    return {name: text.replace("{here}", str(here)) for name, text in texts.items()}


def _install(interpreter: Interpreter, folder: Path, site: Mapping[str, str], library: Path) -> Path:
    """A virtual environment with PinScope, what it needs and the stand-in; its interpreter."""
    own = folder / "lib" / f"python{interpreter.version}" / "site-packages"
    own.mkdir(parents=True)
    (folder / "bin").mkdir()
    python = folder / "bin" / "python"
    python.symlink_to(interpreter.base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {Path(interpreter.base).parent}\ninclude-system-site-packages = false\n"
    )
    installed = [str(ROOT), *interpreter.packages, str(packages(library))]
    (own / "installed.pth").write_text("\n".join(installed) + "\n")
    _write(own, site)
    return python


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(_WRITTEN_NS, _WRITTEN_NS))


def _end(
    command: Sequence[str], here: Path, variables: Mapping[str, str], stdin: str | None
) -> tuple[int | str, bytes, bytes]:
    """Its exit code and what it wrote, once no process has its standard streams any more."""
    child = subprocess.Popen(
        command, cwd=here, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
    )  # fmt: skip
    try:
        stdout, stderr = child.communicate(None if stdin is None else stdin.encode(), LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        stdout, stderr = child.communicate()
        return "none: it hangs", stdout, stderr
    with suppress(ProcessLookupError):  # what it left running
        os.killpg(child.pid, signal.SIGKILL)
    return child.returncode, stdout, stderr


def _files(folder: Path, name: str) -> dict[str, tuple[str, bytes]]:
    """Each file and folder below: what it is, and its content."""
    there = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        there[f"{name}/{path.relative_to(folder)}"] = (oct(status.st_mode), content)
    return there


def _differences(plain: Ended, traced: Ended) -> Iterator[Difference]:
    if plain.code != traced.code:
        yield Difference("exit code", str(plain.code), str(traced.code))
    for what in ("stdout", "stderr"):
        texts = getattr(plain, what), _SUMMARY.sub(b"", getattr(traced, what))
        expected, written = (_ADDRESS.sub(b"0x...", text) for text in texts)
        if expected != written:
            yield Difference(what, *_first_lines(expected, written))
    for path in sorted({*plain.files, *traced.files}):
        before, after = plain.files.get(path), traced.files.get(path)
        if before != after:
            said = ["" if each is None else f"{each[0]}, {len(each[1])} bytes" for each in (before, after)]
            if before and after and before[1] != after[1]:
                said = list(_first_lines(before[1], after[1]))
            yield Difference(f"file {path}", *said)


def _first_lines(expected: bytes, written: bytes) -> tuple[str, str]:
    """The first line of each that the other has not."""
    texts = [text.decode(errors="backslashreplace").splitlines(keepends=True) for text in (expected, written)]
    diff = [line for line in difflib.ndiff(*texts) if line[:2] in ("- ", "+ ")] if max(map(len, texts)) < 500 else []
    firsts = [next((repr(line[2:]) for line in diff if line.startswith(sign)), "") for sign in "-+"]
    if any(firsts):
        return firsts[0], firsts[1]
    return f"{len(expected)} bytes", f"{len(written)} bytes"


def _numbers(version: str) -> Sequence[int]:
    return [int(number) for number in version.split(".")]
