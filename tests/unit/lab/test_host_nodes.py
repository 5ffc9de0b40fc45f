"""The account of host buffers: where they lie is seen while they are held, and remembered until it is asked for."""

from __future__ import annotations

import mmap
from typing import cast

import pytest

from pinscope.lab import placement
from pinscope.lab.backing import OwnMemory, touch
from pinscope.lab.hostmodel import HostModelLab
from pinscope.lab.placement import SAMPLED_PAGES, HostNodes
from pinscope.probes.answer import Answer
from pinscope.probes.numa import read_nodes
from pinscope.records.run import HostMemory
from pinscope.runner.worker import _where

PAGE = mmap.PAGESIZE
HERE = {node.number for node in read_nodes().value or () if node.memory_bytes}


def planted(monkeypatch: pytest.MonkeyPatch, answer: object) -> list[int]:
    """Pages that are asked about from now on; the kernel's answer to each is ``answer(page)``."""
    asked: list[int] = []

    def page_nodes(pages: list[int]) -> Answer[tuple[int | None, ...]]:
        asked.extend(pages)
        return Answer(tuple(answer(page) for page in pages))  # type: ignore[operator]

    monkeypatch.setattr(placement, "page_nodes", page_nodes)
    return asked


@pytest.mark.parametrize("memory", ["pageable", "pinned", "registered"])
def test_the_host_models_buffers_are_seen_while_they_are_held(memory: str) -> None:
    with HostModelLab() as lab:
        with lab.host_buffer(1 << 20, cast("HostMemory", memory)):
            assert set(lab.host_nodes.take()) <= HERE
            assert lab.host_nodes.ever
        assert lab.host_nodes.take() == ()


def test_memory_that_nobody_has_touched_lies_nowhere_yet() -> None:
    with HostModelLab() as lab, lab.ordinary_memory(1 << 20, "4k") as memory:
        assert lab.host_nodes.take() == ()
        touch(memory)
        assert set(lab.host_nodes.take()) <= HERE
        assert lab.host_nodes.ever


def test_a_buffer_that_is_gone_before_it_is_asked_for_was_seen_by_a_look() -> None:
    nodes = HostNodes()
    with OwnMemory(PAGE) as memory, nodes.holding(memory.address, PAGE):
        touch(memory)
        nodes.look()
    assert set(nodes.take()) <= HERE
    assert nodes.ever
    assert nodes.take() == ()


def test_memory_that_is_no_labs_can_be_shown() -> None:
    nodes = HostNodes()
    with OwnMemory(PAGE) as memory:
        touch(memory)
        nodes.look([(memory.address, PAGE)])
    assert set(nodes.take()) <= HERE
    assert nodes.ever


def test_the_first_the_last_and_some_pages_between_are_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = planted(monkeypatch, lambda _: 0)
    nodes, pages = HostNodes(), 2**18
    with nodes.holding(16 * PAGE, pages * PAGE):
        nodes.take()
    assert len(asked) == SAMPLED_PAGES
    assert (min(asked), max(asked)) == (16 * PAGE, (16 + pages - 1) * PAGE)


def test_memory_that_is_spread_over_two_nodes_page_by_page_is_seen_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, lambda page: page // PAGE % 2)
    for pages in (2, 16, 2**12, 2**18, 2**20 + 1):
        nodes = HostNodes()
        with nodes.holding(0x10000000, pages * PAGE):
            assert nodes.take() == (0, 1)


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

    monkeypatch.setattr(placement, "page_nodes", refused)
    nodes = HostNodes()
    with nodes.holding(PAGE, PAGE):
        assert nodes.take() == nodes.take() == ()
    assert calls == [1]
    assert nodes.reason == "move_pages: Operation not permitted"
