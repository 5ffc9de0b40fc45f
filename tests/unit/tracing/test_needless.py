"""Copies that need not be: what came again or came back unchanged, as the recorder notes it of real memory and the rows
say it."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pinscope.tracing import host_data
from pinscope.tracing.host_data import HostData
from pinscope.tracing.later import Later
from pinscope.tracing.mapped_file import SpoolFolder
from pinscope.tracing.needless import needless
from tests.unit.tracing.test_line_totals import LARGE, Traced

PAGEABLE, PINNED, GPU = 1, 2, 3
TO_GPU, TO_HOST = 277, 278
FUNCTIONS = {str(TO_GPU): "cuMemcpyHtoDAsync_v2_ptsz", str(TO_HOST): "cuMemcpyDtoHAsync_v2_ptsz"}
ZEROS, ONES = -1, -2
"""As content; ones of four bytes each."""


def content(seed: int) -> Any:
    """LARGE bytes; of a seed below 1 those of another, of which a few at the end are changed."""
    if seed == ZEROS:
        return np.zeros(LARGE, np.uint8)
    if seed == ONES:
        return np.ones(LARGE // 4, np.float32).view(np.uint8)
    made = np.random.default_rng(abs(seed)).integers(0, 256, LARGE, np.uint8)
    made[-64:] += seed < 0
    return made


class Carrying(Traced):
    """A trace whose copies carry something."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.chmod(0o700)
        memory = cast(Any, SimpleNamespace(functions={}, known=set()))
        self.late = Later()
        self.data = HostData(SpoolFolder.of(folder.stat(), str(folder)), FUNCTIONS, memory, self.late)
        self.memory: dict[str, Any] = {}
        self._moment = 0

    def up(self, seed: int | None, host: str = "a", gpu: int = 1, size: int = LARGE, *, is_due: bool = True) -> None:
        """A copy to the GPU, of what is there or is put there now."""
        if seed is not None:
            self.memory.setdefault(host, np.empty(LARGE, np.uint8))[:] = content(seed)
        self._copy(TO_GPU, gpu << 40, self.memory[host].ctypes.data, size, PAGEABLE, GPU, is_due=is_due)

    def back(self, seed: int, host: str = "a", gpu: int = 1, *, is_late: bool = False, target: int = 0) -> None:
        """A copy to the host, of this data; late: it comes once the call is over, as to pinned memory."""
        there = self.memory.setdefault(host, np.zeros(LARGE, np.uint8))
        if not is_late:
            there[:] = content(seed)
        target = target or (PINNED if is_late else PAGEABLE)
        self._copy(TO_HOST, there.ctypes.data, gpu << 40, LARGE, GPU, target, later=10 * is_late)
        there[:] = content(seed)

    def _copy(
        self,
        number: int,
        target: int,
        source: int,
        size: int,
        kind: int,
        where: int,
        *,
        later: int = 0,
        is_due: bool = True,
    ) -> None:
        self._moment += 100
        call = self.call(self._moment, self._moment + 50)
        self.copy(call, self._moment, self._moment + 50 + later, size, source=kind, target=where)
        parameters = (ctypes.c_uint64 * 3)(target, source, size)
        self.data.begins(number, ctypes.addressof(parameters), call, None)
        self.memory[f"parameters {call}"] = parameters  # the next ones stand elsewhere
        if is_due and call in self.data.due:
            self.data.is_over(call)
        self.data.due.pop(call, None)

    def needless(self) -> dict[str, tuple[int, int]]:
        """Kind → copies and bytes."""
        self.late.catch_up()
        self.data.close()
        sums: dict[str, tuple[int, int]] = {}
        for row in needless(self.totals()):
            count, size = sums.get(row.kind, (0, 0))
            sums[row.kind] = count + (row.count or 0), size + (row.bytes or 0)
        return sums


@pytest.fixture
def carrying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Carrying:
    monkeypatch.setattr(host_data, "SPARE_NS", 10**11)  # a busy machine may stop us anywhere
    return Carrying(tmp_path)


@pytest.mark.parametrize(
    ("seeds", "again"),
    [
        ([7, 7, 7], 2), ([7, 8, 9], 0), ([7, 7, 8, 8], 2), ([7, 8, 7, 8], 2), ([ZEROS, ZEROS, ZEROS], 0),
        ([ONES, ONES, ONES], 0), ([7, 7, -7, 7], 0),
    ],
    ids=["the same", "new each time", "changed once", "in turn", "zeros", "ones", "changed in places"],
)  # fmt: skip
def test_what_a_line_sends_again_is_counted(seeds: list[int], again: int, carrying: Carrying) -> None:
    for seed in seeds:
        carrying.up(seed)
    assert carrying.needless() == ({"sent_again": (again, again * LARGE)} if again else {})


def test_equal_data_of_other_memory_is_sent_again_and_data_of_another_size_is_not(carrying: Carrying) -> None:
    carrying.up(7, "a")
    carrying.up(7, "b")
    carrying.up(7, "c", size=LARGE // 2)
    assert carrying.needless() == {"sent_again": (1, LARGE)}


def test_copies_that_no_sample_was_read_of_are_taken_to_be_like_the_others(carrying: Carrying) -> None:
    for number in range(20):
        carrying.up(7, is_due=number % 2 == 0)
    assert carrying.needless() == {"sent_again": (18, 18 * LARGE)}


def test_what_comes_back_as_it_went_is_counted(carrying: Carrying) -> None:
    """Into fresh memory, which is read at once, and into pinned memory, which is seen when it goes again."""
    carrying.up(7)
    carrying.back(7, "fresh")
    carrying.up(8, "b", gpu=2)
    carrying.back(8, "pinned", gpu=2, is_late=True)
    carrying.up(None, "pinned", gpu=3)
    assert carrying.needless() == {"brought_back": (2, 2 * LARGE), "sent_again": (1, LARGE)}


@pytest.mark.parametrize("seed", [8, -7], ids=["all of it", "in places"])
@pytest.mark.parametrize(
    ("is_late", "target"), [(False, PAGEABLE), (True, PINNED), (True, PAGEABLE)],
    ids=["pageable", "pinned", "pageable, where a GPU writes it itself"],
)  # fmt: skip
def test_what_the_gpu_changed_is_not_brought_back(seed: int, is_late: bool, target: int, carrying: Carrying) -> None:
    """Also into the same memory, which holds what was sent until the copy is done."""
    for _ in range(2):
        carrying.up(7, "a")
        carrying.back(seed, "a", is_late=is_late, target=target)
        carrying.up(None, "a")
    assert "brought_back" not in carrying.needless()


def test_what_the_gpu_made_is_not_brought_back(carrying: Carrying) -> None:
    carrying.up(7)
    carrying.back(7, "b", gpu=2)  # equal by chance
    carrying.up(8, "c", gpu=3)
    carrying.up(9, "c", gpu=3, is_due=False)  # nobody looked at it
    carrying.back(9, "d", gpu=3)
    assert carrying.needless() == {}


def test_memory_that_is_not_there_is_no_fault(carrying: Carrying) -> None:
    carrying.memory["nowhere"] = SimpleNamespace(ctypes=SimpleNamespace(data=4096))
    for _ in range(3):
        carrying.up(None, "nowhere")
    assert carrying.needless() == {}


def test_what_looking_takes_is_bounded(carrying: Carrying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_data, "SPARE_NS", 0)
    for _ in range(3):
        carrying.up(7)
    assert carrying.needless() == {}
