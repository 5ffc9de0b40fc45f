"""Copies of chosen lines come from pinned memory, and the program notices nothing: stand-ins for PyTorch and CuPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinscope.tracing import redirect
from pinscope.tracing.places import library_folders
from pinscope.tracing.redirect import ACCOUNT, Budget, Buffer, Line, Ring
from tests.data.stand_ins import PACKAGES

ROOT = Path(__file__).parents[3]
START = f"""\
import json, os, runpy, sys
sys.path.insert(0, {str(ROOT)!r})
from pinscope.tracing.redirect_libraries import start_redirecting
from pinscope.tracing.spool_folder import SpoolFolder
del sys.path[0]
spool = SpoolFolder.of(os.stat(sys.argv[1]), sys.argv[1])
start_redirecting(spool, json.loads(sys.argv[2]), lambda tensor: tensor.is_pinned())
sys.argv[:3] = []
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a program as a plan says: ``-c START SPOOL PLAN PROGRAM``."""
PRELUDE = """\
import sys, zlib, cuda.gpu_model as gpu_model, numpy as np, torch
from torch.utils.data.dataloader import DataLoader
def checked(array): return array.shape, str(array.dtype), zlib.crc32(array.tobytes())
def show(*results): print([checked(result.cpu().array) for result in results])
"""
N = 40_000
"""Numbers of 4 bytes, above the limit of small copies."""


class Seen:
    """A program that ran plainly and then with the lines marked ``# pin`` redirected."""

    def __init__(
        self, folder: Path, text: str, *, plan: dict[str, Any] | None = None, lines: Sequence[int] | None = None
    ) -> None:
        path = folder / "program.py"
        path.write_text(PRELUDE + text + "\nprint(gpu_model.sent, file=sys.stderr)\n")
        marked = [n for n, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# pin")]
        chosen = {
            "lines": [(str(path), line) for line in (marked if lines is None else lines)],
            "libraries": library_folders(), "large_bytes": 65536,
            "all_loaders": False, "most_bytes": 1 << 24, **(plan or {}),
        }  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": f"{PACKAGES}"}
        plain, done = (
            subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, check=False)
            for command in ([path], ["-c", START, folder, json.dumps(chosen), path])
        )
        assert plain.returncode == 0, plain.stderr
        assert (done.returncode, done.stdout) == (0, plain.stdout), done.stderr
        self.sent = eval(done.stderr)  # noqa: S307 - what the program printed
        self.account = json.loads((folder / ACCOUNT).read_text())
        self.lines = self.account["lines"]


def test_every_call_of_pytorch_copies_from_pinned_memory_and_its_source_may_change_at_once(tmp_path: Path) -> None:
    text = f"""
device = torch.Tensor(np.zeros({N}, np.float32), "cuda")
for turn in range(5):
    results = []
    for step in range(3):
        source = torch.tensor(np.full({N}, turn + step / 8))
        results += [
            source.to("cuda"),  # pin
            source.to(device, None, True),  # pin
            source.to("cuda:0", torch.float64),  # pin
            source.cuda(),  # pin
            source[: {N} // 2].cuda(0, non_blocking=True),  # pin
            torch.Tensor(np.zeros((2, {N}), np.float32), "cuda").copy_(other=source),  # pin
            torch.Tensor(np.zeros({N}, np.float32), "cuda").copy_(source, True),  # pin
        ]
        source.array[:] = -1
    show(*results)
"""
    seen = Seen(tmp_path, text)
    assert {memory for memory, _ in seen.sent} == {"pinned"}
    assert [line["copies"] for line in seen.lines] == 7 * [15]
    assert [line["bytes"] for line in seen.lines] == [
        15 * 4 * N, 15 * 4 * N, 15 * 4 * N, 15 * 4 * N, 15 * 2 * N, 15 * 4 * N, 15 * 4 * N,
    ]  # fmt: skip
    assert all(line["gather_ns"] > 0 and line["pinned_bytes"] >= 1 << 20 for line in seen.lines)


