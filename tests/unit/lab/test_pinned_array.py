"""pinscope.pinned_empty with calls that take notes: when memory is unpinned, and what is refused."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import pinscope
from pinscope.errors import InvalidParameter, MeasurementFailed, NotEnoughMemory, NotPossible
from pinscope.lab.backing import OwnMemory
from pinscope.lab.pinned_array import PinnedArray, pinned_empty

MIB = 2**20


class Notes:
    """Calls that only take notes."""

    def __init__(self, can_register: bool = True, fail_at: int | None = None) -> None:
        self.can_register = can_register
        self.held: dict[int, int] = {}
        self.log: list[str] = []
        self._fail_at = fail_at
        self._allocated: dict[int, OwnMemory] = {}

    def synchronize(self) -> None:
        self.log.append("synchronize")

    def register(self, address: int, nbytes: int) -> None:
        if len(self.held) == self._fail_at:
            raise MeasurementFailed("refused")
        self.held[address] = nbytes
        self.log.append("register")

    def unregister(self, address: int) -> None:
        del self.held[address]
        self.log.append("unregister")

    def allocate(self, nbytes: int) -> int:
        mapping = OwnMemory(nbytes)
        self._allocated[mapping.address] = mapping
        self.log.append("allocate")
        return mapping.address

    def free(self, address: int) -> None:
        self._allocated.pop(address).close()
        self.log.append("free")


def test_all_of_the_array_is_registered_at_once_or_in_chunks() -> None:
    for chunk, pieces in ((None, [3 * MIB]), ("1MiB", [MIB] * 3), (2 * MIB, [2 * MIB, MIB]), ("1GiB", [3 * MIB])):
        calls = Notes()
        array = pinned_empty("3MiB", chunk=chunk, calls=calls)
        assert list(calls.held.values()) == pieces
        assert min(calls.held) == array.ctypes.data
        del array


def test_the_array_says_to_what_multiples_a_copy_must_keep() -> None:
    for given, limit, said in ((None, None, None), ("1MiB", None, MIB), ("auto", 10, 2 * MIB)):
        array = pinned_empty("8MiB", chunk=given, longest_wait=limit, calls=Notes())
        assert array.chunk == said
        assert array[:10].chunk is None
    assert pinned_empty("8MiB", chunk="auto", calls=Notes(can_register=False)).chunk is None


def test_pieces_of_a_measured_length_are_unpinned_with_the_last_user() -> None:
    calls = Notes()
    with pinned_empty("64MiB", chunk="auto", longest_wait=10, calls=calls) as array:
        assert list(calls.held.values()) == [8 * MIB] * 8
        assert array.chunk == 8 * MIB
    assert calls.held == {}
    calls = Notes()
    with pinned_empty("64MiB", chunk="auto", longest_wait=10, calls=calls) as array:
        view = array[5:]
        del array
    assert calls.held == {}
    view[0] = 1
    del view
    gc.collect()


def test_the_array_says_how_long_its_longest_call_was_and_a_warning_where_that_was_too_long() -> None:
    assert pinned_empty("8MiB", calls=Notes()).longest_call is None
    kept = pinned_empty("8MiB", chunk="auto", longest_wait=10, calls=Notes())
    assert kept.longest_call is not None
    assert 0 < kept.longest_call < 10
    with pytest.warns(RuntimeWarning, match=r"held the driver for up to .* longer than longest_wait \(1.00 ns\)"):
        assert pinned_empty("8MiB", chunk="auto", longest_wait=1e-9, calls=Notes()).chunk == 2 * MIB


def test_a_view_keeps_the_memory_pinned_and_the_last_user_unpins_it_after_the_gpu_is_done() -> None:
    calls = Notes()
    array = pinned_empty(MIB, dtype="float32", calls=calls)
    views = [np.asarray(array)[10:20], array.view("uint8")[::3], memoryview(array)]
    del array
    while views:
        gc.collect()
        assert len(calls.held) == 1
        views.pop()
    gc.collect()
    assert calls.held == {}
    assert calls.log == ["register", "synchronize", "unregister"]


def test_leaving_the_block_unpins_once_and_the_array_stays_readable() -> None:
    calls = Notes()
    with pinned_empty(shape=(3, 1024), dtype="int32", calls=calls) as array:
        array[:] = 5
        assert len(calls.held) == 1
    assert calls.held == {}
    assert int(array.sum()) == 5 * 3 * 1024
    del array
    gc.collect()
    assert calls.log.count("unregister") == 1


def test_the_block_unpins_also_after_an_error() -> None:
    calls = Notes()
    with pytest.raises(RuntimeError), pinned_empty(MIB, calls=calls):
        raise RuntimeError("broken off")
    assert calls.held == {}


@pytest.mark.parametrize("make", [lambda a: a[:10], lambda a: a.copy()], ids=["view", "copy"])
def test_a_view_or_a_copy_is_no_context_manager(make: object) -> None:
    array = pinned_empty(MIB, calls=Notes())
    with pytest.raises(TypeError, match="only the array that pinned_empty returned"), make(array):  # type: ignore[operator]
        pass


def test_results_of_arithmetic_are_ordinary_arrays() -> None:
    array = pinned_empty(MIB, calls=Notes())
    array[:] = 1
    assert isinstance(array, PinnedArray)
    assert type(array + 1) is np.ndarray
    assert type(array.sum()) is not PinnedArray


def test_arithmetic_into_the_array_leaves_it_what_it_was() -> None:
    array = whole = pinned_empty(MIB, calls=Notes())
    array[:] = 1
    array += 1
    assert array is whole
    assert np.add(array, 1, out=array) is whole
    assert set(np.unique(np.asarray(whole))) == {3}
    with array:
        pass


def test_the_shape_may_be_a_number_of_numpys() -> None:
    assert pinned_empty(shape=np.int64(5), dtype="int16", calls=Notes()).shape == (5,)
    with pytest.raises(NotEnoughMemory):
        pinned_empty(shape=(np.int64(2**33 + 1), np.int64(2**31)), calls=Notes())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_memory_is_freed_although_the_driver_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Notes(can_register=False)
    array = pinned_empty(MIB, calls=calls)

    def fail() -> None:
        raise MeasurementFailed("the driver has failed")

    monkeypatch.setattr(calls, "synchronize", fail)
    del array
    gc.collect()
    assert calls.log[-1] == "free"


def test_what_was_pinned_is_undone_when_a_later_chunk_is_refused() -> None:
    calls = Notes(fail_at=2)
    with pytest.raises(MeasurementFailed, match="refused"):
        pinned_empty("4MiB", chunk="1MiB", calls=calls)
    assert calls.held == {}


def test_memory_that_cannot_be_registered_is_allocated_and_freed_with_its_last_user() -> None:
    calls = Notes(can_register=False)
    array = pinned_empty(MIB, calls=calls)
    view = array[5:]
    del array
    gc.collect()
    assert calls.log == ["allocate"]
    view[:] = 1
    del view
    gc.collect()
    assert calls.log[-1] == "free"


def test_a_named_strategy_is_what_pins() -> None:
    calls = Notes()
    array = pinned_empty(MIB, strategy="host_alloc", calls=calls)
    del array
    gc.collect()
    assert calls.log == ["allocate", "synchronize", "free"]


def test_a_forked_child_does_not_undo_its_parents_pinning() -> None:
    script = """
