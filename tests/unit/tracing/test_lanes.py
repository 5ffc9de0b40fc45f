"""Calls of the driver within a call of a library: noted without Python, and no other than Python notes them."""

from __future__ import annotations

import struct
import sys
import threading
from ctypes import addressof, c_uint64, cast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pinscope.tracing.cupti_library import DRIVER
from pinscope.tracing.error_filter import error_filter
from pinscope.tracing.host_calls import _crosses
from pinscope.tracing.lanes import MOST_CALLS, Lanes, choose
from pinscope.tracing.later import Later
from pinscope.tracing.mapped_file import LANE_ENTRY, NEXT, RECEIVE
from pinscope.tracing.spool import Scope
from tests.data.fake_cupti import FIRST_LINE, TORCH
from tests.unit.tracing.test_error_filter import CALLBACK, Data
from tests.unit.tracing.test_recorder import ALL, Recorded, record

COPY, OTHER = 277, 131
SMALL = 9
"""Stack of a small copy."""


class Here:
    """Lanes in this process, and what came of calls: those that were entered, and those that Python was called for."""

    def __init__(self) -> None:
        self._entered: list[tuple[int, int, int]] = []
        self.by_python: list[int] = []
        followed = CALLBACK(lambda _user, _domain, number, _data: self.by_python.append(number))
        chosen = error_filter(followed, followed)
        if chosen is None:
            pytest.skip("not x86-64, or no program may make code here")
        for number in (COPY, OTHER):
            choose(chosen.notes.followed, number)
        choose(chosen.notes.in_lanes, COPY)
        self.copied: list[tuple[int, ...]] = []
        self.stack = 7
        self._late = Later()
        data: Any = SimpleNamespace(
            known={7}, note=lambda number, copied, *_: self.copied.append(copied), to_gpu=(), to_host=()
        )
        self.lanes = Lanes(
            chosen.notes, data, self._note, pytest.fail, self._late, lambda _: self.stack, lambda: 0, pytest.fail
        )
        self.notes = chosen.notes
        self._call, self._kept = cast(chosen.address, CALLBACK), (followed, chosen)
        self._correlation = 0

    @property
    def entered(self) -> list[tuple[int, int, int]]:
        self._late.catch_up()
        return self._entered

    def _note(self, _thread: int, stack: int, _range: int, noted: bytes) -> None:
        entry = LANE_ENTRY.pack(0, stack, 0, noted)
        for call in struct.iter_unpack("<2Q4q3Q", entry[12:]):
            if call[0]:
                assert (0, 0) < call[2:4] <= call[4:6]
                self._entered.append((call[0], call[1], stack))

    def open(self, stack: int) -> None:
        self.stack = stack
        self.lanes.open_large(sys._getframe())

    def call(self, number: int = COPY, sites: tuple[int, ...] = (0, 1), *parameters: int) -> None:
        self._correlation += 1
        words = (c_uint64 * 3)(*parameters)
        for site in sites:
            data = Data(site=site, correlation=self._correlation, params=addressof(words) if parameters else None)
            self._call(None, DRIVER, number, addressof(data))


@pytest.fixture
def here() -> Here:
    return Here()


def test_calls_in_a_lane_are_entered_with_its_stack_once_it_is_closed(here: Here) -> None:
    here.call()
    here.open(7)
    here.call(COPY, (0, 1), 1 << 40, 4096, 1 << 20)
    here.call()
    assert (here.by_python, here.entered) == ([COPY] * 2, [])
    here.lanes.close()
    here.call()
    assert (here.by_python, here.entered) == ([COPY] * 4, [(2, COPY, 7), (3, COPY, 7)])
    assert here.copied[0] == (1 << 40, 4096, 1 << 20)


def test_python_is_called_for_other_functions_for_unknown_stacks_and_for_more_than_a_lane_holds(here: Here) -> None:
    here.open(7)
    for _ in range(MOST_CALLS):
        here.call()
    here.call(OTHER)
    assert here.by_python == [OTHER] * 2
    here.call()
    assert here.by_python == [OTHER] * 2 + [COPY] * 2
    here.lanes.close()
    assert len(here.entered) == MOST_CALLS
    here.open(8)
    here.call()
    assert (len(here.by_python), bool(here.lanes)) == (6, False)


def test_python_is_called_from_where_it_is_needed_and_what_was_noted_is_entered(here: Here) -> None:
    here.open(7)
    here.call()
    here.lanes.stop()
    here.call()
    here.lanes.close()
    assert (here.by_python, here.entered) == ([COPY] * 2, [(1, COPY, 7)])


