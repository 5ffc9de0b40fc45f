"""Several hosts at once: figures of their exporters as they are, and one line for each that gives none."""

from __future__ import annotations

import pytest

from pinscope.cli.live_hosts import show_hosts
from pinscope.errors import InvalidParameter
from pinscope.live.sampler import History
from pinscope.monitoring import hosts
from pinscope.monitoring.hosts import addresses, read_hosts
from pinscope.monitoring.server import MetricsServer, SnapshotCollector
from tests.data.synthetic_snapshot import GIB, TAKEN_AT, device, holder, host, snapshot


def served(**changes: object) -> MetricsServer:
    seen = snapshot(
        host=host(),
        holders=(holder(pid=7, name="train", host_alloc_bytes=4 * GIB, registered_bytes=2 * GIB),),
        devices=(device(),),
    )
    history = History(latest=seen, **changes)  # type: ignore[arg-type]
    return MetricsServer(SnapshotCollector(lambda: history, lambda: TAKEN_AT), "127.0.0.1", 0)


def test_hosts_are_read_from_their_exporters(capsys: pytest.CaptureFixture[str]) -> None:
    with served() as good, served(trouble="no /proc") as bad:
        names = [server.url.split("/")[2] for server in (good, bad)]
        known, blind, away = read_hosts([*names, "127.0.0.1:1"])
        assert show_hosts(",".join([*names, "127.0.0.1:1"]), once=True, as_json=False, interval=1.0) == 1
    assert (known.problem, known.pinned_bytes, known.memory_bytes) == (None, 16 * GIB, 512 * GIB)
    assert [(one.name, one.pid, one.bytes) for one in known.holders] == [("train", "7", 6 * GIB)]
    assert blind.problem == "its exporter cannot read the host now"
    assert away.problem is not None
    assert "refused" in away.problem
    out, err = capsys.readouterr()
    assert "train" in out
    assert err.count("\n") == 2


def test_what_is_no_exporter_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ("", "<html>", "up 1\n", "pinscope_up{ 1\n"):
        monkeypatch.setattr(hosts, "_fetch", lambda _, answer=answer: answer)
        (one,) = read_hosts(["x:1"])
        assert one.problem == "what answers there is no exporter of PinScope"


def test_a_link_with_fewer_lanes_than_its_best_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "\n".join(
        [
            "pinscope_up 1",
            'pinscope_gpu_link_lanes{gpu="0"} 8',
            'pinscope_gpu_link_best_lanes{gpu="0"} 16',
            'pinscope_gpu_link_lanes{gpu="1"} 16',
            'pinscope_gpu_link_best_lanes{gpu="1"} 16',
            'pinscope_gpu_memory_unattributed_bytes{gpu="0"} 5',
            'pinscope_gpu_memory_unattributed_bytes{gpu="1"} 6',
            "",
        ]
    )
    monkeypatch.setattr(hosts, "_fetch", lambda _: text)
    (one,) = read_hosts(["x:1"])
    assert list(one.slow_links) == ["GPU 0: 8 of 16 lanes"]
    assert one.unattributed_bytes == 11
    assert one.pinned_bytes is None


def test_addresses_have_the_exporters_port_where_they_name_none() -> None:
    assert addresses("a, b:9400,[::1]:5,a") == ["a:10435", "b:9400", "[::1]:5"]
    for text in ("", "a:b", "a/b", "u@a", "a:99999"):
        with pytest.raises(InvalidParameter):
            addresses(text)
