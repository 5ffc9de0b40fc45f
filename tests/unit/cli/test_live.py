"""``pinscope live``: what it prints of a host, on screens of any width, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from pinscope.cli.live_view import ONLY_LOCKED, Line, View, frame, whole
from pinscope.cli.main import main
from pinscope.live.sampler import GpuWatch
from pinscope.live.source import LiveSource
from pinscope.probes.gpu import process_on_gpu
from pinscope.records.figure import about, at_most
from pinscope.records.run import Finding
from pinscope.records.snapshot import GpuUse, Unreadable
from pinscope.records.timeline import Event
from pinscope.text import visible
from tests.data.gpu_fake import FakeNvml
from tests.data.snapshot_checks import captured
from tests.data.synthetic_gpu import busy_h200
from tests.data.synthetic_host import SyntheticHost, zero
from tests.data.synthetic_snapshot import GIB, MIB, TAKEN_AT, device, holder, host, link, snapshot
from tests.unit.cli.test_errors import refused

BROKEN_FIGURE = re.compile(r"(^|\s)[KMGT]iB\b|\d$")
"""A unit without its number before it, or a number without its unit behind it."""


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def crowd(count: int, **changes: Any) -> View:
    """A busy host: many holders, two GPUs, findings, gaps and events."""
    holders = tuple(
        holder(
            4000 + number, host_alloc_bytes=(3 * count - number) * GIB // 3, inherited_bytes=GIB * (number % 2),
            container="docker 0123456789ab" if number % 3 == 0 else None, user="someone-with-a-long-name",
            command="python -m training.with.a.long.name --option value " * 3, locked_bytes=number * MIB,
        )
        for number in range(count)
    )  # fmt: skip
    seen = snapshot(
        holders=holders,
        devices=(device(0), device(1, link=link(generation_now=1))),
        unreadable=(Unreadable(what="Open files of 3 of 90 processes", reason="they belong to other users, " * 5),),
    )
    finding = Finding(
        rule="rule",
        severity="warning",
        title="Something " * 7 + "takes 4 GiB of 140 GiB",
        detail="",
        evidence=(),
        advice="",
    )
    event = Event(
        at=TAKEN_AT, kind="grew", pid=4001, name="python", what="host_alloc", change_bytes=GIB, total_bytes=17 * GIB
    )
    return View(seen, [finding], {4003}, [event], **changes)


def test_a_frame_fits_its_screen_and_breaks_no_figure() -> None:
    for room in [60, 80, 100, 132]:
        for height in [24, 50]:
            lines = texts(frame(crowd(40, note="every 1 s"), room, height))
            assert len(lines) <= height
            assert max(map(len, lines)) <= room
            figures = [line for line in lines if "iB" in line]
            assert figures
            for line in lines:
                assert not BROKEN_FIGURE.match(line.strip()), line
                assert not re.search(r"\d (?:and|…)?$", line) or "more" in line, line
            (left_out,) = [line for line in lines if line.startswith("… and")]
            shown = sum(bool(re.match(r"\s*40\d\d ", line)) for line in lines)
            assert left_out == f"… and {40 - shown} more"
            assert shown >= 1


def test_without_a_screen_every_holder_is_told() -> None:
    for room in [60, 80, 200, None]:
        lines = texts(whole(crowd(40), room))
        assert sum(bool(re.match(r"\s*40\d\d ", line)) for line in lines) == 40
        if room is not None:
            assert max(map(len, lines)) <= room


def test_every_figure_that_is_an_estimate_carries_a_sign() -> None:
    implied = {"page_table_bytes": about("as its memory implies")}
    process = holder(
        managed_bytes=4 * MIB, estimates={"managed_bytes": at_most("address space")},
        gpus=tuple(GpuUse(index=gpu, memory_bytes=GIB, page_table_bytes=8 * MIB, estimates=implied) for gpu in (0, 1)),
    )  # fmt: skip
    totals = host(
        other_pinned_bytes=8 * GIB, estimates={"other_pinned_bytes": about("host total less what is explained")}
    )
    seen = snapshot(holders=(process,), host=totals, devices=(device(page_table_bytes=18 * MIB, estimates=implied),))
    lines = texts(whole(View(seen)))
    assert any("16 GiB by holders · ~8 GiB registered or other" in line for line in lines)
    assert any(re.search(r"^0 .* 40 MiB +~18 MiB ", line) for line in lines)
    assert re.search(r" ≤4 MiB +0,1 +2 GiB +~16 MiB +python train.py$", lines[-1])


def test_of_a_holder_whose_gpus_are_not_known_nothing_is_said_to_be_none() -> None:
    hidden = holder(1, gpus=(), missing={"gpus": "other pids"})
    lines = texts(whole(View(snapshot(holders=(holder(2), holder(3, gpus=()), hidden), devices=()))))
    assert [line.split()[-5:-2] for line in lines[-2:]] == [["-", "-", "-"], ["n/a", "n/a", "n/a"]]


def test_columns_that_say_nothing_are_left_out() -> None:
    heading = whole(View(snapshot(holders=(holder(gpus=()),), devices=())))[-2].text
    assert heading.split() == ["pid", "user", "cudaHostAlloc", "program"]
    heading = whole(View(snapshot(holders=(holder(locked_bytes=1, managed_bytes=4 * MIB),), devices=())))[-2].text
    assert heading.split()[:5] == ["pid", "user", "cudaHostAlloc", "locked", "managed"]


def test_a_real_host_fits_80_columns_with_one_line_for_each_holder() -> None:
    seen = captured(Path(__file__).parents[2] / "data" / "proc" / "h200-holders")
    lines = texts(whole(View(seen), 80))
    first = next(place for place, line in enumerate(lines) if line.startswith("756  root"))
    assert len([line for line in lines[first:] if line != ONLY_LOCKED]) == len(seen.holders) == 12
    assert max(map(len, lines)) <= 80
    assert any(re.search(r"^0 .*61\.1 MiB +~20 MiB +<0\.0100 GB/s", line) for line in lines)


STEERING, HIDING = "\x1b]0;title\x07\x9b31m\x1b[2J\n", "a\u202eb\u2066c\u200bd\u00ade\U000e0041"


@pytest.mark.parametrize("foreign", [STEERING, HIDING], ids=["steering", "hiding"])
def test_names_from_outside_cannot_steer_the_terminal_or_hide_what_stands_beside_them(foreign: str) -> None:
    process = holder(name=foreign, command=foreign, user=foreign, container=foreign)
    event = Event(at=TAKEN_AT, kind="grew", pid=1, name=foreign, what="locked", change_bytes=GIB, total_bytes=GIB)
    view = View(snapshot(holders=(process,), devices=(device(name=foreign),)), trouble=foreign, events=[event])
    for line in [*whole(view), *frame(view, 80, 30)]:
        assert visible(line.text) == line.text


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A synthetic host with one holder of 8 GiB on one GPU, as the source; gives the holder's pid."""
    made = SyntheticHost(tmp_path, pinned_bytes=9 * GIB)
    pid = made.cuda_process([zero(8 * GIB, 1)], parent=2)
    made.cuda_process([zero(GIB, 2)], name="=cmd", parent=2)
    nvml = FakeNvml(gpus=[busy_h200(18 * MIB, process_on_gpu(pid, GIB))])

    def opened(
        probe: bool = False, gpus: bool = True, interval_seconds: float = 1.0, copies_of: Collection[int] = ()
    ) -> LiveSource:
        return LiveSource(made.proc, GpuWatch(lambda: nvml, proc=made.proc) if gpus else None)

    monkeypatch.setattr("pinscope.cli.live.open_source", opened)
    monkeypatch.setattr("pinscope.cli.main.HERE", made.proc)
    return pid


