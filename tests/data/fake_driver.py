"""A stand-in for CUDA's driver library, programs that use it, and the kernel's tracing for a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from pinscope.probes.copy_calls import COPY_CALLS
from pinscope.probes.elf import function_offsets
from pinscope.probes.tracefs import USUAL_FOLDER, tracing_access

HERE = Path(__file__).parent
LIBRARY = "libcuda.so.1"
PROGRAM = "program"


def build(folder: Path) -> Path:
    """Compile library and program into a folder; gives the library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    common = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o"]
    library = folder / LIBRARY
    subprocess.run([*common, library, "-shared", "-fPIC", HERE / "fake_cuda.c"], check=True)
    flags = ["-pthread", "-Wl,-rpath,$ORIGIN"]
    subprocess.run([*common, folder / PROGRAM, HERE / "fake_cuda_program.c", library, *flags], check=True)
    return library


class Program:
    """A running program that uses the library beside it. A context manager: it ends with it."""

    def __init__(self, library: Path) -> None:
        self._child = subprocess.Popen(
            [library.with_name(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.pid = self._child.pid
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.communicate()

    def does(self, *words: str | int) -> int:
        """Have it do a call that succeeds; gives the address."""
        result, address = self.tries(*words)
        assert result == 0
        return address

    def tries(self, *words: str | int) -> tuple[int, int]:
        """Have it do a call; gives what that returned, and the address."""
        assert self._child.stdin is not None
        self._child.stdin.write(" ".join(map(str, words)) + "\n")
        self._child.stdin.flush()
        return self._answer()

    def kill(self) -> None:
        """End it as it stands."""
        self._child.kill()
        self._child.wait()

    def _answer(self) -> tuple[int, int]:
        assert self._child.stdout is not None
        result, address = self._child.stdout.readline().split()
        return int(result), 0 if address == "(nil)" else int(address, 0)


@contextmanager
def tracing() -> Iterator[Path]:
    """The kernel's tracing folder, mounted for a test where it is not; skips where the kernel lacks it."""
    mounted = False
    if os.geteuid() == 0 and tracing_access().value is None and Path(USUAL_FOLDER).is_dir():
        command = ["mount", "-t", "tracefs", "tracefs", USUAL_FOLDER]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        access = tracing_access()
        if access.value is None:
            pytest.skip(f"no probes here: {access.reason}")
        yield access.value
    finally:
        if mounted:
            subprocess.run(["umount", USUAL_FOLDER], check=True)


def left_by(pid: int, folder: Path) -> set[str]:
    """Instances and probes that a process has in the kernel now."""
    instances = {path.name for path in (folder / "instances").iterdir() if path.name.startswith(f"pinscope-{pid}-")}
    probes = {line.split(" ")[0] for line in (folder / "uprobe_events").read_text().splitlines()}
    return instances | {probe for probe in probes if f":pinscope_{pid}_" in probe}


def is_probed(pid: int, library: Path) -> bool:
    """Whether a driver's function that copies stands otherwise in a program's memory than in the library's file."""
    with library.open("rb") as file, Path(f"/proc/{pid}/mem").open("rb") as memory:
        offsets = function_offsets(file.fileno(), COPY_CALLS, os.uname().machine).value
        assert offsets
        code = [
            (*(int(part, 16) for part in line.split()[0].split("-")), int(line.split()[2], 16))
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines()
            if line.endswith(f" {library}") and "x" in line.split()[1]
        ]
        differ = 0
        for offset in offsets.values():
            (place,) = [first + offset - begin for first, last, begin in code if 0 <= offset - begin < last - first]
            file.seek(offset)
            memory.seek(place)
            differ += file.read(8) != memory.read(8)
    assert differ in (0, len(offsets))
    return bool(differ)
