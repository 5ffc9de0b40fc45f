"""Where a run is placed, on hosts of every sort and on this one; and where its host buffers lie."""

from __future__ import annotations

import dataclasses
import json
import mmap
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import cast

import pytest

from pinscope.errors import InvalidParameter, NotEnoughMemory
from pinscope.lab.backing import OwnMemory, touch
from pinscope.lab.hostmodel import HostModelLab
from pinscope.lab.placement import SAMPLED_PAGES, HostNodes, Placement, place, placement, preferring, residence
from pinscope.probes.environment import capture_environment
from pinscope.probes.host_memory import bound_nodes, read_nodes
from pinscope.probes.proc import Answer
from pinscope.records.environment import Environment, NumaNode
from pinscope.records.run import HostMemory, LabKind
from pinscope.runner.jobs import Request, prepare
from pinscope.runner.worker import _where
from tests.data.gpu_fake import FakeNvml
from tests.data.synthetic_gpu import idle_h200
from tests.data.synthetic_nodes import TWO_SOCKETS, WITH_EXPANDER, Node, host

LAST = [node for node in read_nodes().value or () if node.memory_bytes][-1]


def machine(folder: Path, nodes: tuple[Node, ...], gpu_node: int) -> Environment:
    """A host with these nodes and one GPU that sysfs says is near ``gpu_node`` (-1: it does not say)."""
    gpu = dataclasses.replace(idle_h200(), numa_node=Answer.missing("NVML names no single NUMA node"))
    nvml = FakeNvml(driver_version=Answer("580.159"), cuda_version=Answer((13, 0)), gpus=[gpu])
    return capture_environment(host(folder, nodes, gpu_node), nvml)


@pytest.mark.parametrize(
    ("nodes", "gpu_node", "lab", "why"),
    [
        (TWO_SOCKETS[:1], 0, "cuda", "This host has one NUMA node, 0: there was nothing to bind."),
        (TWO_SOCKETS[:1], -1, "cuda", "This host has one NUMA node, 0: there was nothing to bind."),
        (TWO_SOCKETS, -1, "cuda", "which NUMA node GPU 0 is near is not known (NVML names no single NUMA node)"),
        (WITH_EXPANDER, 3, "cuda", "NUMA node 3, which GPU 0 is near, has no memory"),
        (TWO_SOCKETS, 7, "cuda", "NUMA node 7, which GPU 0 is near, has no memory"),
        (TWO_SOCKETS, 1, "host", "one of the 2 NUMA nodes: the run uses no GPU that one could be near."),
    ],
)
def test_where_there_is_nothing_to_choose_it_says_so(
    tmp_path: Path, nodes: tuple[Node, ...], gpu_node: int, lab: LabKind, why: str
) -> None:
    chosen = placement("near", machine(tmp_path, nodes, gpu_node), lab, 0)
    assert (chosen.node, chosen.only) == (None, False)
    assert why in chosen.why


@pytest.mark.parametrize(("wanted", "number"), [("0", 0), ("2", 2), ("near", 1)])
def test_a_node_that_is_asked_for_is_the_only_one_and_that_near_the_gpu_preferred(
    tmp_path: Path, wanted: str, number: int
) -> None:
    chosen = placement(wanted, machine(tmp_path, WITH_EXPANDER, 1), "cuda", 0)
    assert chosen.node is not None
    assert (chosen.node.number, chosen.only) == (number, wanted != "near")
    assert f"NUMA node {number}" in chosen.why


@pytest.mark.parametrize(
    ("number", "complaint"),
    [
        *((number, f"this host has no NUMA node {number} with memory; those with memory: 0, 1, 2") for number in "34"),
        *(
            (word, "must be near, any or the number of a NUMA node")
            for word in ("far", "-1", "1.5", "", "0,1", "99999")
        ),
    ],
)
def test_a_node_that_cannot_be_had_is_refused_in_one_line(tmp_path: Path, number: str, complaint: str) -> None:
    environment = machine(tmp_path, WITH_EXPANDER, 1)
    with pytest.raises(InvalidParameter, match=rf"^node: {complaint}.*$"):
        prepare(Request("bandwidth", "host", overrides={"node": number}), environment)


def test_a_run_that_is_bound_may_take_what_its_node_leaves(tmp_path: Path) -> None:
    environment = machine(tmp_path, TWO_SOCKETS, 1)
    large = {"sizes": "40GiB", "memory": "pageable", "directions": "h2d"}
    assert prepare(Request("bandwidth", "host", overrides=large), environment).params["node"] == "near"
    with pytest.raises(NotEnoughMemory, match="available on NUMA node 0"):
        prepare(Request("bandwidth", "host", overrides={**large, "sizes": "50GiB", "node": 0}), environment)


