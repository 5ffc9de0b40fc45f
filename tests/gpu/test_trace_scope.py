"""What of a program ``pinscope trace`` records: its processes, a window of time, parts and named ranges; and the cost.

Predicted before the first run on an H200: all counts as the programs' sources say, also of copies that run on behind a
part's end; a child by fork that uses CUDA first does so as without a trace; a training step under torch.profiler with
stacks takes at least 10 % more; a copy beside a busy thread waits 5 to 25 ms.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
from operator import sub, truediv
from pathlib import Path

import pytest

from tests.gpu.test_trace import MIB, ROOT, TRACED, Traced, has_cupti, overhead

pytestmark = pytest.mark.skipif(not has_cupti(), reason="cupti-python is not installed, or does not fit")


def test_the_ranks_of_torchrun_stand_in_one_result(tmp_path: Path) -> None:
    ranks = str(TRACED / "ranks.py")
    options = ("--nproc-per-node", "2", "--log-dir", str(tmp_path))
    seen = Traced(tmp_path, "-m", "torch.distributed.run", *options, ranks)
    assert seen.exit_code == 0
    sites = [row for row in seen.rows if row["kind"] == "site" and "the rank's batch" in row["source_line"]]
    assert sorted((row["rank"], row["count"], row["bytes"]) for row in sites) == [
        (0, 5, 5 * 4 * MIB),
        (1, 5, 5 * 8 * MIB),
    ]
    assert "ranks.py:13 (rank 1)" in seen.stderr
    assert seen.run["notes"] == []


def test_a_child_by_spawn_is_recorded_and_workers_by_fork_are_not_disturbed(tmp_path: Path) -> None:
    seen = Traced(tmp_path, str(TRACED / "spawned.py"))
    assert seen.stdout == "28\n"
    sites = [(row["count"], row["bytes"]) for row in seen.rows if row["kind"] == "site" and row["bytes"] > MIB]
    assert sorted(sites) == [(3, 3 * 4 * MIB), (4, 4 * 4 * MIB)]
    assert len([row for row in seen.rows if row["kind"] == "process"]) == 2


BESIDE_PARTS = """\
import threading, time
import torch, pinscope
source, over = torch.empty(1 << 28, dtype=torch.uint8), threading.Event()
def copying():
    while not over.is_set(): source.to("cuda")  # beside
thread = threading.Thread(target=copying)
thread.start()
time.sleep(0.5)
for _ in range(3):
    with pinscope.trace("part"):
        for _ in range(5): source.to("cuda")  # inside
    time.sleep(0.2)
