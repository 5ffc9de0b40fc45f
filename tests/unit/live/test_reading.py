"""Who holds pinned memory, in one sentence, on captured and on synthetic hosts."""

from __future__ import annotations

import pytest

from pinscope.live.findings import gpu_verdict, snapshot_findings, snapshot_verdict
from pinscope.records.figure import at_most
from pinscope.records.snapshot import GpuProcess, Holder, HostTotals, Unreadable
from tests.data.synthetic_snapshot import GIB, device, holder, host, snapshot

NOBODY = "No process is seen to have pinned memory"
UNCOUNTED = host(pinned_bytes=None)


@pytest.mark.parametrize(
    ("holders", "totals", "verdict"),
    [
        (
            (), host(total_bytes=64 * GIB, pinned_bytes=16 * GIB),
            "On this host 16 GiB (25.0 % of its memory) is pinned, by no process that is seen.",
        ),
        ((), host(pinned_bytes=0), "Nothing is pinned on this host."),
        ((holder(7, host_alloc_bytes=3 * GIB),), UNCOUNTED, "python (pid 7) has 3 GiB pinned."),
        (
            (
                holder(7, host_alloc_bytes=GIB),
                holder(8, host_alloc_bytes=3 * GIB, estimates={"host_alloc_bytes": at_most("shared memory is in it")}),
            ),
            UNCOUNTED, "2 processes have pinned memory, python (pid 8) most (at most 3 GiB).",
        ),
        ((holder(7, host_alloc_bytes=0, registered_bytes=None, locked_bytes=GIB),), UNCOUNTED, f"{NOBODY}."),
    ],
    ids=["nobody", "nothing", "one", "several", "only locked"],
)  # fmt: skip
def test_the_process_that_holds_most_is_named_with_what_the_host_counts(
    holders: tuple[Holder, ...], totals: HostTotals, verdict: str
) -> None:
    assert snapshot_verdict(snapshot(holders=holders, host=totals)) == verdict


def test_of_a_gpu_it_names_the_user_that_holds_most() -> None:
    small, other = holder(8, host_alloc_bytes=GIB), holder(9, gpus=())
    seen = snapshot(holders=(holder(7, host_alloc_bytes=3 * GIB), small, other))
    assert gpu_verdict(seen, 0) == "2 processes use it now, python (pid 7) has the most pinned memory: 3 GiB."


def test_of_a_gpu_whose_users_hold_nothing_it_says_how_many_use_it() -> None:
    idle = holder(7, host_alloc_bytes=0)
    assert gpu_verdict(snapshot(holders=(idle,)), 0) == "A process uses it now, no pinned memory of it is seen."
    hidden = device(processes=(GpuProcess(pid=1, memory_bytes=None), GpuProcess(pid=2, memory_bytes=None)))
    seen = snapshot(holders=(), devices=(hidden,))
    assert gpu_verdict(seen, 0) == "2 processes use it now, no pinned memory of them is seen."


def test_in_a_container_what_is_outside_is_named_as_outside() -> None:
    """NVML shows no process of other pid namespaces, and the kernel's count of pins is the whole host's."""
    inside = {"holders": (), "host": host(total_bytes=64 * GIB, pinned_bytes=16 * GIB), "own_pids": True}
    busy = device(unattributed_bytes=40 * GIB, memory_used_bytes=40 * GIB, page_table_bytes=0)
    seen = snapshot(**inside, devices=(busy,), unreadable=(Unreadable(what="", reason="", hides_holders=True),))
    assert snapshot_verdict(seen).endswith("is pinned, by no process of this container.")
    assert gpu_verdict(seen, 0) == "No process of this container uses it now; of its memory, 40 GiB are used."
    (finding,) = (one for one in snapshot_findings(seen) if one.rule == "unattributed-gpu-memory")
    assert (finding.severity, "outside this container" in finding.detail) == ("note", True)