import gc, os, sys
sys.path.insert(0, {root!r})
from tests.unit.lab.test_pinned_array import Notes
from pinscope.lab.pinned_array import pinned_empty
calls = Notes()
array = pinned_empty(2**20, calls=calls)
child = os.fork()
if not child:
    del array
    gc.collect()
    os._exit(len(calls.log) - 1)  # "register" alone
assert os.waitpid(child, 0)[1] == 0
print(len(calls.held))
"""
    root = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))  # noqa: PTH100, PTH118, PTH120
    done = subprocess.run(
        [sys.executable, "-c", script.format(root=root)], capture_output=True, text=True, check=False, cwd=root
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "give nbytes or shape"),
        ({"nbytes": 0}, "positive multiple of 1"),
        ({"nbytes": -8}, "positive multiple"),
        ({"nbytes": "much"}, "is not a size"),
        ({"nbytes": 10, "dtype": "float64"}, "multiple of 8, the size of float64"),
        ({"nbytes": 64, "dtype": object}, "cannot be pinned"),
        ({"nbytes": 64, "shape": (3, 3)}, "takes 9 bytes, not 64"),
        ({"shape": (-1, 4)}, "takes -4 bytes"),
        ({"nbytes": MIB, "chunk": 1000}, "positive multiple of 4096"),
        ({"nbytes": MIB, "chunk": "0"}, "positive multiple of 4096"),
        ({"nbytes": MIB, "threads": 0}, "at least 1"),
        ({"nbytes": MIB, "chunk": "automatic"}, "is not a size"),
        ({"nbytes": MIB, "longest_wait": 0.01}, 'goes with chunk="auto" only'),
        ({"nbytes": MIB, "chunk": MIB, "longest_wait": 0.01}, 'goes with chunk="auto" only'),
        ({"nbytes": MIB, "chunk": "auto", "longest_wait": 0}, "must be a positive number of seconds"),
        ({"nbytes": MIB, "chunk": "auto", "longest_wait": float("nan")}, "must be a positive number of seconds"),
        ({"nbytes": MIB, "chunk": "auto", "strategy": "thp_pipeline"}, "name no strategy with it"),
        ({"nbytes": MIB, "strategy": "thp_pipeline"}, "'thp_pipeline' does not pin in one piece; .* do: host_alloc,"),
        ({"nbytes": MIB, "strategy": "thp_register", "chunk": MIB}, "in chunks; those that do: touch_register_chunks,"),
        ({"nbytes": MIB, "strategy": "host_alloc_chunks", "chunk": MIB}, "does not pin in chunks"),
        ({"nbytes": MIB, "strategy": "fastest"}, "'fastest' does not pin in one piece"),
    ],
)
def test_sizes_that_make_no_sense_are_refused_in_one_line(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidParameter, match=complaint) as caught:
        pinned_empty(calls=Notes(), **arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_more_than_is_safe_is_refused_with_the_numbers_before_anything_is_touched() -> None:
    calls = Notes()
    with pytest.raises(NotEnoughMemory, match=r"1 PiB cannot be pinned safely: at most .* here"):
        pinned_empty(2**50, calls=calls)
    assert calls.log == []


def test_without_cupy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "pinscope.lab.cuda_memory", raising=False)
    with pytest.raises(NotPossible, match=r"-m pip install -e .*\[cuda13\]"):
        pinscope.pinned_empty(MIB)


def test_importing_pinscope_imports_neither_numpy_nor_pydantic() -> None:
    code = "import sys, pinscope; print([name for name in ('numpy', 'pydantic', 'cupy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
