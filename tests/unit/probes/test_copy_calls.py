"""A ring of copy calls, as Linux 6.18 wrote it for the stand-in of the driver's library."""

from __future__ import annotations

from pinscope.probes.copy_calls import COPY_CALLS, parse_ring, pid_and_call
from pinscope.probes.uprobes import CALLS

FIRST = "2800000003000000e873ba4019310000246b00000000000000000000007f0000000000aa00550000b80b000000000000"
SECOND = "28000000030000006e0edc4019310000246b00000b000000000000aa0055000000000000007f00007011010000000000"
GPU, HOST = 0x7F0000000000, 0x5500AA000000


def test_a_recorded_ring_gives_each_call_with_its_time_process_and_arguments() -> None:
    copies = parse_ring(bytes.fromhex(FIRST + SECOND))
    assert [(*pid_and_call(word), *arguments) for word, *arguments in copies.calls] == [
        (27428, "cuMemcpyHtoD_v2", GPU, HOST, 3000),
        (27428, "cuMemcpyDtoHAsync_v2_ptsz", HOST, GPU, 70000),
    ]
    assert copies.nanoseconds == [53984529904616, 53984532106862]


def test_a_call_that_is_being_written_and_those_behind_it_wait() -> None:
    busy = "28000080" + FIRST[8:]
    assert len(parse_ring(bytes.fromhex(SECOND + busy + SECOND)).calls) == 1
    assert parse_ring(b"").calls == []


def test_each_call_goes_one_way_and_pins_nothing() -> None:
    ways = {way: {call for call, goes in COPY_CALLS.items() if goes == way} for way in COPY_CALLS.values()}
    assert {"cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2", "cuMemcpyHtoDAsync_v2_ptsz"} <= ways["h2d"]
    assert {"cuMemcpyDtoH_v2", "cuMemcpyDtoH_v2_ptds"} <= ways["d2h"]
    assert {"cuMemcpy", "cuMemcpy_ptds", "cuMemcpyAsync", "cuMemcpyAsync_ptsz"} <= ways["by address"]
    assert {"cuMemcpy2D_v2", "cuMemcpyBatchAsync", "cuGraphLaunch_ptsz"} <= ways["uncounted"]
    assert not COPY_CALLS.keys() & CALLS.keys()
