"""A process says what it holds: exactly that is shown, and nothing that is not its own, not true or not in order."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinscope.live.findings import possible_owners, snapshot_findings
from pinscope.live.source import LiveSource, snapshot
from pinscope.probes.proc import Answer, Proc
from tests.data.snapshot_checks import holder_of
from tests.data.synthetic_snapshot import holder as made
from tests.data.synthetic_snapshot import snapshot as of_holders
from tests.unit.live.test_holders import WithDeviceFiles

MIB, GIB = 2**20, 2**30
PINS = 64 * MIB
ALLOCATORS = """
import sys, types

class Block:
    def __init__(self, size):
        self.size = size

class Pool:
    __slots__ = ("used", "free")
    def __init__(self):
        self.used = {Block(3 << 20)}
        self.free = {1 << 20: [Block(1 << 20), Block(1 << 20)]}
    def n_free_blocks(self):
        return 2

stats = {"allocated_bytes.current": 8 << 20, "active_bytes.current": 8 << 20}
memory = types.SimpleNamespace(host_memory_stats=lambda: stats)
cuda = types.SimpleNamespace(memory=memory, is_initialized=lambda: True)
torch = types.SimpleNamespace(cuda=cuda, __version__="2.12.1+cu130")
pool = Pool()
sys.modules |= {"torch": torch, "cupy": types.SimpleNamespace(get_default_pinned_memory_pool=lambda: pool)}
"""
"""PyTorch with 8 MiB pinned, and CuPy with 5, 3 of them in use, as they look from Python."""


class OnAGpu(WithDeviceFiles):
    """A machine with these processes alone: those of the tests beside it may really hold pinned memory."""

    def __init__(self, *pids: int) -> None:
        super().__init__(*pids, pinned_bytes=PINS)
        self._pids = pids

    def pids(self) -> Answer[tuple[int, ...]]:
        return Answer(self._pids)


@contextmanager
def program(text: str) -> Iterator[subprocess.Popen[str]]:
    """A program that has run this text, whose lines after ``---`` it runs when it is told to go on."""
    before, _, after = text.partition("---")
    lines = (
        f"import pinscope\n{before}\nprint('ready', flush=True)\ninput()\n{after}\nprint('ready', flush=True)\ninput()"
    )
    room = "import mmap\nroom = mmap.mmap(-1, 2 << 30, flags=mmap.MAP_PRIVATE)"  # of addresses, as CUDA takes it
    command = [sys.executable, "-c", f"{room}\nheld = bytearray(80 << 20)\n{lines}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            reach(running)
            yield running
        finally:
            running.kill()


def reach(running: subprocess.Popen[str]) -> None:
    assert running.stdout is not None
    assert running.stdout.readline() == "ready\n"


def go_on(running: subprocess.Popen[str]) -> None:
    assert running.stdin is not None
    running.stdin.write("\n")
    running.stdin.flush()
    reach(running)


def test_what_a_program_says_is_exact_explains_the_pins_and_leaves_no_suspect() -> None:
    with program("pinscope.report_host_memory(registered='64MiB')") as running, program("") as silent:
        seen = snapshot(OnAGpu(running.pid, silent.pid))
    one = holder_of(seen, running.pid)
    assert (one.registered_bytes, "registered_bytes" in one.estimates) == (PINS, False)
    assert one.said_at is not None
    assert (seen.host.explained_bytes, seen.host.other_pinned_bytes) == (PINS, 0)
    assert possible_owners(seen) == []
    assert holder_of(seen, silent.pid).registered_bytes is None
    assert "report_host_memory" in holder_of(seen, silent.pid).missing["said_at"]


def test_what_cupy_keeps_is_exact_and_of_pytorch_no_more_than_it_holds() -> None:
    with program(f"{ALLOCATORS}\npinscope.report_host_memory()") as running:
        one = holder_of(snapshot(OnAGpu(running.pid)), running.pid)
    assert one.kept_by == {"CuPy": 2 * MIB}
    assert (one.kept_bytes, one.bounds["kept_bytes"]) == (10 * MIB, "at_most")
    assert one.registered_bytes is None  # it did not say


def test_what_pytorch_keeps_is_exact_from_the_release_on_that_counts_freed_memory() -> None:
    change = "torch.__version__ = '2.13.0+cu130'\nstats['active_bytes.current'] = 2 << 20"
    with program(f"{ALLOCATORS}\n{change}\npinscope.report_host_memory()") as running:
        one = holder_of(snapshot(OnAGpu(running.pid)), running.pid)
    assert one.kept_by == {"PyTorch": 6 * MIB, "CuPy": 2 * MIB}
    assert (one.kept_bytes, "kept_bytes" in one.estimates) == (8 * MIB, False)


def test_a_series_shows_what_was_said_last() -> None:
    text = "---\npinscope.report_host_memory(registered=4096)\nprint('ready', flush=True)\ninput()"
    again = "\npinscope.report_host_memory(registered=8192)"
    with program(text + again) as running, LiveSource(OnAGpu(running.pid)) as source:
        shown = [holder_of(source.take(), running.pid).registered_bytes]
        for _ in range(2):
            go_on(running)
            shown.append(holder_of(source.take(), running.pid).registered_bytes)
    assert shown == [None, 4096, 8192]


def test_a_forked_child_speaks_for_itself() -> None:
    child = "if os.fork(): os.wait()\nelse: pinscope.report_host_memory(registered=8192)"
    with program(f"import os\npinscope.report_host_memory(registered=4096)\n{child}") as running:
        (pid,) = map(int, Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split())
        seen = snapshot(OnAGpu(running.pid, pid))
    assert [holder_of(seen, one).registered_bytes for one in (running.pid, pid)] == [4096, 8192]


def test_neither_torch_nor_cupy_nor_pydantic_is_loaded_for_it() -> None:
    text = "import sys, pinscope; pinscope.report_host_memory(); "
    text += "print(*{'torch', 'cupy', 'pydantic', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout == "\n"


@pytest.mark.parametrize(
    "text",
    [
        "pinscope.report_host_memory(registered='1TiB')",  # more than it has in memory
        "pinscope.report_host_memory(registered=4096)\nif os.fork(): os.wait()",  # the child has its parent's words
        "page = write(b'{')",
        "page = write(b'\\xff' * 4096)",
        'page = write(b\'{"pid": %d, "at": 1e400, "registered": 1, "held": {}, "kept": {}}\' % os.getpid())',
        'page = write(b\'{"pid": %d, "at": 1, "registered": true, "held": {}, "kept": {}}\' % os.getpid())',
        'page = write(b\'{"pid": %d, "at": 1, "registered": -1, "held": {}, "kept": {}}\' % os.getpid())',
        'page = write(b\'{"pid": %d, "at": 1, "registered": 1, "held": {"X": 1}, "kept": {"X": 1}}\' % os.getpid())',
        'page = write(b\'{"pid": 1, "at": 1, "registered": 1, "held": {}, "kept": {}}\')',
        "page = write(b'[' * 4000)",
    ],
)
def test_what_is_not_true_not_its_own_or_makes_no_sense_is_not_shown(text: str) -> None:
    helper = """
