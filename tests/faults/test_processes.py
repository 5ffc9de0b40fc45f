"""What other users' processes and broken files under /proc can do to a snapshot: nothing but be shown as they are."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pinscope.cli.live import print_once
from pinscope.cli.live_view import View
from pinscope.live.findings import snapshot_findings
from pinscope.live.sampler import History
from pinscope.live.series import changes, sample_of
from pinscope.live.source import snapshot
from pinscope.monitoring.server import SnapshotCollector
from pinscope.probes.proc import MOST_FILE_BYTES, MOST_OPEN_FILES, Answer, Proc
from pinscope.probes.process_scan import Remembered
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.report.write import render_snapshot
from tests.data.snapshot_checks import captured_gpus
from tests.data.synthetic_host import SyntheticHost, context, zero
from tests.faults.campaign import Campaign

MIB = 2**20
TREES = tuple(sorted((Path(__file__).parents[1] / "data/proc").iterdir()))
MOST_SECONDS = 2.0
"""Of processor time, for one mutated tree: two snapshots and all that is made of them."""
MOST_ATTACKED_SECONDS = 1.0
"""Of processor time, for a snapshot beside a hostile process."""
MOST_BYTES = 300 * MIB
LIKELY = ("meminfo", "vmstat", "status", "maps", "cgroup", "stat", "mountinfo")
"""Files that are broken more often than others."""
NAMES = (
    b"a\nVmLck:\t 9 kB",
    b"\x1b[2J",
    "\u202e".encode(),
    b"\xff\xfe",
    b"n" * 255,
    b"-1",
    b"99999999999999999999",
    b" ",
)
NUMBERS = (b"-1", b"9" * 19, b"9" * 400, b"0", b"0x10", b"1e9", b"\xd9\xa3", b"")


class BrokenHost(Proc):
    """A copy of a host's files of which some are broken, and of which some vanish while they are read.

    Args:
        original: the files as they were, which are never changed.
        copy: an empty folder on the same file system.
    """

    def __init__(self, original: Path, copy: Path) -> None:
        super().__init__(copy)
        self._original, self._copy = original, copy
        shutil.copytree(original, copy, symlinks=True, dirs_exist_ok=True)
        self._folders = sorted(path for path in copy.rglob("*") if path.is_dir() and not path.is_symlink())
        self._files = sorted(set(copy.rglob("*")) - set(self._folders))
        self._likely = [path for path in self._files if path.name in LIKELY]
        self._changed: set[Path] = set()
        self._chance, self._share = random.Random(), 0.0

    def _place(self, path: str) -> str:
        place = super()._place(path)
        if self._share and self._chance.random() < self._share:
            with contextlib.suppress(OSError):
                Path(place).unlink()
                self._changed.add(Path(place))
        return place

    def break_some(self, chance: random.Random) -> None:
        """Other files than before."""
        self._restore()
        self._chance, self._share = chance, chance.choice((0.0, 0.0, 0.01, 0.2))
        chosen = chance.choices(self._likely, k=chance.randint(1, 4)) + chance.choices(
            self._files, k=chance.randint(0, 8)
        )
        for path in dict.fromkeys(chosen):
            content = path.read_bytes() if not path.is_symlink() else b""
            broken = _broken(content, chance)
            path.unlink()
            self._changed.add(path)
            if broken is None:
                chance.choice((path.mkdir, partial(os.mkfifo, path), lambda: None))()
            else:
                path.write_bytes(broken)
        strange = Path(os.fsdecode(os.fsencode(chance.choice(self._folders)) + b"/" + chance.choice(NAMES)))
        with contextlib.suppress(OSError):  # a name that is there
            strange.touch(exist_ok=False)
            self._changed.add(strange)

    def _restore(self) -> None:
        for path in self._changed:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)
            original = self._original / path.relative_to(self._copy)
            if os.path.lexists(original):
                shutil.copy(original, path, follow_symlinks=False)
        self._changed.clear()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[BrokenHost, Answer[Any] | None], ...]:
    """The captured hosts with what their GPUs told, and one that never was with holders that inherit."""
    made = tmp_path_factory.mktemp("made")
    host = SyntheticHost(made, pinned_bytes=200 * MIB)
    parent = host.cuda_process([*context(), zero(64 * MIB, 1)])
    host.cuda_process([*context(inode=910_000), zero(64 * MIB, 1)], parent=parent, group="0::/a/b/c\n")
    host.process("database", VmLck=64 * MIB)
    return tuple((BrokenHost(tree, tmp_path_factory.mktemp("copy")), captured_gpus(tree)) for tree in (*TREES, made))


def _broken(content: bytes, chance: random.Random) -> bytes | None:
    place = chance.randrange(len(content) + 1)
    lines = content.split(b"\n")
    line = chance.randrange(len(lines))
    words = lines[line].split(b" ")
    words[chance.randrange(len(words))] = chance.choice((*NUMBERS, *NAMES))
    return chance.choice((
        None,
        content[:place],
        content[place:],
        content[:place] + chance.randbytes(chance.randint(1, 60)) + content[place:],
        content + b"x" * 2**chance.randint(10, 20),
        content[:place] + b"7" * chance.randint(1, 5000) + content[place:],
        b"\n".join((*lines[:line], b" ".join(words), *lines[line + 1 :])),
        b"\n".join((*lines[:line], chance.choice(NAMES), *lines[line:])),
        content.replace(b"kB", b"kB 99"),
        content * chance.randint(2, 4),
        b"".join(chance.choice(NUMBERS) if byte in b"0123456789" else bytes((byte,)) for byte in content[:2000]),
        content.replace(b"MemTotal:", b"MemTotal: 0 kB\nMemX:"),
        b"\n" * chance.choice((1, 10_000)),
    ))  # fmt: skip


def look_at(proc: Proc, gpus: Answer[Any] | None) -> None:
    """All that PinScope makes of a host: a series of snapshots, the table, JSON, metrics."""
    remembered, before, sample = Remembered(), None, None
    for _ in range(2):
        seen = snapshot(proc, gpus, remembered)
        happened = changes(before, seen)
        sample = sample_of(seen, 1.0, sample)
        before = seen
    view = View(seen, snapshot_findings(seen), events=happened)
    for as_json in (False, True):
        print_once(as_json, view)
    render_snapshot(seen, view.findings)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: History(latest=seen), lambda: datetime.now(UTC)))
    generate_latest(registry)


def test_broken_files_of_a_host_stop_nothing(
    campaign: Campaign, hosts: Sequence[tuple[BrokenHost, Answer[Any] | None]], capsys: pytest.CaptureFixture[str]
) -> None:
    tried = [int(content) for _, content in campaign.corpus()]
    base, worst = _peak_bytes(again=True), 0.0
    for attempt in (*tried, *range(campaign.size(sample=30, whole=10_000))):
        chance = campaign.random(attempt)
        proc, gpus = chance.choice(hosts)
        proc.break_some(chance)
        begun = time.thread_time()
        try:
            look_at(proc, gpus)
        except Exception as error:  # noqa: BLE001 - whatever it was, it is what is looked for
            campaign.fail(f"attempt {attempt}: {type(error).__name__}: {error}", str(attempt).encode(), str(attempt))
        took = time.thread_time() - begun
        worst = max(worst, took)
        if took > MOST_SECONDS:
            campaign.fail(f"attempt {attempt} took {took:.1f} s", str(attempt).encode(), str(attempt))
        campaign.count("proc trees")
        capsys.readouterr()
    grown = _peak_bytes() - base
    if grown > MOST_BYTES:
        campaign.fail(f"memory grew by {grown // MIB} MiB")
    with capsys.disabled():
        sys.stdout.write(f"\nworst: {worst:.2f} s of processor time; {grown // MIB} MiB over the base\n")


def _peak_bytes(again: bool = False) -> int:
    """Most resident memory of this process: in its life, or from now on. ``getrusage`` counts its parent's as well."""
    if again:
        Path("/proc/self/clear_refs").write_text("5")
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


