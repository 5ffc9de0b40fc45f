"""``pinscope trace --attach``: figures are those of a whole trace, and the program goes on as if nothing had been.

Predicted: bytes to the byte; a copy's times within 10 % of those of a whole trace before or after; steps as long as
before; a server of two ranks at most 2 % slower meanwhile; no crash of a program with CUDA graphs made before.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import MIB
from tests.gpu.test_trace import ROOT, TRACED, has_cupti

pytestmark = [pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")]
PROGRAM, TIMES, RANKS_TIMES = TRACED / "attached.py", 20, 5
BATCH, HELD = 4 * MIB, 64 * MIB
RATE_SECONDS = 0.5
"""Of steps before and after a trace, which are compared."""
BESIDE_NS = 4 * 10**9
"""The same of a server. Its GPU's clock drifts: steps of 10.2 ms took 10.4 a quarter of a minute later."""


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A program that is in its loop."""
    with subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "runs\n"
            yield process
        finally:
            process.kill()


def traced(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    answer = folder / "answer.json"
    command = [sys.executable, "-m", "pinscope", "trace", "--json", str(answer), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    sys.stdout.write(done.stderr)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(answer.read_text())
    answer.unlink()
    return document


def say(*figures: object) -> None:
    sys.stdout.write(f"{' '.join(map(str, figures))}\n")


def batch(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = [row for row in document["observations"] if row["kind"] == "site"]
    return [row for row in rows if (row["source_line"] or "").endswith("# the batch") and row["direction"] == "h2d"]


def result(stop: Path, rank: str = "") -> dict[str, Any]:
    """What the program says in the end, which must be as without a trace."""
    document: dict[str, Any] = json.loads(Path(f"{stop}.result{rank}").read_text())
    assert document["total"] == document["steps"] * BATCH / 4
    return document


def steps_ns(moments: Sequence[int], begin: int, end: int) -> list[int]:
    """How long each step in a stretch of time took."""
    return [after - before for before, after in pairwise(moment for moment in moments if begin <= moment <= end)]


def step_ns(moments: Sequence[int], begin: int, end: int) -> float:
    return statistics.median(steps_ns(moments, begin, end))


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_twenty_times_the_figures_are_those_of_a_whole_trace_and_steps_are_as_before(
    library: str, tmp_path: Path
) -> None:
    pytest.importorskip(library)
    stop, others = tmp_path / "stop", tmp_path / "others"
    others.touch()
    wholes = batch(traced(tmp_path, PROGRAM, library, others))
    times, documents = [], []
    with running(PROGRAM, library, stop) as process:
        for _ in range(TIMES):
            time.sleep(2 * RATE_SECONDS)
            begin = time.time_ns()
            documents.append(traced(tmp_path, "--attach", process.pid, "--for", "600ms"))
            times.append((begin, time.time_ns()))
        time.sleep(2 * RATE_SECONDS)
        stop.touch()
        assert process.wait() == 0
    wholes += batch(traced(tmp_path, PROGRAM, library, others))
    sites = [site for document in documents for site in batch(document)]
    assert [document["run"]["notes"] for document in documents] == [[]] * TIMES
    assert [site["bytes"] for site in sites] == [site["count"] * BATCH for site in sites]
    assert min(document["observations"][0]["before_bytes"] for document in documents) >= HELD
    for figure in ("call_seconds", "copy_seconds"):
        attached, beside = ([site[figure] / site["count"] for site in some] for some in (sites, wholes))
        say(library, figure, sorted(attached), "whole, before and after:", beside)
        assert 0.9 * min(beside) <= statistics.median(attached) <= 1.1 * max(beside)
    moments, span = result(stop)["moments"], int(RATE_SECONDS * 1e9)
    ratios = sorted(step_ns(moments, end, end + span) / step_ns(moments, begin - span, begin) for begin, end in times)
    low, high = ratios[5], ratios[14]  # 96 % interval of the median of 20
    say(library, "step after / before", low, statistics.median(ratios), high)
    assert low < 1.01


def test_a_program_with_graphs_that_were_made_before_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    stop = tmp_path / "stop"
    with running(PROGRAM, "graph", stop) as process:
        for _ in range(RANKS_TIMES):
            document = traced(tmp_path, "--attach", process.pid, "--for", "1s")
            say("graphs:", document["observations"][0]["copies"], "copies", document["observations"][0]["kernels"])
        stop.touch()
        assert process.wait() == 0
    result(stop)


def rate(moments: Sequence[int], begin: int, end: int) -> float:
    """Steps of a nanosecond."""
    return sum(begin <= moment <= end for moment in moments) / (end - begin)


def slowed(moments: Sequence[int], begin: int, end: int) -> float:
    """A rank's rate in a stretch of time, as a share of what it was before and after."""
    beside = rate(moments, begin - BESIDE_NS, begin) + rate(moments, end, end + BESIDE_NS)
    return 2 * rate(moments, begin, end) / beside


def test_two_ranks_are_attached_together_and_hardly_slower_meanwhile(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    stop, times = tmp_path / "stop", []
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--log-dir", str(tmp_path))
    with running(*launcher, PROGRAM, "server", stop) as process:
        time.sleep(10)
        for _ in range(RANKS_TIMES):
            begin = time.time_ns()
            document = traced(tmp_path, "--attach", process.pid, "--attach-children", "--for", "10s")
            times.append((begin, time.time_ns()))
            assert {row["rank"] for row in batch(document)} == {0, 1}
            time.sleep(5)
        stop.touch()
        assert process.wait() == 0
    ranks = [result(stop, rank)["moments"] for rank in "01"]
    lower = []
    for begin, end in times:  # from before the debugger to behind the end, with all that PinScope does beside it
        for moments in ranks:
            during, before = steps_ns(moments, begin, end), steps_ns(moments, begin - BESIDE_NS, begin)
            longest = [sorted(steps)[-5:] for steps in (during, before)]
            say("steps", statistics.median(during), statistics.median(before), "longest", *longest)
        lower.append(1 - sum(slowed(moments, begin, end) for moments in ranks) / len(ranks))
        say("server slower by", lower[-1], *(1 - slowed(moments, begin, end) for moments in ranks))
    assert statistics.median(lower) <= 0.02
