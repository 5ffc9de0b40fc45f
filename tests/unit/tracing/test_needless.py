"""Copies that need not be: what came again or came back unchanged, and one block in pieces, of traces that are made
up."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from pinscope.tracing.host_data import DATA, UNIFORM, VARIED, HostData
from pinscope.tracing.mapped_file import SpoolFolder
from pinscope.tracing.needless import CopiedData
from tests.unit.tracing.test_line_totals import LARGE, Traced

PAGEABLE, PINNED, GPU = 1, 2, 3
FUNCTIONS = {"277": "cuMemcpyHtoDAsync_v2_ptsz"}


class Carrying(Traced):
    """A trace whose copies carry something. A sample of 0: none was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._carried: list[tuple[int, ...]] = []

    def up(self, sample: int, host: int = 1 << 20, gpu: int = 1 << 40, size: int = LARGE, kind: int = VARIED) -> None:
        """A copy to the GPU."""
        self._carry(sample, kind, host, gpu, size, target=GPU)

    def back(self, sample: int, host: int = 1 << 20, gpu: int = 1 << 40, *, is_late: bool = False) -> None:
        """A copy to the host; late: its call returned before it was over."""
        self._carry(sample, VARIED, host, gpu, LARGE, target=PINNED if is_late else PAGEABLE, over=50 * is_late)

    def _carry(self, sample: int, kind: int, host: int, gpu: int, size: int, target: int, over: int = 0) -> None:
        start = 100 * len(self._carried)
        call = self.call(start, start + 50)
        self.copy(call, start, start + 50 + over, size, source=PAGEABLE if target == GPU else GPU, target=target)
        self._carried.append((call, kind if sample else 0, host, gpu, sample))

    def needless(self) -> dict[str, tuple[int, int]]:
        """Kind → copies, and of them those whose sample is uniform."""
        (self.folder / "data.000000").write_bytes(b"".join(DATA.pack(*entry) for entry in self._carried))
        counts: dict[str, tuple[int, int]] = {}
        for row in CopiedData(self.totals()).rows():
            count, uniform = counts.get(row.kind, (0, 0))
            counts[row.kind] = count + (row.count or 0), uniform + (row.uniform_count or 0)
        return counts


@pytest.fixture
def carrying(tmp_path: Path) -> Carrying:
    return Carrying(tmp_path)


@pytest.mark.parametrize(
    ("samples", "again"),
    [
        ([7, 7, 7], 2),
        ([7, 8, 9], 0),
        ([7, 7, 8, 8], 2),
        ([7, 8, 7, 8], 2),
        ([7, 0, 0, 7], 3),
        ([7, 0, 0, 8], 0),
        ([7, 7, 0, 0, 8, 0, 8], 3),
        ([7, 7, 0, 0], 1),
        ([0, 0], 0),
    ],
    ids=[
        "the same", "new each time", "changed once", "in turn", "not looked at between two that are the same",
        "changed between", "changed between, then not", "not looked at behind", "never looked at",
    ],
)  # fmt: skip
def test_what_the_same_memory_sends_unchanged_is_counted_as_far_as_samples_show(
    samples: list[int], again: int, carrying: Carrying
) -> None:
    for sample in samples:
        carrying.up(sample)
        carrying.up(sample + 100 if sample else 0, host=1 << 25, size=LARGE * 2)
    assert carrying.needless().get("sent_again", (0, 0))[0] == 2 * again


def test_equal_data_of_other_memory_is_sent_again_and_data_of_one_value_or_of_another_size_is_not(
    carrying: Carrying,
) -> None:
    carrying.up(7, host=1 << 20)
    carrying.up(7, host=1 << 22)
    carrying.up(7, host=1 << 20, size=LARGE * 2)
    for number in range(3):
        carrying.up(9, host=(1 << 25) + number * LARGE, kind=UNIFORM)
    assert carrying.needless() == {"sent_again": (1, 0)}


def test_of_data_of_one_value_it_is_said_that_its_sample_says_less(carrying: Carrying) -> None:
    for _ in range(3):
        carrying.up(7, kind=UNIFORM)
    assert carrying.needless() == {"sent_again": (2, 2)}