def test_one_moment_as_json(busy: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--once", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"format", "taken_at", "host", "holders", "devices", "unreadable", "findings"} <= document.keys()
    first = document["holders"][0]
    assert (first["pid"], first["host_alloc_bytes"], first["locked_bytes"]) == (busy, 8 * GIB, 0)
    assert document["devices"][0]["unattributed_bytes"] == 18 * MIB
    assert {finding["rule"] for finding in document["findings"]} == {"rounding-waste"}


def test_only_the_process_asked_for_is_shown_with_the_hosts_totals(
    busy: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["live", "--once", "--json", "--pid", str(busy + 1)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["pid"] for row in document["holders"]] == [busy + 1]
    assert document["host"]["explained_bytes"] == 9 * GIB


def test_one_moment_for_people_has_everything_and_no_escape_codes(
    busy: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["live", "--once"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "Pinned    9 GiB (7.2 %) · 9 GiB by holders · ~0 B registered or other" in out
    assert re.search(rf"^{busy}  root +8 GiB  0 +1 GiB +≥16 MiB  python train.py$", out, re.M)
    assert "NVIDIA H200" in out
    assert "Up to 4.50 GiB of pinned memory may be waste" in out


def test_bad_input_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, complaint in [
        (["--interval", "0.05"], "'--interval': Input should be greater than or equal to 0.1"),
        (["--interval", "nan"], "'--interval': Input should be"),
        (["--pid", "0"], "there is no process 0"),
        (["--pid", "4194305"], "there is no process 4194305"),
        (["now"], "now"),
    ]:
        assert complaint in refused(["live", "--once", *arguments], 2, capsys)


def test_processes_that_only_lock_memory_stand_apart_below_those_that_pin_it() -> None:
    locks = holder(pid=1, name="locks", command="locks", host_alloc_bytes=0, locked_bytes=GIB, cuda=False)
    pins = holder(pid=2, name="pins", command="pins", host_alloc_bytes=MIB, locked_bytes=0)
    *_, first, heading, last = texts(whole(View(snapshot(holders=(locks, pins), devices=()))))
    assert (first.split()[-1], heading, last.split()[-1]) == ("pins", ONLY_LOCKED, "locks")
