"""Where the probe cannot be set: one line says why, nothing is changed, and nothing runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pinscope.errors import NotPossible
from pinscope.live.tracker import Tracker
from pinscope.probes.proc import Proc

REASONS = {"mountinfo": "tracefs is not mounted", "status": "needs root", "mountinfo sys": "no tracefs"}


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with everything but a kernel behind its files."""
    for folder in ("proc/self/ns", "tracing/instances", "sys/kernel/tracing"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    (tmp_path / "proc/self/status").write_text("CapEff:\t000001ffffffffff\n")
    (tmp_path / "tracing/uprobe_events").write_text("")
    mount = f"25 20 0:11 / {tmp_path / 'tracing'} rw - tracefs tracefs rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(mount)
    return tmp_path


@pytest.mark.parametrize("lacking", REASONS)
def test_what_stands_in_the_way_is_said_before_anything_is_done(host: Path, lacking: str) -> None:
    for name in lacking.split():
        if name == "sys":
            (host / "sys/kernel/tracing").rmdir()
        else:
            (host / "proc/self" / name).write_text("")
    library = host / "libcuda.so.1"
    library.write_text("")
    tracker = Tracker(Proc.below(host), [library])
    with pytest.raises(NotPossible, match=REASONS[lacking]) as raised:
        tracker.start()
    assert raised.value.exit_code == 3
    assert list((host / "tracing/instances").iterdir()) == []
    assert "pinscope-tracker" not in {thread.name for thread in threading.enumerate()}


def test_a_host_without_the_driver_s_library_is_told_so(host: Path) -> None:
    with pytest.raises(NotPossible, match=r"no libcuda\.so\.1"):
        Tracker(Proc.below(host), []).start()


def test_a_kernel_that_refuses_is_named_with_what_it_says(host: Path) -> None:
    library = host / "libcuda.so.1"
    library.write_text("")
    with pytest.raises(NotPossible, match="does not let PinScope trace") as raised:  # these are no kernel's files
        Tracker(Proc.below(host), [library]).start()
    assert "\n" not in str(raised.value)


def test_before_its_start_there_is_nothing_to_ask_and_nothing_to_stop() -> None:
    tracker = Tracker(libraries=[])
    tracker.stop()
    with pytest.raises(NotPossible, match="does not run"):
        tracker.registered()