LOOK = """
import json, pickle, sys, time
sys.path.insert(0, sys.argv[1])
from pinscope.live.source import snapshot
from pinscope.probes.process_scan import Remembered
peak = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024
base, remembered, seconds = peak(), Remembered(), []
for _ in range(2):
    begun = time.thread_time()
    seen = snapshot(remembered=remembered)
    seconds.append(time.thread_time() - begun)
print(json.dumps([max(seconds), peak() - base]))
print(pickle.dumps(seen).hex())
"""
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def hostile(kind: str, amount: int) -> Iterator[int]:
    """The pid of a process of tests/data/hostile_process.py."""
    command = [sys.executable, str(ROOT / "tests/data/hostile_process.py"), kind, str(amount)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        if one.stdout.readline() != "ready\n":
            pytest.skip(f"no such process here: {one.communicate()[1].strip()}")
        yield one.pid
        one.communicate("")


def looked() -> tuple[float, int, Snapshot]:
    """Seconds of processor time, bytes and the second snapshot of a process that takes two."""
    done = subprocess.run([sys.executable, "-c", LOOK, str(ROOT)], capture_output=True, text=True, check=True)
    cost, seen = done.stdout.splitlines()
    seconds, peak = (float(number) for number in cost.strip("[]").split(","))
    return seconds, int(peak), pickle.loads(bytes.fromhex(seen))  # noqa: S301 - of this test's own child


def _is_cut(holder: Holder | None, seen: Snapshot) -> bool:
    return holder is not None and len(holder.command or "") == 4096 and (holder.command or "").endswith("…")


def _has_no_figure(holder: Holder | None, seen: Snapshot) -> bool:
    if holder is None or holder.host_alloc_bytes is not None:
        return False
    is_at_least = seen.host.explained_bytes is None or "explained_bytes" in seen.host.estimates
    return "longer than" in holder.missing["host_alloc_bytes"] and is_at_least


def _is_skipped(holder: Holder | None, seen: Snapshot) -> bool:
    return holder is None and any(gap.what.startswith("Open files of 1 of") for gap in seen.unreadable)


def _is_whole(holder: Holder | None, seen: Snapshot) -> bool:
    return holder is not None and sum(one.count for one in holder.allocations) == 20_000


@pytest.mark.alone
@pytest.mark.parametrize(
    ("kind", "amount", "is_said"),
    [
        ("command", 3 * 2**30, _is_cut),
        ("maps", 2 * MOST_FILE_BYTES // 4096 + 1000, _has_no_figure),
        ("pieces", 20_000, _is_whole),
        ("files", MOST_OPEN_FILES + 1000, _is_skipped),
    ],
)
def test_no_process_makes_a_snapshot_long_or_large(
    campaign: Campaign, kind: str, amount: int, is_said: Callable[[Holder | None, Snapshot], bool]
) -> None:
    with hostile(kind, amount) as pid:
        seconds, grown, seen = looked()
    campaign.count("proc trees")
    if seconds > MOST_ATTACKED_SECONDS or grown > MOST_BYTES:
        campaign.fail(f"{kind}: {seconds:.2f} s of processor time, {grown // MIB} MiB")
    if not is_said(next((one for one in seen.holders if one.pid == pid), None), seen):
        campaign.fail(f"{kind}: what was cut is not said: {seen.unreadable}")
