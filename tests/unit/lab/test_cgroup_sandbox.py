"""A control group of its own, made for real where this user may, and the places where one can be, on written trees."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pinscope.errors import NotPossible
from pinscope.lab.cgroup_sandbox import CgroupSandbox, find_place
from pinscope.probes.proc import Proc
from tests.data.synthetic_host import SyntheticHost

MIB = 2**20
PLACE = find_place()
needs_a_group = pytest.mark.skipif(PLACE.value is None, reason=PLACE.reason or "")
MEMBER = "import os, sys, time; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid())); print(1, flush=True)"


def member(group: CgroupSandbox, then: str = "time.sleep(60)") -> subprocess.Popen[bytes]:
    """A process in the group that has answered."""
    command = [sys.executable, "-c", f"{MEMBER}; {then}", group.folder]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


@needs_a_group
def test_a_group_has_its_limit_counts_its_members_and_goes_with_them() -> None:
    with CgroupSandbox(64 * MIB) as group:
        assert group.read().kills == 0
        process = member(group, f"memory = bytearray({16 * MIB}); print(2, flush=True); time.sleep(60)")
        assert process.stdout is not None
        process.stdout.readline()
        used = group.read().used_bytes
        assert used is not None
        assert 16 * MIB <= used <= 64 * MIB
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    assert not Path(group.folder).exists()


@needs_a_group
def test_who_takes_more_than_the_limit_is_killed_and_counted() -> None:
    with CgroupSandbox(64 * MIB) as group:
        process = member(group, f"memory = bytearray({256 * MIB})")
        assert process.wait(60) == -signal.SIGKILL
        assert group.read().kills == 1
    assert process.stdout is not None
    process.stdout.close()


@needs_a_group
def test_a_group_that_a_killed_run_left_is_removed_by_the_next_one(place_apart: tuple[str, str]) -> None:
    code = (
        "import sys, time\nfrom pinscope.lab.cgroup_sandbox import CgroupSandbox\n"
        f"with CgroupSandbox({64 * MIB}, place={place_apart}) as group:\n"
        "    print(group.folder, flush=True)\n    time.sleep(60)\n"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    left = Path(run.stdout.readline().strip())
    assert left.is_dir()
    with CgroupSandbox(64 * MIB, place=place_apart):
        assert left.is_dir()  # its run lives
    run.kill()
    run.wait()
    run.stdout.close()
    assert left.is_dir()
    with CgroupSandbox(64 * MIB, place=place_apart):
        assert not left.exists()


def tree(host: SyntheticHost, subtree: str) -> Proc:
    """A host with version 2: this process in /user/session, and what /user passes on."""
    host.write("proc/self/cgroup", "0::/user/session\n")
    host.write("proc/self/mountinfo", "1 0 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    for folder, passed_on in (("", ""), ("/user", subtree), ("/user/session", "")):
        host.write(f"sys/fs/cgroup{folder}/cgroup.subtree_control", passed_on)
        host.write(f"sys/fs/cgroup{folder}/cgroup.procs", "")
    return host.proc


def test_version_2_makes_it_in_the_nearest_group_that_passes_memory_on(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path)
    assert find_place(tree(host, "cpu memory pids")).value == ("cgroup2", "/sys/fs/cgroup/user")


@pytest.mark.parametrize("passed_on", ["cpu pids", ""])
def test_where_nobody_passes_memory_on_it_says_what_is_needed(tmp_path: Path, passed_on: str) -> None:
    reason = find_place(tree(SyntheticHost(tmp_path), passed_on)).reason or ""
    assert "run it as root" in reason
    assert "systemd-run --user --scope -p Delegate=yes" in reason


@pytest.mark.parametrize(
    ("kind", "files"),
    [("cgroup2", {"memory.max": "67108864", "memory.swap.max": "0"}),
     ("cgroup", {"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864"})],
)  # fmt: skip
@pytest.mark.parametrize("swap", [False, True])
def test_the_limits_of_both_versions_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, files: dict[str, str], swap: bool
) -> None:
    """A folder stands for the parent; the kernel would make the files of a new group."""
    first, second = files
    made = Path.mkdir

    def mkdir(folder: Path) -> None:
        made(folder)
        for name in (*files, "cgroup.procs"):
            (folder / name).write_text("")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", lambda folder: [path.unlink() for path in folder.iterdir()])
    with CgroupSandbox(64 * MIB, swap, (kind, str(tmp_path))) as group:
        assert Path(group.folder, first).read_text() == files[first]
        assert Path(group.folder, second).read_text() == ("" if swap else files[second])


def test_a_parent_that_takes_no_group_is_said_in_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(NotPossible, match=r"no control group can be made in .* run it as root"),
        CgroupSandbox(64 * MIB, place=("cgroup2", str(tmp_path / "gone"))),
    ):
        pass