def test_a_layout_is_kept_and_a_copy_that_waited_still_waits_where_the_program_has_streams(tmp_path: Path) -> None:
    text = f"""
matrix = np.arange({N}, dtype=np.float32).reshape(200, -1)
for turned in (matrix.T, matrix[:, ::2]):
    moved = torch.Tensor(turned).cuda()  # pin
    print(moved.stride())
    show(moved)
source = torch.tensor(np.ones({N}))
torch.cuda.Stream()
moved = source.cuda()  # pin
print(moved.array[:3])  # read by another stream
"""
    assert [line["copies"] for line in Seen(tmp_path, text).lines] == [2, 1]


def test_other_lines_small_copies_and_pinned_memory_stay_as_they_are(tmp_path: Path) -> None:
    text = f"""
source = torch.tensor(np.ones({N}))
def move(): return source.cuda()
def again(): return move()
show(move())
show(again())  # pin
for each in (torch.tensor([1.0, 2.0]), torch.empty({N}, pin_memory=True), source):
    each.array[:] = 7
    show(each.to("cuda"))  # pin
"""
    seen = Seen(tmp_path, text)
    assert seen.sent == [
        ("pageable", 4 * N),
        ("pageable", 4 * N),
        ("pageable", 8),
        ("pinned", 4 * N),
        ("pinned", 4 * N),
    ]
    assert [line["copies"] for line in seen.lines] == [0, 1]


def test_why_a_copy_is_left_is_counted_with_its_bytes(tmp_path: Path) -> None:
    text = f"""
wanted, large = torch.tensor(np.ones({N})), torch.tensor(np.ones(1 << 23))
wanted.requires_grad = True
for each in (wanted, large):
    show(each.cuda())  # pin
def full(*_, **__): raise MemoryError("no more")
torch.empty = full
show(torch.tensor(np.ones({N})).cuda())  # pin
"""
    first, second = Seen(tmp_path, text).lines
    assert first["left"] == {"a gradient is needed": [1, 4 * N], "more would be pinned than may be": [1, 1 << 25]}
    assert second["left"] == {"MemoryError: no more": [1, 4 * N]}


def test_a_tensor_of_another_kind_stays_as_it_is_and_its_class_knows_the_methods(tmp_path: Path) -> None:
    text = f"""
import pickle
class Own(torch.Tensor):
    @property
    def nbytes(self): raise ValueError("there are no bytes yet")
show(Own(np.ones({N})).cuda())  # pin
print(torch.Tensor.cuda in torch.KNOWN, torch.Tensor.cuda in set(torch.KNOWN), torch.Tensor.to in torch.KNOWN)
print(pickle.loads(pickle.dumps(torch.Tensor.cuda)) == torch.Tensor.cuda)
print(torch.Tensor.cuda.__name__, torch.Tensor.cuda(torch.tensor([1.0])).cpu().array)
torch.Tensor.nbytes = property(lambda self: self.array.nbytes if self.layout is torch.strided else no_bytes())
sparse = torch.tensor(np.ones({N}))
sparse.layout = "sparse"
show(sparse.cuda(), sparse.to("cuda"), sparse.to("cpu"))  # pin
show(torch.tensor(np.zeros({N})).cuda().copy_(sparse))  # pin
"""
    own, sparse, copied = Seen(tmp_path, text).lines
    assert [(line["copies"], line["left"]) for line in (own, sparse, copied)] == [(0, {}), (0, {}), (1, {})]


def test_a_dataloader_pins_its_batches_where_it_is_made_or_iterated_over(tmp_path: Path) -> None:
    text = f"""
def loader():
    return DataLoader([np.full({N}, step, np.float32) for step in range(3)])
def train(batches):
    for batch in batches:
        show(batch.cuda())  # pin
def check(batches):
    for batch in batches:
        show(batch.cuda())
train(loader())
check(loader())
made = DataLoader([np.ones({N}, np.float32)])  # pin
check(made)
"""
    seen = Seen(tmp_path, text)
    assert [memory for memory, _ in seen.sent] == 3 * ["pinned"] + 3 * ["pageable"] + ["pinned"]
    assert [(loader["line"], loader["left"]) for loader in seen.account["loaders"]] == [(9, {}), (12, {})]
    assert [line["copies"] for line in seen.lines] == [0, 0]
    assert {memory for memory, _ in Seen(tmp_path, text, plan={"all_loaders": True}, lines=[]).sent} == {"pinned"}


