"""What stands between a snapshot and the whole host is said, with what would help."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.live.source import snapshot
from pinscope.probes.proc import Answer
from tests.data.synthetic_gpu import figures, idle_h200
from tests.data.synthetic_host import SyntheticHost


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
