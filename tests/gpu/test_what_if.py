"""``pinscope trace --what-if pin``: what it gains is what editing the program by hand gains, with equal results.

Each program is timed by itself, without imports, and recorded each time: with its data in pinned memory from the
beginning (``pinned``: what the estimate is for), and with ``--what-if``: as it is, then with each batch copied through
pinned buffers that PinScope keeps. Beside each of these two, block by block in turn and in the same process, the same
is done by hand (``kept``).

Predicted before the first run on an H200: the estimate within 10 % of ``pinned``; ``--what-if`` within 2 % of ``kept``.
Seen there: the estimate wrong by 0.03 to 7 %. ``kept`` in a process of its own took up to 15 % longer or shorter from
one process to the next (a training loop of 0.44 s, 0.44 to 0.50 s): so now both are timed in the same one. Predicted
for that: what ``--what-if`` gains is within 3 % of what ``kept`` gains. Seen on an H200: within 2.5 %. On an H100, with
sixteen threads on its sixteen processors, single blocks of the shortest loop took 30 to 80 ms longer than 44, by hand
as well, and what was gained was 18 % less to 36 % more; with eight threads, as now, at most 2 % less.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import pytest

from tests.gpu.test_trace import TRACED, Traced, has_cupti

pytestmark = pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")
STEPS = "400"
LEAST_ROUNDS, MOST_ROUNDS = 2, 5
NEAR = 0.05
SHAPES = ("copy_bound", "balanced", "compute_bound")


def total(*rounds: list[float]) -> float:
    """Seconds of all steps of a round, by the median block of the rounds: others use the machine's processors too. In
    the first block the buffers are pinned; it counts by itself."""
    later = [block for blocks in rounds for block in blocks[1:]]
    return statistics.median(blocks[0] for blocks in rounds) + statistics.median(later) * (len(rounds[0]) - 1)


@dataclass
class Shape:
    """The blocks of each round in seconds: as it is, with ``--what-if``, by hand beside that; and how far the estimate
    was from what pinning saved."""

    as_it_is: list[list[float]] = field(default_factory=list)
    what_if: list[list[float]] = field(default_factory=list)
    by_hand: list[list[float]] = field(default_factory=list)
    wrong: list[float] = field(default_factory=list)

    def beside_by_hand(self, number: int | None = None) -> float:
        """How much more ``--what-if`` gains than by hand, as a part of that; in this round, or in all."""
        chosen = slice(None) if number is None else slice(number, number + 1)
        before, what_if, by_hand = (total(*each[chosen]) for each in (self.as_it_is, self.what_if, self.by_hand))
        return (before - what_if) / (before - by_hand) - 1

    def steady(self) -> bool:
        each = [self.beside_by_hand(number) for number in range(len(self.what_if))]
        return max(each) - min(each) < NEAR


def measure(script: Path, folder: Path, shapes: Mapping[str, Shape], pinned: Mapping[str, list[float]]) -> str:
    """One round of each shape, which is added to it; gives what was printed."""
    times = folder / "times"
    times.unlink(missing_ok=True)
    answer = Traced(folder, "--what-if", "pin", str(script), "pageable", STEPS, str(times))
    assert answer.of_second("before")[0]["same_output"]
    first_run, second_run = map(json.loads, times.read_text().splitlines())
    for name, shape in shapes.items():
        first, now = (
            [row for row in rows if row["kind"] == "site" and row["function"] == name]
            for rows in (answer.rows, answer.second["observations"])
        )
        assert [(row["source"], row["count"]) for row in first + now] == [
            ("pageable", int(STEPS)),
            ("pinned", int(STEPS)),
        ]
        stood = first[0]["idle_seconds"] + first[0]["launch_idle_seconds"]
        estimate = max(stood - first[0]["bytes"] / answer.run["params"]["pinned_h2d"], 0.0)
        # The estimate is of all that the program waited for, where the host held it up as well.
        saved = sum(first_run[name]) - total(pinned[name])
        (done,) = (row for row in answer.of_second("redirected") if row["line"] == now[0]["line"])
        sys.stdout.write(
            f"{script.name} {name}: what if pinned {done['pinned_bytes'] >> 20} MiB in {done['pin_seconds']:.4f} s, "
            f"gathered in {done['gather_seconds']:.4f} s, waited {done['wait_seconds']:.4f} s; {first_run[name]}, by "
            f"hand {first_run[f'{name} kept']}; what if {second_run[name]}, by hand {second_run[f'{name} kept']}; "
            f"saved {saved:.4f} s, estimated {estimate:.4f} s\n"
        )
        shape.as_it_is.append(first_run[name])
        shape.what_if.append(second_run[name])
        shape.by_hand.append(second_run[f"{name} kept"])
        shape.wrong.append(estimate / saved - 1)
    return answer.stdout


@pytest.mark.alone
@pytest.mark.parametrize("program", ["shapes.py", "shapes_cupy.py"])
def test_what_if_gains_what_editing_by_hand_gains_and_the_estimate_is_right(program: str, tmp_path: Path) -> None:
    """Of several rounds, for pageable copies take up to half as long again in another process: of more where they
    differ."""
    script, times = TRACED / program, tmp_path / "pinned"
    pinned = Traced(tmp_path, str(script), "pinned", STEPS, str(times))
    assert pinned.exit_code == 0
    assert "False" not in pinned.stdout
    shapes = {name: Shape() for name in SHAPES}
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and all(shape.steady() for shape in shapes.values()):
            break
        assert measure(script, tmp_path, shapes, json.loads(times.read_text())) == pinned.stdout
    missed = {name: shape.beside_by_hand() for name, shape in shapes.items()}
    for name, shape in shapes.items():
        each = [round(shape.beside_by_hand(number), 4) for number in range(len(shape.wrong))]
        sys.stdout.write(f"{program} {name}: beside by hand {missed[name]:+.4f} {each}, estimate {shape.wrong}\n")
    assert missed == near(NEAR)
    assert {name: statistics.median(shape.wrong) for name, shape in shapes.items()} == near(0.2)


def near(most: float) -> dict[str, Any]:
    return {shape: pytest.approx(0, abs=most) for shape in SHAPES}


def test_every_call_gives_the_same_bits_from_pinned_memory(tmp_path: Path) -> None:
    """Each line is chosen: by itself only those are that take a part of the time."""
    script = TRACED / "every_call.py"
    calls = re.compile(r"x\.to\(|\.(cuda|copy_|set)\(")
    lines = [number for number, line in enumerate(script.read_text().splitlines(), 1) if calls.search(line)]
    chosen = [each for line in lines for each in ("--what-if", f"pin:{script}:{line}")]
    answer = Traced(tmp_path, *chosen, str(script))
    assert answer.exit_code == 0, answer.stderr
    sys.stdout.writelines(f"{row}\n" for row in answer.of_second("redirected"))
    assert answer.of_second("before")[0]["same_output"]
    done = answer.of_second("redirected")
    assert sum(row["count"] for row in done) > 250
    assert any("negates" in (row.get("reason") or "") for row in done)


@pytest.mark.alone
def test_a_dataloader_pins_its_batches(tmp_path: Path) -> None:
    """Both ways in the same process, in turn, and by the median of three: from one process to the next such a loop took
    up to 15 % longer or shorter. Seen on an H100 in processes of their own: 1.07 to 1.23 s as it is, 0.91 to 1.04 s
    with ``--what-if``, 0.81 to 0.91 s by hand."""
    script, times = str(TRACED / "loader_loop.py"), tmp_path / "times"
    answer = Traced(tmp_path, "--what-if", "pin", script, "both", "100", str(times))
    batches = [row for row in answer.of_second("site") if "# the batch" in row["source_line"]]
    assert [(row["source"], row["count"]) for row in batches] == [("pinned", 600)]
    assert answer.of_second("before")[0]["same_output"]
    first, second = map(json.loads, times.read_text().splitlines())
    sys.stdout.write(f"loader_loop.py: as it is {first}, what if {second}\n")
    as_it_is, what_if, by_hand = (statistics.median(each) for each in (first["off"], second["off"], second["on"]))
    assert what_if == pytest.approx(by_hand, abs=NEAR * as_it_is)


def test_what_cannot_be_redirected_is_named(tmp_path: Path) -> None:
    pytest.importorskip("numba.cuda", reason="Numba is not installed")
    answer = Traced(tmp_path, "--what-if", "pin", str(TRACED / "numba_script.py"))
    assert "No copy of numba_script.py" in answer.second["run"]["verdict"]
    assert "numba_script.py" in answer.stderr


def marked(script: Path, mark: str) -> list[int]:
    """Lines with this comment."""
    lines = enumerate(script.read_text().splitlines(), 1)
    return [number for number, line in lines if line.endswith(f"# {mark}")]


@pytest.mark.parametrize("kind", ["read", "overwrite"])
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_waits_prove_that_data_is_used_too_early_and_nothing_of_the_right_program(
    library: str, kind: str, tmp_path: Path
) -> None:
    """Twenty rounds: each gives other data. Seen on an H100: 20 of 20, but 19 where the first round's work on the GPU
    was 10 ms long, and threads of the CPU began later; now it is 30."""
    script = TRACED / "early_use.py"
    wrong = Traced(tmp_path, "--what-if", "wait", str(script), library, kind)
    assert len(wrong.of_second("difference")) == 20
    (waited,) = wrong.of_second("waited")
    assert (waited["line"] in marked(script, "mark: copy"), waited["count"], waited["needed"]) == (True, 20, True)
    right = Traced(tmp_path, "--what-if", "wait", str(script), library, kind, "waits")
    assert right.of_second("difference") == []
    assert right.of_second("before")[0]["same_output"]


@pytest.mark.parametrize("way", ["lines", "thread", "graph", "by_ctypes", "by_numba", "bindings"])
def test_waits_stand_behind_copies_of_every_library_thread_and_graph(way: str, tmp_path: Path) -> None:
    if way == "by_numba":
        pytest.importorskip("numba.cuda", reason="Numba is not installed")
        if not hasattr(numpy, "row_stack"):
            pytest.skip("this Numba compiles nothing beside this NumPy")
    script = TRACED / "early_ways.py"
    answer = Traced(tmp_path, "--what-if", "wait", str(script), way)
    assert answer.exit_code == 0, answer.stderr
    needed = {row["line"] for row in answer.of_second("waited") if row.get("needed")}
    assert len(needed) == 1
    assert needed < set(marked(script, "mark: copy"))