def test_what_a_dataloader_cannot_pin_stays_as_it_is_and_is_counted_beside_the_line_that_iterates(
    tmp_path: Path,
) -> None:
    text = f"""
def half(batch): return torch.Tensor(batch).cuda(), torch.Tensor(batch)
batches = [np.full({N}, step, np.float32) for step in range(3)]
for workers in range(2):
    loader = DataLoader(batches, workers, half)
    for epoch in range(2):
        iterator = iter(loader)
        for here, there in zip(iterator, DataLoader(batches)):
            show(here[0], there)
            here[1].cuda()
    print(loader.pin_memory)
try:
    for own in DataLoader(batches, 0, half, True): pass
except RuntimeError as error:
    print(error)
"""
    seen = Seen(tmp_path, text, plan={"all_loaders": True})
    reason = "RuntimeError: only dense CPU tensors can be pinned"
    assert [(loader["line"], loader["left"]) for loader in seen.account["loaders"]] == [
        (11, {reason: [12, 0]}),
        (12, {}),
    ]
    assert [memory for memory, _ in seen.sent].count("pinned") == 12


def test_a_dataloader_that_takes_the_place_of_one_that_is_gone_is_not_taken_for_it(tmp_path: Path) -> None:
    text = f"""
def check(batches):
    for batch in batches: batch.cuda()
batches = [np.ones({N}, np.float32)]
for _ in range(1000):
    loader = DataLoader([])  # pin
    place = id(loader)
    del loader
    other = DataLoader(batches)
    if id(other) == place: break
else: sys.exit("none took its place")
check(other)
"""
    assert [memory for memory, _ in Seen(tmp_path, text).sent] == ["pageable"]


def test_cupy_s_arrays_are_set_from_pinned_memory(tmp_path: Path) -> None:
    text = f"""
import importlib.util
print([importlib.util.find_spec("cupy") is not None for _ in range(2)])  # found, and not executed
import cupy
for order in "CF":
    source = np.asarray(np.arange({N}, dtype=np.float32).reshape(200, -1), order=order)
    arrays = [cupy.ndarray(source.shape, source.dtype, order) for _ in range(5)]
    for step, each in enumerate(arrays):
        source += 1
        each.set(source)  # pin
    print([array.get()[:2, :2].tolist() for array in arrays])
    large = np.asarray(np.arange(1 << 21, dtype=np.float32).reshape(1024, -1), order=order)
    array = cupy.ndarray(large.shape, large.dtype, order)
    array.set(large)  # pin
    print((array.get() == large).all())
try:
    arrays[0].set(np.ones({N}, np.float32))  # pin
except ValueError as error:
    print(error)
"""
    seen = Seen(tmp_path, text)
    assert {memory for memory, _ in seen.sent} == {"pinned"}
    assert [line["copies"] for line in seen.lines] == [10, 2, 0]


