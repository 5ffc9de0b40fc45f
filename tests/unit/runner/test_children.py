"""What is seen of a program's processes in /proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.probes.proc import Proc
from pinscope.probes.process import UVM
from pinscope.runner.traced_program import Children
from pinscope.tracing.spool_folder import CHILDREN, FAILED, JOINED, STARTED, child_line

PROGRAM, CHILD = 100, 101
STACK, OTHER_STACK = 7_000, 8_000
CUDA = "7f00-7f01 r-xp 0 0:0 1 /usr/lib/libcuda.so.580.159\n"


def process(
    top: Path,
    pid: int,
    parent: int,
    stack: int,
    *,
    is_hidden: bool = False,
    uses_cuda: bool = False,
    name: str = "serve",
) -> None:
    folder = top / "proc" / str(pid)
    folder.mkdir(parents=True)
    fields = ["S", str(parent), *["0"] * 23, str(stack), "0"]
    (folder / "stat").write_text(f"{pid} (a name) {' '.join(fields)}")
    (folder / "environ").write_text("")
    (folder / "maps").write_text(CUDA if uses_cuda else "")
    (folder / "exe").symlink_to(f"/opt/{name}")
    if is_hidden:
        (folder / "fd").touch()  # cannot be listed
    else:
        (folder / "fd").mkdir()
        (folder / "fd" / "3").symlink_to(UVM if uses_cuda else "/dev/null")


def children(top: Path, on_gpus: set[int]) -> Children:
    spool = top / "spool"
    spool.mkdir()
    (spool / "started.json").write_text(f'{{"pid": {PROGRAM}, "stack": {STACK}}}')
    process(top, PROGRAM, 1, STACK)
    return Children(PROGRAM, "handover", spool, Proc.below(top), lambda: on_gpus)


@pytest.mark.parametrize(("is_hidden", "on_gpus", "kinds"), [
    (False, set(), ["native"]), (True, {CHILD}, ["native"]), (True, {PROGRAM, 5}, []),
])  # fmt: skip
def test_a_process_whose_files_cannot_be_seen_used_cuda_if_nvml_names_it(
    is_hidden: bool, on_gpus: set[int], kinds: list[str], tmp_path: Path
) -> None:
    there = children(tmp_path, on_gpus)
    process(tmp_path, CHILD, PROGRAM, OTHER_STACK, is_hidden=is_hidden, uses_cuda=not is_hidden)
    if is_hidden:
        (tmp_path / "proc" / str(CHILD) / "maps").unlink()
    there.look()
    assert [(row.process, row.child, row.executable) for row in there.unrecorded()] == [
        (CHILD, kind, "serve") for kind in kinds
    ]


@pytest.mark.parametrize(("name", "named"), [("nvidia-smi", []), ("nvidia-smi-copy", ["nvidia-smi-copy"])])
def test_the_driver_s_own_tool_is_not_accused(name: str, named: list[str], tmp_path: Path) -> None:
    there = children(tmp_path, set())
    process(tmp_path, CHILD, PROGRAM, OTHER_STACK, uses_cuda=True, name=name)
    there.look()
    assert [row.executable for row in there.unrecorded()] == named


SAYS = {
    "started, and looked at": (child_line(CHILD, 0, STARTED), OTHER_STACK, 0),
    "started, and looked at only while it was its parent's fork": (child_line(CHILD, 0, STARTED), STACK, 1),
    "started, and it says itself that it is there": (
        child_line(CHILD, 0, STARTED) + child_line(CHILD, OTHER_STACK, JOINED), None, 0,
    ),
    "started, and gone": (child_line(CHILD, 0, STARTED), None, 1),
    "a process that became another": (child_line(PROGRAM, STACK, STARTED), None, 1),
    "one that could not": (child_line(PROGRAM, STACK, STARTED) + child_line(PROGRAM, STACK, FAILED), None, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", SAYS)
def test_children_count_that_nobody_looked_at(case: str, tmp_path: Path) -> None:
    lines, stack, unseen = SAYS[case]
    there = children(tmp_path, set())
    if stack is not None:
        process(tmp_path, CHILD, PROGRAM, stack)
    there.look()
    (tmp_path / "spool" / CHILDREN).write_bytes(lines)
    assert there.unseen() == unseen
