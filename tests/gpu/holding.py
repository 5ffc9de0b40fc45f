"""Programs that hold host memory and know nothing of PinScope: C, and PyTorch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
PYTORCH = """
import sys, torch
def say(word):
    print(word, flush=True)
    sys.stdin.readline()
torch.ones(1, device="cuda")
say("ready")
held = [torch.empty(int(size), dtype=torch.uint8, pin_memory=True) for size in sys.argv[1:]]
say("held")
del held
torch._C._host_emptyCache()
say("released")
"""


def compile_program(name: str, folder: Path) -> Path:
    """Build a C program against the CUDA runtime; skips where there is no compiler or toolkit."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    toolkit = Path(nvcc).resolve().parent.parent
    compiler = shutil.which("cc")
    if compiler is None or not (toolkit / "include/cuda_runtime.h").exists():
        pytest.skip("needs a C compiler and the CUDA toolkit's headers")
    runtimes = (toolkit / "lib64/libcudart.so", toolkit / "lib/libcudart.so")
    library = next((path for path in runtimes if path.exists()), None)
    if library is None:
        pytest.skip(f"no libcudart.so in {toolkit}")
    program = folder / name
    command = [compiler, "-O1", "-o", program, PROGRAMS / f"{name}.c", f"-I{toolkit}/include", library, "-lrt", "-ldl",
               f"-Wl,-rpath,{library.parent}"]  # fmt: skip
    subprocess.run(command, check=True)
    return program


@dataclass
class Holding:
    """A program that goes on by a word at a time: ready (with a context), held, released."""

    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def go_on(self, to: str) -> None:
        """Let it take its next step and wait until it is done."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.reach(to)

    def reach(self, word: str) -> None:
        """Wait for its word."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word


@contextmanager
def holding(command: Sequence[str | Path]) -> Iterator[Holding]:
    """Start a program; it has a CUDA context and holds nothing yet. It is gone when the block ends."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            program = Holding(process)
            program.reach("ready")
            yield program
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(30)


def pytorch(*sizes: int) -> list[str]:
    """The command of a PyTorch program that pins tensors of these sizes in bytes."""
    return [sys.executable, "-c", PYTORCH, *map(str, sizes)]