def test_a_small_copy_has_a_lane_where_python_was_called_with_its_stack_before(here: Here) -> None:
    here.notes.is_on = 1  # then begins are noted as well
    for seen in ((), {SMALL}):
        here.lanes.seen.update(seen)
        here.stack = SMALL
        here.lanes.open_small(sys._getframe())
        here.call()
        here.lanes.close()
    assert (here.by_python, here.entered, here.copied) == ([COPY], [(2, COPY, SMALL)], [])


@pytest.mark.parametrize(
    ("is_cpu", "places"), [(True, ("cuda", "cuda:1", SimpleNamespace(type="cuda"))), (False, ("cpu",))]
)
def test_only_calls_that_cross_between_host_and_gpu_are_taken_for_small_copies(
    is_cpu: bool, places: tuple[Any, ...]
) -> None:
    """Of ``to``; what stays costs a program next to nothing, and would cost much more with a lane."""
    tensors = [SimpleNamespace(is_cpu=each) for each in (is_cpu, not is_cpu)]
    assert [[_crosses(tensor, (tensor, place)) for place in places] for tensor in tensors] == [
        [True] * len(places), [False] * len(places),
    ]  # fmt: skip
    assert not any(_crosses(tensors[0], (tensors[0], *given)) for given in ((), (0,), (float,)))


def test_a_lane_is_one_thread_s(here: Here) -> None:
    """Of threads that share a place the first has it."""
    here.open(7)
    here.notes.lanes[threading.get_ident() >> 12 & 63].thread ^= 1 << 40  # as of another one
    here.call()
    assert here.by_python == [COPY] * 2
    here.open(8)
    here.call()
    assert here.by_python == [COPY] * 4


def test_where_the_recording_ends_meanwhile_calls_are_cut_and_each_is_named_once(here: Here) -> None:
    here.open(7)
    here.call()
    here.call()
    here.lanes.close()
    here.open(7)
    here.call()
    here.call(COPY, (0,))
    assert [correlation for correlation, _ in here.lanes.cut()] == [3, 4]
    here.lanes.close()
    assert len(here.entered) == 2


STEPS = """
import torch
tensor, small = torch.Tensor(), torch.Tensor()
small.nbytes, small.is_cpu, small.is_cuda = 64, False, True
def work():
    for step in range(30):
        tensor.to("cuda")
        tensor.cuda()
        small.cpu()
        copy(64, PAGEABLE, DEVICE)
together = threading.Barrier(3)
def run(): together.wait(); work()
threads = [threading.Thread(target=run) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
def count(frame, event, argument):
    global taken
    taken += event == "call" and frame.f_code.co_name == "_call"
taken = 0
sys.settrace(count); work(); sys.settrace(None)
print(taken)
"""
WITHOUT = "sys.modules['pinscope.tracing.lanes'].Lanes._take = lambda *_: None\n"


def stepped(library: Path, folder: Path, program: str, scope: Scope = ALL) -> Recorded:
    folder.mkdir()
    (folder / "torch.py").write_text(TORCH)
    seen = record(library, folder, program, scope)
    assert (seen.stderr, seen.spool.said("fault")) == ("", None)
    return seen


def kept(seen: Recorded, lines: int) -> dict[str, Any]:
    """What stands in a spool, but for times and numbers."""
    calls, stacks, ranges = seen.spool.calls(), seen.spool.stacks(), ["", *seen.spool.ranges()]
    thread = {number: place for place, number in enumerate(dict.fromkeys(calls["thread"].tolist()))}
    assert len(thread) == 4
    assert (calls["start"] <= calls["end"]).all()
    entries = [
        (call["function"], stacks[call["stack"] - 1][0][1] - FIRST_LINE - lines, ranges[call["range"]])
        for call in calls
    ]
    return {
        "records": seen.counts,
        "calls": sorted(map(str, entries)),
        "ids": len({*calls["correlation_id"].tolist()}),
        "looks": len((seen.spool.folder / "memory").read_text().splitlines()),
        "calls of the library": len(seen.spool.host_calls()),
    }


def test_what_is_kept_of_calls_in_lanes_is_what_python_keeps(library: Path, tmp_path: Path) -> None:
    """Threads of a library that names a range or does not, with calls of the program's own between."""
    with_lanes = stepped(library, tmp_path / "with", STEPS)
    without = stepped(library, tmp_path / "without", WITHOUT + STEPS)
    assert kept(with_lanes, 0) == kept(without, 1)
    assert (int(with_lanes.stdout), int(without.stdout)) == (30 * 5, 30 * 9)


