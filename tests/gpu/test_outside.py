"""``pinscope live --probe --pid``: a C program's copies, counted from outside, and what that costs it.

Needs root, tracefs, and a kernel with uprobes and BPF (Linux 5.8 and later). Predicted: bytes by direction and kind of
memory exact, through the driver API and the runtime API; at most 20 µs more a copy, and nothing more after it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import NotPossible
from pinscope.live.tracker import Tracker
from pinscope.probes.uprobes import installed_libraries
from pinscope.records.registration import Copies
from tests.data.fake_driver import is_probed, left_by, tracing
from tests.gpu.holding import Holding, compile_program
from tests.gpu.machine import MIB

ROOT = Path(__file__).parents[2]
APIS = ("driver", "driver_async", "driver_address", "runtime", "runtime_async", "runtime_address")
MOST_SECONDS = 20e-6
TURNS, TIMES, COUNT = 3, 5, 3000


class Copier(Holding):
    """A program that copies as it is told."""

    def does(self, *words: str | int) -> int:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tracing() as folder:
        yield folder


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program("copier", tmp_path_factory.mktemp("copier"))


@pytest.fixture
def copier(program: Path, folder: Path, request: pytest.FixtureRequest) -> Iterator[Copier]:
    command = [str(program), *map(str, getattr(request, "param", ()))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            running = Copier(process)
            running.reach("ready")
            yield running
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(30)
    assert left_by(os.getpid(), folder) == set()


def say(*words: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, words))}\n")


def sums(copies: Copies | dict[str, Any]) -> Counter[tuple[str, str]]:
    """Bytes by direction and memory."""
    rows = copies["sums"] if isinstance(copies, dict) else [each.model_dump() for each in copies.sums]
    for row in rows:
        say(row)
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row["direction"], row["memory"]] += row["bytes"]
    return counts


def copy_all(copier: Copier, *memories: str) -> Counter[tuple[str, str]]:
    """Copies by every function, of different sizes; what they come to."""
    expected: Counter[tuple[str, str]] = Counter()
    for place, (api, direction, memory) in enumerate(product(APIS, ("h2d", "d2h"), memories)):
        size, count = 1000 * (place + 1) + place, 20 + place
        copier.does(api, direction, memory, size, count)
        expected[direction, memory] += size * count
    return expected


def test_each_function_s_bytes_are_exact_by_direction_and_pinned_told_from_the_rest(copier: Copier) -> None:
    try:
        with Tracker(copies_of=[copier.pid]) as tracker:
            assert copier.does("pin") == 0
            expected = copy_all(copier, "pageable", "pinned", "late", "registered")
            copies = tracker.registered().copies[copier.pid]
            copier.does("2d")
            after = tracker.registered().copies[copier.pid]
    except NotPossible as error:
        pytest.skip(f"no probe here: {error}")
    counts = sums(copies)
    say("uncounted", copies.uncounted_calls, after.uncounted_calls, "lost", copies.lost_calls)
    for direction in ("h2d", "d2h"):
        pinned = sum(expected[direction, memory] for memory in ("pinned", "late", "registered"))
        assert counts[direction, "pinned"] == pinned
        assert counts[direction, "unknown"] == expected[direction, "pageable"]
    assert (copies.uncounted_calls, copies.lost_calls, after.uncounted_calls) == (0, 0, 1)


def live(copier: Copier, *memories: str) -> tuple[dict[str, Any], Counter[tuple[str, str]]]:
    """The document of the command, during which the program copied so much."""
    command = [sys.executable, "-m", "pinscope", "live", "--once", "--json", "--probe", "--pid", str(copier.pid),
               "--interval", "8"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stderr is not None
        say(process.stderr.readline().strip())
        expected = copy_all(copier, *memories)
        copier.does("driver", "h2d", "pageable", 128 * MIB, 1)
        expected["h2d", "pageable"] += 128 * MIB
        out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    document: dict[str, Any] = json.loads(out)
    say("unexplained", document["host"]["other_pinned_bytes"], document["unreadable"])
    return document, expected


def test_the_command_tells_pageable_from_pinned_that_was_there_before(copier: Copier) -> None:
    document, expected = live(copier, "pageable", "pinned")
    (holder,) = document["holders"]
    copies = holder["copies"]
    say({name: value for name, value in copies.items() if name != "sums"})
    counts = sums(copies)
    for direction in ("h2d", "d2h"):
        assert counts[direction, "pinned"] == expected[direction, "pinned"]
        assert counts[direction, "pageable"] + counts[direction, "unknown"] == expected[direction, "pageable"]
    assert copies["to_gpu_bytes"] == expected["h2d", "pageable"] + expected["h2d", "pinned"]
    if document["host"]["other_pinned_bytes"] <= 4 * MIB:
        assert copies["unknown_bytes"] == 0
        assert copies["bounds"] == {"pageable_bytes": "at_most", "pinned_bytes": "at_least"}


@pytest.mark.parametrize("copier", [(32 * MIB,)], indirect=True)
def test_what_was_registered_before_is_unknown_and_so_is_pageable_but_of_what_is_larger(copier: Copier) -> None:
    document, expected = live(copier, "pageable", "pinned", "old")
    counts = sums(document["holders"][0]["copies"])
    for direction in ("h2d", "d2h"):
        assert counts[direction, "pinned"] == expected[direction, "pinned"]
        large = 128 * MIB if direction == "h2d" else 0
        small = expected[direction, "pageable"] - large
        assert (
            counts[direction, "unknown"] + counts[direction, "pageable"] == small + large + expected[direction, "old"]
        )
        if document["host"]["other_pinned_bytes"] < 60 * MIB:
            assert counts[direction, "pageable"] == large


def library_of(pid: int) -> Path:
    """The driver's, as a program has it."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return next(path for path in installed_libraries() if f" {path}\n" in maps)


@pytest.mark.parametrize(("api", "direction"), [("driver", "h2d"), ("runtime_async", "d2h")])
def test_a_copy_takes_at_most_20_us_more_and_afterwards_as_long_as_before(
    copier: Copier, api: str, direction: str
) -> None:
    loop = (api, direction, "pinned", 4096, COUNT)
    more, after = [], []
    library = library_of(copier.pid)
    assert not is_probed(copier.pid, library)
    for _ in range(TURNS):  # a probe takes seconds to come and to go
        without = [copier.does(*loop) for _ in range(TIMES)]
        try:
            with Tracker(copies_of=[copier.pid]) as tracker:
                probed = [copier.does(*loop) for _ in range(TIMES)]
                assert is_probed(copier.pid, library)
                copies = tracker.registered().copies[copier.pid]
                assert (copies.lost_calls, sum(sums(copies).values())) == (0, TIMES * 4096 * COUNT)
        except NotPossible as error:
            pytest.skip(f"no probe here: {error}")
        assert not is_probed(copier.pid, library)
        more += [(now - before) / 1e9 for now, before in zip(probed, without, strict=True)]
        after += [copier.does(*loop) / before for before in without]
    ordered = sorted(after)
    say(api, direction, "more a copy", statistics.median(more), min(more), max(more))
    say(api, direction, "after / before", ordered[3], statistics.median(ordered), ordered[11])
    assert statistics.median(more) <= MOST_SECONDS
    assert ordered[3] < 1.01  # 96 % interval of the median of 15
