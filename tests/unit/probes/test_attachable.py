"""A running process as one who wants to attach to it sees it; in a tree that stands for /proc."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinscope.probes.attachable import descendants_of, forbidden, read_attachable
from pinscope.probes.proc import Proc

PYTHON = "/envs/train/bin/python3.12"
MAPS = """\
55d1c0000000-55d1c0001000 r--p 00000000 08:01 11 {}
7f0000000000-7f0000001000 r--p 00000000 08:01 12 /envs/train/lib/libcupti.so.13
7f0000100000-7f0000101000 r--p 00000000 08:01 13 /usr/lib/libcuda.so.580.95
"""


def tree(
    folder: Path, *, state: str = "S (sleeping)", uid: int | None = None, tracer: int = 0, mounts: str = "mnt:[1]",
    executable: str = PYTHON, maps: str | None = MAPS, stack: int = 99,
) -> Proc:  # fmt: skip
    """Process 7, which process 3 has started."""
    own = os.geteuid() if uid is None else uid
    for pid, parent in (("3", 1), ("7", 3), ("8", 7), ("self", 1)):
        (folder / "proc" / pid / "ns").mkdir(parents=True)
        fields = ["S", str(parent), *["0"] * 17, "4711", *["0"] * 5, str(stack), *["0"] * 5]
        (folder / "proc" / pid / "stat").write_text(f"{pid} (py) thon) {' '.join(fields)}\n")
        (folder / "proc" / pid / "ns" / "mnt").symlink_to(mounts if pid == "7" else "mnt:[1]")
    status = f"Name:\tpython\nState:\t{state}\nUid:\t{own}\t{own}\t{own}\t{own}\nTracerPid:\t{tracer}\n"
    (folder / "proc" / "7" / "status").write_text(status)
    (folder / "proc" / "7" / "exe").symlink_to(executable)
    (folder / "proc" / "7" / "cmdline").write_text("python\0train.py\0--fast\0")
    if maps is not None:
        (folder / "proc" / "7" / "maps").write_text(maps.format(executable))
    return Proc.below(folder)


def test_what_one_may_attach_to_says_its_python_its_cupti_and_what_tells_it_from_another(tmp_path: Path) -> None:
    proc = tree(tmp_path)
    seen = read_attachable(7, proc).value
    assert seen is not None
    assert (seen.version, seen.started, seen.stack, seen.uses_cuda) == ((3, 12), 4711, 99, True)
    assert (seen.cupti, seen.command) == ("/envs/train/lib/libcupti.so.13", ("python", "train.py", "--fast"))
    assert seen.is_there(proc)
    assert list(descendants_of(3, proc)) == [7, 8]


def test_a_program_that_became_another_is_not_there_any_more(tmp_path: Path) -> None:
    seen = read_attachable(7, tree(tmp_path / "before")).value
    assert seen is not None
    assert not seen.is_there(tree(tmp_path / "after", stack=100))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"state": "Z (zombie)"}, "it has ended"),
        ({"uid": 12345}, "a process of 12345"),
        ({"state": "T (stopped)"}, "stopped"),
        ({"state": "t (tracing stop)", "tracer": 99}, "already, process 99"),
        ({"mounts": "mnt:[2]"}, "container"),
        ({"executable": "/usr/bin/sleep"}, "no Python"),
        ({"executable": "/usr/bin/python3.8"}, "runs Python 3.8"),
        ({"maps": None}, "forbids"),
    ],
)
def test_what_one_cannot_attach_to_says_why(changes: dict[str, object], why: str, tmp_path: Path) -> None:
    answer = read_attachable(7, tree(tmp_path, **changes))  # type: ignore[arg-type]
    assert answer.value is None
    assert why in (answer.reason or "")


@pytest.mark.parametrize("executable", ["/opt/vllm/serve", "/usr/bin/uwsgi"])
def test_a_program_with_python_in_it_is_known_by_its_library(executable: str, tmp_path: Path) -> None:
    maps = MAPS + "7f0000200000-7f0000201000 r--p 00000000 08:01 14 /usr/lib/libpython3.11.so.1.0\n"
    seen = read_attachable(7, tree(tmp_path, executable=executable, maps=maps)).value
    assert seen is not None
    assert seen.version == (3, 11)


def test_where_yama_forbids_it_the_setting_is_named(tmp_path: Path) -> None:
    scope = tmp_path / "proc/sys/kernel/yama/ptrace_scope"
    scope.parent.mkdir(parents=True)
    scope.write_text("1\n")
    assert "kernel.yama.ptrace_scope=0" in forbidden(Proc.below(tmp_path))