def test_nothing_is_imported_for_the_program_and_its_account_survives_os_exit(tmp_path: Path) -> None:
    spool, path = tmp_path / "spool", tmp_path / "program.py"
    spool.mkdir(0o700)
    plan = {"lines": [(str(path), 1)], "libraries": library_folders(), "large_bytes": 1, "all_loaders": True,
            "most_bytes": 1}  # fmt: skip

    def ended(text: str) -> tuple[int, str, str]:
        path.write_text(text)
        command = [sys.executable, "-c", START, spool, json.dumps(plan), path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    text = "import os, sys\nprint({'numpy', 'torch', 'cupy'} & set(sys.modules), flush=True)\nos._exit(0)"
    assert ended(text) == (0, "set()\n", "")
    assert json.loads((spool / ACCOUNT).read_text())["lines"][0]["copies"] == 0
    assert ended(f"import os, shutil\nshutil.rmtree({str(spool)!r})\nos._exit(4)") == (4, "", "")  # nowhere to write


class Gpu:
    """Passes events when it is asked to."""

    def __init__(self) -> None:
        self.passed: set[int] = set()
        self.waited: list[int] = []
        self.events = iter(range(1000))
        self.now_ns = self.wait_ns = 0

    def wait(self, event: int) -> None:
        self.waited.append(event)
        self.now_ns += self.wait_ns
        self.passed |= set(range(event + 1))

    def clock(self, patch: pytest.MonkeyPatch, pin_ns: int) -> Callable[[int], bytearray]:
        """What pins, in so much time: the ring counts none but that and ``wait_ns``."""
        patch.setattr(redirect, "time", SimpleNamespace(perf_counter_ns=lambda: self.now_ns))

        def pin(size: int) -> bytearray:
            self.now_ns += pin_ns
            return bytearray(1)

        return pin

    def ring(self, line: Line, budget: int = 1 << 30, allocate: Callable[[int], Any] = bytearray) -> Ring:
        return Ring(line, Budget(budget), allocate, self.passed.__contains__, self.wait)

    def use(self, ring: Ring, size: int, passes: bool = False) -> Buffer:
        """One copy; ``passes``: the GPU has read it before the next."""
        buffer = ring.take(size)
        assert buffer is not None
        assert buffer.size >= size
        buffer.event = next(self.events)
        ring.give(buffer, size)
        if passes:
            self.passed.add(buffer.event)
        return buffer


MIB = 1 << 20


def test_one_buffer_serves_a_program_that_waits_for_its_copies() -> None:
    gpu, line = Gpu(), Line("a.py", 1)
    ring = gpu.ring(line)
    assert len({id(gpu.use(ring, 3 * MIB, passes=True)) for _ in range(9)}) == 1
    assert (line.pinned_bytes, gpu.waited) == (4 * MIB, [])


def test_two_buffers_are_used_in_turn_by_one_that_does_not_and_the_older_copy_is_waited_for() -> None:
    gpu, line = Gpu(), Line("a.py", 1)
    ring = gpu.ring(line)
    used = [gpu.use(ring, MIB) for _ in range(6)]
    assert used[0::2] == 3 * [used[0]]
    assert used[1::2] == 3 * [used[1]]
    assert gpu.waited == [0, 1, 2, 3]
    assert line.wait_ns > 0


@pytest.mark.parametrize(("pin_ns", "sizes", "more"), [(5, 1, 1), (6, 1, 0), (5, 8, 1)])
def test_one_buffer_more_is_made_where_waits_left_the_gpu_without_copies_as_long_as_pinning_takes(
    pin_ns: int, sizes: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinning one takes no longer because smaller ones were replaced."""
    gpu, line = Gpu(), Line("a.py", 1)
    ring = gpu.ring(line, allocate=gpu.clock(monkeypatch, pin_ns=pin_ns))
    gpu.wait_ns = 5
    for power in range(sizes):
        for _ in range(2):
            gpu.use(ring, MIB << power)
    size, pinned = MIB << (sizes - 1), line.pinned_bytes
    buffer = ring.take(size)
    assert buffer is not None
    gpu.passed.add(2 * sizes - 1)  # while it was filled the other copy ended, too
    buffer.event = next(gpu.events)
    ring.give(buffer, size)
    gpu.use(ring, size)
    gpu.use(ring, size)
    assert line.pinned_bytes == pinned + more * size


def test_a_larger_buffer_takes_the_place_of_a_smaller_one() -> None:
    gpu, line = Gpu(), Line("a.py", 1)
    ring = gpu.ring(line, budget=8 * MIB)  # which the small ones give back
    for size in (1, 1, 4, 4, 1):
        gpu.use(ring, size * MIB)
    assert gpu.waited == [0, 1, 2]
    assert line.pinned_bytes == 10 * MIB


def test_a_buffer_that_could_not_be_filled_is_used_again() -> None:
    line = Line("own.py", 1)
    ring = Gpu().ring(line)

    def fail(_: Buffer) -> None:
        raise MemoryError

    for _ in range(3):
        assert ring.stage(MIB, 7, fail) is None
    assert (line.pinned_bytes, line.left) == (MIB, {"MemoryError: ": [3, 21]})


def test_no_more_is_pinned_than_may_be() -> None:
    line = Line("a.py", 1)
    ring = Gpu().ring(line, budget=3 * MIB)
    assert ring.take(4 * MIB) is None
    assert ring.take(2 * MIB) is not None
    assert ring.take(2 * MIB) is None
    assert line.pinned_bytes == 2 * MIB


def test_what_could_not_be_pinned_is_not_counted() -> None:
    def fail(size: int) -> None:
        raise MemoryError

    budget, line = Budget(MIB), Line("a.py", 1)
    ring = Ring(line, budget, fail, bool, bool)
    with pytest.raises(MemoryError):
        ring.take(MIB)
    assert budget.take(MIB)
    assert line.pinned_bytes == 0