def test_what_comes_back_as_it_went_is_counted(carrying: Carrying) -> None:
    """Into fresh memory, which the host reads at once, and into pinned memory, which is seen when it goes again."""
    carrying.up(7)
    carrying.back(7, host=1 << 30)
    carrying.up(8, host=1 << 31, gpu=1 << 41)
    carrying.back(5, host=1 << 31, gpu=1 << 41, is_late=True)
    carrying.up(8, host=1 << 31, gpu=1 << 42)
    assert carrying.needless() == {"brought_back": (2, 0), "sent_again": (1, 0)}


def test_what_the_gpu_changed_or_made_itself_is_not_brought_back(carrying: Carrying) -> None:
    carrying.up(7)
    carrying.back(8)  # trained meanwhile
    carrying.back(7, gpu=1 << 41)  # a result that is equal by chance
    carrying.up(9, host=1 << 31, gpu=1 << 42)
    carrying.back(9, host=1 << 31, gpu=1 << 42, is_late=True)  # read before it was there
    assert carrying.needless() == {}


@pytest.mark.parametrize(("step", "is_one_block"), [(4096, True), (8192, False)])
def test_pieces_that_lie_behind_one_another_on_both_sides_are_one_block(
    step: int, is_one_block: bool, carrying: Carrying
) -> None:
    """What the recorder notes of them is what is read; 20 copies, of which all but the last 5 are of one block."""
    carrying.folder.chmod(0o700)
    data = HostData(SpoolFolder.of(carrying.folder.stat(), str(carrying.folder)), FUNCTIONS)
    parameters = (ctypes.c_uint64 * 3)()
    for number in range(20):
        call = carrying.call(100 * number, 100 * number + 50)
        carrying.copy(call, 100 * number, 100 * number + 50, 4096)
        host = (1 << 20) + number * step if number < 15 else number << 30
        parameters[:] = ((1 << 40) + number * 4096, host, 4096)
        data.note(call, 277, ctypes.addressof(parameters))
    data.close()
    rows = [(row.kind, row.count, row.bytes) for row in CopiedData(carrying.totals()).rows()]
    assert rows == ([("in_pieces", 15, 15 * 4096)] if is_one_block else [])


def test_the_samples_of_a_program_s_memory_tell_what_changed_and_read_nothing_that_is_not_there(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    data = HostData(SpoolFolder.of(tmp_path.stat(), str(tmp_path)), FUNCTIONS)
    memory = (ctypes.c_char * LARGE).from_buffer(bytearray(os.urandom(LARGE)))
    here = ctypes.addressof(memory)

    def note(address: int) -> None:
        parameters = (ctypes.c_uint64 * 3)(1 << 40, address, LARGE)
        data.note(1, 277, ctypes.addressof(parameters))

    for address in (here, here, 4096):
        note(address)
    memory[LARGE - 1 : LARGE] = bytes([memory.raw[-1] ^ 1])
    note(here)
    ctypes.memset(here, 7, LARGE)
    note(here)
    entries = list(DATA.iter_unpack((tmp_path / "data.000000").read_bytes()))[:5]
    kinds, samples = [entry[1] for entry in entries], [entry[4] for entry in entries]
    assert kinds == [VARIED, VARIED, 0, VARIED, UNIFORM]
    assert samples[0] == samples[1] != samples[3] != samples[4]
    assert samples[2] == 0


def test_memory_that_is_copied_again_and_again_is_sampled_ever_more_seldom(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    data = HostData(SpoolFolder.of(tmp_path.stat(), str(tmp_path)), FUNCTIONS)
    memory = (ctypes.c_char * LARGE)()
    parameters = (ctypes.c_uint64 * 3)(1 << 40, ctypes.addressof(memory), LARGE)
    for _ in range(1000):
        data.note(1, 277, ctypes.addressof(parameters))
    entries = list(DATA.iter_unpack((tmp_path / "data.000000").read_bytes()))[:1000]
    sampled = [number for number, entry in enumerate(entries) if entry[1]]
    assert sampled[:16] == list(range(16))
    assert len(sampled) < 100
    assert sampled[-1] > 850