LOADER = """
class _BaseDataLoaderIter:
    def __next__(self): ...
class DataLoader: ...
class _utils:
    class pin_memory:
        @staticmethod
        def _pin_memory_loop(tensor): tensor.pin_memory()
"""


def test_what_a_loader_s_thread_pins_is_not_followed(library: Path, tmp_path: Path) -> None:
    package = tmp_path / "folder" / "torch" / "utils" / "data"
    package.mkdir(parents=True)
    pinning = f"{TORCH}\nTensor.pin_memory = lambda tensor: Tensor()\n"
    (tmp_path / "folder" / "torch" / "__init__.py").write_text(pinning)
    (package / "dataloader.py").write_text(LOADER)
    program = """
import torch, torch.utils.data.dataloader as loaders
for work in (loaders._utils.pin_memory._pin_memory_loop, torch.Tensor.pin_memory):
    thread = threading.Thread(target=work, args=(torch.Tensor(),))
    thread.start()
    thread.join()
"""
    seen = record(library, tmp_path / "folder", program)
    assert (seen.stderr, seen.spool.said("fault"), len(seen.spool.host_calls())) == ("", None, 1)


def test_what_workers_send_is_noted_once_a_batch_within_the_loop_s_wait_for_it(library: Path, tmp_path: Path) -> None:
    torch = tmp_path / "folder" / "torch"
    package = torch / "utils" / "data"
    package.mkdir(parents=True)
    (torch / "__init__.py").write_text(TORCH)
    (torch / "multiprocessing").mkdir()
    (torch / "multiprocessing" / "reductions.py").write_text("""
import time
class Storage:
    def nbytes(self): return 1 << 20
def rebuild_storage_fd(*_):
    time.sleep(0.001)
    return Storage()
def rebuild_storage_filename(*_): return Storage()
""")
    receives = "import torch.multiprocessing.reductions as reductions\n" + LOADER.replace(
        "def __next__(self): ...", "def __next__(self): return [reductions.rebuild_storage_fd() for _ in range(10)]"
    )
    (package / "dataloader.py").write_text(receives)
    program = """
import torch, torch.utils.data.dataloader as loaders
iterator = object.__new__(loaders._BaseDataLoaderIter)
for _ in range(3): next(iterator)
loaders.reductions.rebuild_storage_fd()  # of a queue of the program's own
"""
    seen = record(library, tmp_path / "folder", program)
    assert (seen.stderr, seen.spool.said("fault")) == ("", None)
    calls, names = seen.spool.host_calls(), [name for name, _ in seen.spool.host_names()]
    waits, received = (calls[[names[number] == name for number in calls["name"]]] for name in (NEXT, RECEIVE))
    assert (len(waits), received["bytes"].tolist()) == (3, [10 << 20] * 3)
    assert ((waits["start"] <= received["start"]) & (received["end"] <= waits["end"])).all()
    assert (received["end"] - received["start"] >= 10_000_000).all()
    assert (received["processor"] < 10_000_000).all()


def test_a_copy_ends_though_another_thread_keeps_python_s_lock(library: Path, tmp_path: Path) -> None:
    program = """
import torch
tensor, step = torch.Tensor(), 0
def keep():
    while not (step == 5 and cuda.fake_under_way()): time.sleep(0.001)
    print(ctypes.PyDLL(os.environ["FAKE_CUPTI"]).fake_hold(6))
thread = threading.Thread(target=keep)
thread.start()
for step in range(6): tensor.copy_(tensor)
thread.join()
"""
    seen = stepped(library, tmp_path / "folder", program)
    assert (seen.stdout, len(seen.spool.calls())) == ("1\n", 6)


def test_a_call_that_a_lane_has_is_followed_to_its_end_though_the_recording_is_over(
    library: Path, tmp_path: Path
) -> None:
    program = """
import pinscope, torch
tensor, step = torch.Tensor(), 0
def work():
    global step
    for step in range(3): tensor.copy_(tensor)
thread = threading.Thread(target=work)
with pinscope.trace("part"):
    thread.start()
    while not (step == 2 and cuda.fake_under_way()): time.sleep(0.001)
thread.join()
"""
    seen = stepped(library, tmp_path / "folder", program, Scope(children=False, only_parts=True))
    calls = seen.spool.calls()
    assert len(calls) == seen.counts["MEMCPY"]
    assert (calls["function"] == COPY).all()