import os, zlib
def write(content):
    page = os.memfd_create("pinscope-host-memory")
    os.write(page, b"%08x" % zlib.crc32(content) + content)
    return page
"""
    with program(helper + text) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
        pids = [running.pid, *map(int, children)]
        seen = snapshot(OnAGpu(*pids))
        shown = [holder_of(seen, pid).registered_bytes for pid in pids]
    assert shown == ([4096, None] if children else [None])


def test_a_pipe_or_a_file_of_that_name_is_not_opened(tmp_path: Path) -> None:
    """A stranger's descriptor may have become anything between two looks."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_text("text")
    for name in ("pipe", "file"):
        assert Proc().memory_of(str(tmp_path / name), 10).value is None


def test_much_that_allocators_keep_is_a_finding_with_the_calls_that_give_it_back() -> None:
    at = of_holders().taken_at
    both = {"PyTorch": 6 * GIB, "CuPy": GIB}
    keeping = made(kept_by=both, kept_bytes=7 * GIB, allocators=tuple(both), said_at=at)
    (finding,) = snapshot_findings(of_holders(holders=(keeping,)))
    assert finding.rule == "kept-by-allocators"
    assert finding.title.startswith("7 GiB ")
    assert [quantity.value for quantity in finding.evidence[:2]] == [6 * GIB, GIB]
    assert "torch._C._host_emptyCache()" in finding.advice
    assert "free_all_blocks()" in finding.advice
    little = made(kept_by={"PyTorch": MIB}, kept_bytes=MIB, allocators=("PyTorch",), said_at=at)
    assert snapshot_findings(of_holders(holders=(little,))) == ()