def in_a_child(wanted: str, program: str) -> list[str]:
    """What a new process prints that is placed as ``node=wanted`` and then runs the program."""
    begin = (
        "import json, os, threading\n"
        "from pinscope.lab.placement import place, placement\n"
        "from pinscope.probes.environment import capture_environment\n"
        "from pinscope.probes.host_memory import bound_nodes\n"
        f"notes = place(placement({wanted!r}, capture_environment(), 'host', 0))\n"
    )
    done = subprocess.run([sys.executable, "-c", begin + program], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_bound_process_hands_its_place_on_to_its_threads_and_children() -> None:
    program = (
        "import subprocess, sys\n"
        "nodes = []\n"
        "thread = threading.Thread(target=lambda: nodes.append(bound_nodes()))\n"
        "thread.start(); thread.join()\n"
        "child = 'from pinscope.probes.host_memory import bound_nodes; import os;"
        " print(bound_nodes(), len(os.sched_getaffinity(0)))'\n"
        "print(json.dumps(notes), nodes, subprocess.check_output([sys.executable, '-c', child], text=True), sep='|')\n"
    )
    notes, thread, child = in_a_child(str(LAST.number), program)[0].split("|")
    assert json.loads(notes) == [f"Host buffers and the threads that copy were bound to NUMA node {LAST.number}."]
    assert thread == f"[({LAST.number},)]"
    assert child.startswith(f"({LAST.number},) ")
    assert int(child.split()[-1]) <= len(os.sched_getaffinity(0))


def test_what_the_system_refuses_is_said_and_the_run_goes_on() -> None:
    program = (
        "import pinscope.lab.placement as placement_module\n"
        "from pinscope.records.environment import NumaNode\n"
        "node = NumaNode(number=1023, processors='', memory_bytes=1, available_bytes=1)\n"
        "print(json.dumps(place(placement_module.Placement(node, True, 'x'))))\n"
    )
    (note,) = json.loads(in_a_child("any", program)[0])
    assert note == (
        "NUMA node 1023 was chosen for the run, but its memory could not be bound (set_mempolicy: Invalid argument) "
        "and its threads could not be moved there (it has no processors); in a container it takes CAP_SYS_NICE."
    )


def test_a_preference_ends_with_its_block_and_nothing_is_bound_where_nothing_was_chosen() -> None:
    for node in (LAST.number, None):
        with preferring(node):
            pass
        assert bound_nodes() == ()
    assert place(Placement(None, False, "why")) == ["why"]
    assert bound_nodes() == ()


def test_buffers_that_lay_elsewhere_are_told_at_the_end() -> None:
    node = NumaNode(number=1, processors="0", memory_bytes=1, available_bytes=1)
    nodes = HostNodes()
    nodes.add([1])
    nodes.take()
    assert residence(Placement(node, False, ""), nodes) == []
    nodes.add([0, 1])
    nodes.take()
    assert residence(Placement(node, False, ""), nodes) == [
        "Some host buffers lay on NUMA node 0 instead (host_node of each row)."
    ]
    assert residence(Placement(None, False, ""), nodes) == []
    nodes.reason = "move_pages: Operation not permitted"
    assert residence(Placement(node, False, ""), nodes) == [
        "On which NUMA node host buffers lay is not known: move_pages: Operation not permitted."
    ]


PAGE = mmap.PAGESIZE
HERE = {node.number for node in read_nodes().value or () if node.memory_bytes}


def planted(monkeypatch: pytest.MonkeyPatch, answer: object) -> list[int]:
    """Pages that are asked about from now on; the kernel's answer to each is ``answer(page)``."""
    asked: list[int] = []

    def page_nodes(pages: list[int]) -> Answer[tuple[int | None, ...]]:
        asked.extend(pages)
        return Answer(tuple(answer(page) for page in pages))  # type: ignore[operator]

    monkeypatch.setattr("pinscope.lab.placement.page_nodes", page_nodes)
    return asked


@pytest.mark.parametrize("memory", ["pageable", "pinned", "registered"])
def test_the_host_models_buffers_are_seen_while_they_are_held_and_touched(memory: str) -> None:
    with HostModelLab() as lab:
        with lab.host_buffer(1 << 20, cast("HostMemory", memory)):
            assert set(lab.host_nodes.take()) <= HERE
            assert lab.host_nodes.ever
        with lab.ordinary_memory(1 << 20, "4k") as untouched:
            assert lab.host_nodes.take() == ()
            touch(untouched)
            assert set(lab.host_nodes.take()) <= HERE


@pytest.mark.parametrize("held", [True, False])
def test_a_look_sees_a_buffer_that_is_gone_when_it_is_asked_for_also_one_of_no_lab(held: bool) -> None:
    nodes = HostNodes()
    with OwnMemory(PAGE) as memory, nodes.holding(memory.address, PAGE) if held else nullcontext():
        touch(memory)
        nodes.look([] if held else [(memory.address, PAGE)])
    assert set(nodes.take()) <= HERE
    assert nodes.ever
    assert nodes.take() == ()


def test_the_first_the_last_and_some_pages_between_are_asked_about_and_no_node_is_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where memory is spread over two nodes page by page."""
    asked = planted(monkeypatch, lambda page: page // PAGE % 2)
    for pages in (2, 16, 2**12, 2**18, 2**20 + 1):
        nodes = HostNodes()
        asked.clear()
        with nodes.holding(16 * PAGE, pages * PAGE):
            assert nodes.take() == (0, 1)
        assert len(asked) == min(SAMPLED_PAGES, pages)
        assert (min(asked), max(asked)) == (16 * PAGE, (16 + pages - 1) * PAGE)


def test_a_row_names_the_one_node_or_all_of_several() -> None:
    nodes = HostNodes()
    assert _where(nodes) == {"host_node": None, "host_nodes": None}
    nodes.add([1])
    assert _where(nodes) == {"host_node": 1, "host_nodes": None}
    nodes.add([3, 0])
    assert _where(nodes) == {"host_node": None, "host_nodes": "0, 3"}


def test_a_kernel_that_does_not_answer_is_asked_once_and_the_reason_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def refused(pages: list[int]) -> Answer[tuple[int | None, ...]]:
        calls.append(len(pages))
        return Answer.missing("move_pages: Operation not permitted")

    monkeypatch.setattr("pinscope.lab.placement.page_nodes", refused)
    nodes = HostNodes()
    with nodes.holding(PAGE, PAGE):
        assert nodes.take() == nodes.take() == ()
    assert calls == [1]
    assert nodes.reason == "move_pages: Operation not permitted"
