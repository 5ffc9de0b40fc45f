"""Where snapshots come from: a series shares what it learned, and nothing stays behind; and what stands between one and
the whole host is said, with what would help."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pinscope.errors import NotPossible
from pinscope.live.sampler import GpuWatch
from pinscope.live.source import LiveSource, open_source, snapshot
from pinscope.probes import process, process_scan
from pinscope.probes.gpu import process_on_gpu
from pinscope.probes.proc import Answer
from tests.data.gpu_fake import FakeNvml
from tests.data.synthetic_gpu import busy_h200, figures, idle_h200
from tests.data.synthetic_host import BOOTED, SyntheticHost, maps_text, zero

MIB, GIB = 2**20, 2**30


def watch(*pids: int) -> GpuWatch:
    """Over one GPU with a context of each of these."""
    gpus = [busy_h200(2 * MIB, *(process_on_gpu(pid, 520 * MIB) for pid in pids))]
    return GpuWatch(lambda: FakeNvml(gpus=gpus))


def test_the_first_snapshot_already_has_the_gpus(host: SyntheticHost) -> None:
    pid = host.cuda_process([zero(GIB, 1)])
    with LiveSource(host.proc, watch(pid)) as source:
        found = source.take()
    assert [use.memory_bytes for use in found.holders[0].gpus] == [520 * MIB]
    assert found.devices[0].page_table_bytes == 2 * MIB


def test_it_can_be_entered_again(host: SyntheticHost) -> None:
    source = LiveSource(host.proc, watch())
    for _ in range(2):
        with source:
            assert len(source.take().devices) == 1
        assert source.take().devices == ()


def test_maps_are_parsed_again_only_if_their_text_changed(host: SyntheticHost, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = host.cuda_process([zero(GIB, 1)])
    parsed: list[str] = []

    def parse(text: str) -> process.MemoryMaps:
        parsed.append(text)
        return process.parse_maps(text)

    monkeypatch.setattr(process_scan, "parse_maps", parse)
    with LiveSource(host.proc) as source:
        assert [source.take().holders[0].host_alloc_bytes for _ in range(3)] == [GIB] * 3
        assert len(parsed) == 1
        # Another buffer of the same size: status stays as it was to the last digit.
        host.write(f"proc/{pid}/maps", maps_text([zero(GIB - MIB, 2), zero(MIB, 3)]))
        assert len(source.take().holders[0].allocations) == 2
        assert len(parsed) == 2


def test_a_clock_that_is_set_makes_nobody_another_process(host: SyntheticHost) -> None:
    host.cuda_process([zero(GIB, 1)])
    with LiveSource(host.proc) as source:
        before = source.take()
        host.write("proc/stat", f"btime {BOOTED + 3600}\n")
        after = source.take()
    assert before.holders[0].started_at is not None
    assert before.holders[0].started_at == after.holders[0].started_at


class Refuses:
    """A tracker that this machine cannot have."""

    def start(self) -> None:
        raise NotPossible("this kernel has no uprobes")

    def stop(self) -> None:
        raise AssertionError("it was never started")


def test_where_the_probe_is_refused_nothing_runs_on(host: SyntheticHost) -> None:
    before = set(threading.enumerate())
    with pytest.raises(NotPossible, match="no uprobes"), LiveSource(host.proc, watch(), Refuses()):  # type: ignore[arg-type]
        pass
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize(("asked", "given"), [(0.1, 1.0), (2.0, 2.0), (3600.0, 5.0)])
def test_the_driver_is_asked_neither_too_often_nor_too_seldom(
    asked: float, given: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace: dict[str, float] = {}
    monkeypatch.setattr("pinscope.live.source.GpuWatch", pace.update)
    open_source(interval_seconds=asked)
    assert pace == {"interval_seconds": given}


def gaps(host: SyntheticHost, gpus: bool = True) -> list[str]:
    found = snapshot(host.proc, figures(host.proc, [idle_h200()]) if gpus else Answer.missing("no driver"))
    assert all(gap.reason for gap in found.unreadable)
    return [gap.what for gap in found.unreadable]


def test_root_on_a_complete_host_misses_nothing(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path)
    host.process()
    assert gaps(host) == []


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("proc/vmstat", "pswpin 0\n", "Pinned memory of the whole host"),
        (
            "proc/self/mountinfo", "30 20 0:26 / /proc rw - proc proc rw,hidepid=invisible\n",
            "Processes of other users",
        ),
        (
            "proc/sys/kernel/osrelease", "6.6.87.2-microsoft-standard-WSL2\n",
            "Pinned memory of Windows and of other WSL distributions",
        ),
    ],
)  # fmt: skip
def test_what_a_host_hides_is_said(tmp_path: Path, path: str, text: str, expected: str) -> None:
    host = SyntheticHost(tmp_path)
    host.process()
    host.write(path, text)
    assert gaps(host) == [expected]


def test_processes_that_are_hidden_may_be_holders(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path, pinned_bytes=0)
    host.write("proc/self/mountinfo", "30 20 0:26 / /proc rw - proc proc rw,hidepid=2\n")
    host.process()
    found = snapshot(host.proc)
    assert [gap.hides_holders for gap in found.unreadable if gap.what == "Processes of other users"] == [True]
    assert found.host.estimates["explained_bytes"].text.startswith("at least")