over.set()
thread.join()
"""


def test_copies_that_are_under_way_where_a_part_begins_or_ends_accuse_no_other_line(tmp_path: Path) -> None:
    """Predicted: those inside are all there; of those beside one for each begin may lack, none is nameless."""
    (tmp_path / "program.py").write_text(BESIDE_PARTS)
    seen = Traced(tmp_path, "--only-parts", str(tmp_path / "program.py"))
    assert (seen.exit_code, seen.run["notes"]) == (0, [])
    sites = {row["source_line"]: row["count"] for row in seen.rows if row["kind"] == "site" and row["large_count"]}
    sys.stdout.write(f"{sites}\n")
    assert len(sites) == 2
    assert next(count for line, count in sites.items() if "# inside" in line) == 15


@pytest.mark.parametrize("first", ["child", "parent"])
def test_a_child_by_fork_uses_cuda_as_without_a_trace(first: str, tmp_path: Path) -> None:
    """CUPTI was loaded before the fork. Where the parent used CUDA first, CUDA itself refuses the child."""
    program = (
        "import os, sys, cupy, numpy\ndef use(): return int(cupy.asarray(numpy.ones(1 << 20)).sum())\n"
        "if sys.argv[1] == 'parent': print(use(), flush=True)\nchild = os.fork()\n"
        "if not child:\n    try: print(use(), flush=True)\n"
        "    except Exception as error: print(type(error), flush=True)\n"
        "    os._exit(0)\nprint(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), first]
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Traced(tmp_path, *command[1:]).stdout == plain.stdout


def test_ranges_of_the_package_nvtx_are_named(tmp_path: Path) -> None:
    pytest.importorskip("nvtx", reason="the package nvtx is not installed")
    program = (
        "import cupy, numpy, nvtx\nsource = numpy.ones(1 << 20)\n"
        "with nvtx.annotate('plain'): cupy.asarray(source)\n"
        "with nvtx.annotate('of a domain', domain='mine'): cupy.asarray(source)\n"
    )
    (tmp_path / "program.py").write_text(program)
    sites = [row for row in Traced(tmp_path, str(tmp_path / "program.py")).rows if row["kind"] == "site"]
    assert {row["line"]: row["ranges"] for row in sites if row["large_count"]} == {3: "plain", 4: "of a domain"}


@pytest.mark.alone
def test_memory_does_not_grow_with_ten_million_copies(tmp_path: Path) -> None:
    """Predicted: 60 s in the program and 40 s to add them up. With their calls they are all that a trace holds: a few
    at the end may not be recorded."""
    program = (
        "import resource, cupy\nruntime = cupy.cuda.runtime\n"
        "device, pinned, stream = runtime.malloc(4096), runtime.hostAlloc(4096, 0), cupy.cuda.Stream()\n"
        "def own():\n    lines = open('/proc/self/smaps_rollup').read().splitlines()\n"
        "    return sum(int(each.split()[1]) for each in lines if each.startswith('Anonymous')) >> 10\n"
        "def copies(count):\n    for number in range(count):\n"
        "        runtime.memcpyAsync(device, pinned, 4096, 1, stream.ptr)\n"
        "        if not number & 1023: stream.synchronize()\n    stream.synchronize()\n"
        "copies(300_000); before = own(); copies(9_700_000); print(own() - before)\n"
    )
    (tmp_path / "program.py").write_text(program)
    seen = Traced(tmp_path, str(tmp_path / "program.py"), seconds=400)
    ours = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    sys.stdout.write(f"the program grew by {seen.stdout.strip()} MiB; the largest process so far had {ours} MiB\n")
    assert seen.exit_code == 0
    assert 9_900_000 < seen.rows[0]["copies"] <= 10_000_000
    assert int(seen.stdout) < 20


def test_only_the_window_of_time_is_recorded(tmp_path: Path) -> None:
    program = (
        "import time, cupy, numpy\n"
        "device, source = cupy.empty(1 << 20, numpy.uint8), numpy.ones(1 << 20, numpy.uint8)\n"
        "begun, count = time.time(), 0\nwhile time.time() < begun + 4:\n"
        "    device.data.copy_from_host(source.ctypes.data, 1 << 20); count += 1; time.sleep(0.001)\nprint(count)\n"
    )
    (tmp_path / "program.py").write_text(program)
    seen = Traced(tmp_path, "--start-after", "2s", "--for", "1s", str(tmp_path / "program.py"))
    recorded, copies = seen.rows[0]["recorded_seconds"], seen.rows[0]["copies"]
    sys.stdout.write(f"recorded {recorded:.4f} s, {copies} of {seen.stdout.strip()} copies\n")
    assert recorded == pytest.approx(1.0, abs=0.1)
    assert 0 < copies < int(seen.stdout) / 2


def test_parts_are_ranges_or_all_that_is_recorded_and_ranges_of_nvtx_are_named(tmp_path: Path) -> None:
    whole = Traced(tmp_path, str(TRACED / "parts.py"))
    (site,) = (row for row in whole.rows if row["kind"] == "site" and row["source"] == "pinned")
    assert (site["count"], site["ranges"]) == (70, "first, of torch, of cupy, 1 more")
    parts = Traced(tmp_path, "--only-parts", str(TRACED / "parts.py"))
    (site,) = (row for row in parts.rows if row["kind"] == "site" and row["source"] == "pinned")
    assert (site["count"], site["bytes"]) == (65, 65 * 64 * MIB)
    assert parts.rows[0]["unfinished"] == 0


def test_parts_are_recorded_by_themselves_under_plain_python(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    environment["PINSCOPE_DATABASE"] = f"sqlite:///{tmp_path}/parts.db"
    done = subprocess.run(
        [sys.executable, str(TRACED / "parts.py")], capture_output=True, text=True, check=False, env=environment
    )
    sys.stdout.write(done.stderr)
    assert (done.returncode, done.stdout) == (0, "end\n")
    for name, count in (("first", 30), ("second", 35)):
        assert f"part {name}: All {count} large copies use pinned memory" in " ".join(done.stderr.split())
    assert "of torch" in done.stderr


@pytest.mark.alone
def test_a_training_loop_beside_torch_profiler(tmp_path: Path) -> None:
    times = overhead("profiler", tmp_path)
    slower = {name: statistics.median(map(truediv, way["on"], way["off"])) for name, way in times.items()}
    ways = overhead("training", tmp_path)["pinned"]
    ours = statistics.median(map(truediv, ways["on"], ways["off"]))
    sys.stdout.write(f"a step takes {ours:.4f} times as long, under torch.profiler {json.dumps(slower)}\n")
    assert ours < slower["with stacks"]


@pytest.mark.alone
def test_a_copy_beside_a_busy_thread_waits_for_the_interpreter_a_few_times(tmp_path: Path) -> None:
    (times,) = overhead("busy", tmp_path).values()
    waited = statistics.median(map(sub, times["on"], times["off"]))
    sys.stdout.write(f"a copy takes {waited:.2f} ms more beside a busy thread\n")
    assert waited < 25  # milliseconds; the interpreter is passed on each 5 ms
