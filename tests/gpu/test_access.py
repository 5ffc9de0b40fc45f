"""Ways to reach host data on a real GPU: right, as fast as the link, and nothing left behind."""

from __future__ import annotations

from itertools import product
from statistics import median
from typing import Any

import numpy as np
import pytest
from cupy.cuda import runtime

from pinscope.analysis.cells import cells
from pinscope.experiments.access.cuda_access import Accessor, Visit
from pinscope.experiments.access.experiment import Access, AccessParams
from pinscope.experiments.access.reading import Cell
from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import Harness

MIB = 2**20


def measured(lab: CudaLab, **changes: Any) -> dict[tuple[str, str, int, int], Cell]:
    """(way, pattern, spacing, uses) → its cell, of a quick run."""
    params = AccessParams.preset("cuda", quick=True).with_overrides(changes)
    rows = [row.model_dump() for row in Access().measure(params, lab, Harness())]
    assert all(row["intact"] for row in rows)
    return {(cell.way, cell.pattern, cell.spacing, cell.uses): cell for cell in cells(Cell, rows)}


def test_every_way_is_right_for_every_pattern_and_share(lab: CudaLab) -> None:
    found = measured(lab, size=4 * MIB, spacings="1,8", uses="1,3", repeats=8)
    assert len(found) == 4 * 4 * (2 + 1) + 2  # several uses of all; and the 2D copies of blocks in order


def test_zero_copy_streams_as_fast_as_the_link_and_reads_of_a_part_beat_a_copy(lab: CudaLab) -> None:
    found = measured(lab, size=256 * MIB, ways="copy,mapped,managed,prefetched", patterns="stream_read")
    mapped, copy = found["mapped", "stream_read", 1, 1], found["copy", "stream_read", 1, 1]
    assert mapped.useful_bytes_per_second > 0.7 * copy.useful_bytes_per_second
    part = found["mapped", "stream_read", 16, 1].wall_seconds.median
    assert part < 0.5 * found["copy", "stream_read", 16, 1].wall_seconds.median
    on_demand = found["managed", "stream_read", 1, 1].wall_seconds.median
    assert on_demand > found["prefetched", "stream_read", 1, 1].wall_seconds.median


def test_a_2d_copy_of_a_part_takes_the_part_alone(lab: CudaLab) -> None:
    """On an H200, 55 GB/s up to 1 block of 4, 33 GB/s from 1 of 16 on; back after a kernel wrote 1 of 16, 20 GB/s."""
    streams = "stream_read,stream_write"
    found = measured(lab, size=256 * MIB, ways="copy,copy_part", patterns=streams, spacings="1,4,16", uses="1")
    for pattern, spacing, least in (("stream_read", 4, 0.7), ("stream_read", 16, 0.4), ("stream_write", 16, 0.2)):
        whole, part = found["copy", pattern, 1, 1], found["copy_part", pattern, spacing, 1]
        assert part.useful_bytes_per_second > least * whole.useful_bytes_per_second
        assert part.wall_seconds.median < 0.5 * found["copy", pattern, spacing, 1].wall_seconds.median


def test_prefetching_what_is_overwritten_brings_no_content_to_the_gpu(lab: CudaLab) -> None:
    """On an H200, 256 MiB took 5.5 ms with content and 1.6 ms without."""
    accessor = Accessor(lab)
    if why := accessor.why_not_discard():
        pytest.skip(why)
    seconds = {}
    with accessor.managed(256 * MIB) as data, lab.stream() as stream, lab.event() as start, lab.event() as end:
        for name, move in (
            ("with content", lambda: accessor.prefetch(data, stream, to_host=False)),
            ("without", lambda: accessor.discard_and_prefetch(data, stream)),
        ):
            times = []
            for _ in range(5):
                accessor.prefetch(data, stream, to_host=True)
                stream.synchronize()
                accessor.read_pages(data)
                start.record(stream)
                move()
                end.record(stream)
                stream.synchronize()
                times.append(lab.elapsed(start, end))
            seconds[name] = median(times)
    assert seconds["without"] < 0.7 * seconds["with content"]


@pytest.mark.parametrize(("pattern", "spacing"), list(product(("stream_write", "scatter_write"), (1, 8))))
def test_exactly_the_words_that_a_visit_names_are_written(lab: CudaLab, pattern: Any, spacing: int) -> None:
    nbytes = MIB
    visit = Visit(pattern, nbytes, spacing)
    with lab.device_buffer(nbytes) as device, lab.device_buffer(8) as total, lab.stream() as stream:
        runtime.memset(device.address, 0, nbytes)
        runtime.deviceSynchronize()
        Accessor(lab).use(device.address, visit, stream, 2**63 + 1, total.address)
        stream.synchronize()
        words = np.zeros(nbytes // 8, dtype=np.uint64)
        runtime.memcpy(words.ctypes.data, device.address, nbytes, 2)
    assert np.count_nonzero(words) == visit.visits
    if pattern == "stream_write":
        blocks = np.count_nonzero(words.reshape(-1, 512), axis=1)
        assert set(blocks[::spacing]) == {512}
        assert blocks.sum() == visit.visits


def test_a_wrong_word_is_noticed(lab: CudaLab) -> None:
    with lab.device_buffer(MIB) as one, lab.device_buffer(MIB) as other, lab.stream() as stream:
        pattern = lab.fresh_pattern()
        lab.fill(one, pattern)
        lab.fill(other, pattern)
        accessor = Accessor(lab)
        assert accessor.different_words(one.address, other.address, MIB, stream) == 0
        runtime.memset(other.address + 4096, 1, 8)
        runtime.deviceSynchronize()
        assert accessor.different_words(one.address, other.address, MIB, stream) == 1


def test_all_memory_comes_back(lab: CudaLab) -> None:
    runtime.deviceSynchronize()
    before = runtime.memGetInfo()[0]
    measured(lab, size=64 * MIB, spacings="1", uses="1", patterns="stream_read")
    assert before - runtime.memGetInfo()[0] <= 4 * MIB
