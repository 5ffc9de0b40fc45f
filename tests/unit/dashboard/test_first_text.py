"""The text that stands in a page before Streamlit draws it: the same words, none of them taken for markup."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import pytest
import streamlit as st

from pinscope.dashboard import first_text
from pinscope.dashboard.first_blocks import Block, has_words, opening, page_at, written
from pinscope.dashboard.first_words import first_words, machine
from pinscope.dashboard.middleware import _hashes
from pinscope.dashboard.pages import EXPERIMENTS, HOME, NOW, PAGES, PLAN, RUNS, PageEntry
from pinscope.dashboard.plain import plain, prose
from pinscope.store.store import Store
from tests.data import synthetic
from tests.unit.dashboard.conftest import Open
from tests.unit.dashboard.test_gpu_cards import answer, links, rows_of, run_of

INDEX = b'<html><head><title>x</title></head><body><noscript></noscript><div id="root"></div></body></html>'
EVIL = "</main><script>alert(1)</script> & <b>pinned</b>"


@pytest.fixture(autouse=True)
def _another_machine() -> Iterator[None]:
    machine.cache_clear()
    yield
    machine.cache_clear()
    st.cache_resource.clear()  # closes the store


def lines(blocks: list[Block]) -> list[str]:
    return [line.text for line in chain.from_iterable(block.lines for block in blocks) if line.text]


def page(path: str, query: str = "", index: bytes = INDEX) -> bytes:
    async def whole() -> bytes:
        scope = {"path": path, "query_string": query.encode()}
        return b"".join([piece async for piece in first_text.pieces(first_text.with_script(index), scope)])

    with ThreadPoolExecutor(1) as thread:  # Playwright's loop may run in this one
        return thread.submit(asyncio.run, whole()).result()


def test_home_without_a_gpu_says_first_what_its_page_says(machine: Callable[[int], None], open_page: Open) -> None:
    machine(0)
    app = open_page(HOME)
    shown = {element.value for element in (*app.title, *app.header, *app.subheader, *app.markdown, *app.caption)}
    shown |= {element.value for element in app.info} | {element.proto.label for element in app.get("page_link")}
    shown |= {element.proto.title for element in app.info}
    said = lines([*opening(HOME), *first_words(HOME, {})])
    assert len(said) == 9
    assert [text for text in said if not {text, plain(text), prose(text), f"**{plain(text)}**"} & shown] == []


def test_home_on_a_gpu_host_says_first_what_its_cards_answer(
    store: Store, machine: Callable[[int], None], open_page: Open
) -> None:
    store.import_runs([(run_of(0), rows_of(0)), (run_of(1), rows_of(1))])
    machine(2)
    cards = [block for block in first_words(HOME, {}) if block.kind == "card"]
    answers = {line.text: line.link for block in cards for line in block.lines if line.link}
    shown = links(open_page(HOME))
    for gpu in (0, 1):
        assert answers[answer(gpu)] == f"/runs?run=of-gpu-{gpu}"
        assert shown[prose(answer(gpu))] == f"run=of-gpu-{gpu}"


def test_a_run_says_first_what_it_is_and_what_came_out(store: Store) -> None:
    run = synthetic.run("bandwidth").model_copy(update={"verdict": "It is faster."})
    store.import_runs([(run, synthetic.bandwidth_rows())])
    assert lines(first_words(RUNS, {"run": run.id}))[-1] == "It is faster."
    assert first_words(RUNS, {"run": "nothing"}) == []


@pytest.mark.parametrize("entry", [NOW, PLAN])
def test_a_page_that_asks_a_question_says_it_first(entry: PageEntry) -> None:
    assert written(opening(entry)).encode() in page(entry.address)


@pytest.mark.parametrize("entry", [EXPERIMENTS, RUNS])
def test_a_page_that_begins_with_its_name_alone_has_no_first_text(entry: PageEntry) -> None:
    assert not has_words(entry, {})
    assert b"<main" not in page(entry.address)


def test_each_page_is_found_under_the_address_that_streamlit_gives_it(open_page: Open) -> None:
    assert [page_at(entry.address) for entry in PAGES] == list(PAGES)
    assert page_at("/manual/") is None
    links = {element.proto.page for element in open_page(HOME).get("page_link")}
    assert links <= {entry.address.removeprefix("/") for entry in PAGES}


def test_what_a_run_says_is_never_markup_and_runs_no_script(store: Store) -> None:
    run = synthetic.run("bandwidth").model_copy(update={"verdict": EVIL})
    store.import_runs([(run, synthetic.bandwidth_rows())])
    found = page("/runs", f"run={run.id}")
    assert b"&lt;script&gt;alert(1)" in found
    assert found.count(b"</main>") == 1
    assert b"<b>" not in found
    assert _hashes(found) == _hashes(first_text.with_script(INDEX))


@pytest.mark.parametrize("index", [b"<html></html>", INDEX * 2, INDEX.replace(b"root", b"app")])
def test_a_page_of_streamlit_of_another_shape_stays_as_it_is(index: bytes) -> None:
    assert page("/", index=index) == index


def test_nothing_that_a_browser_loads_first_stands_before_the_text() -> None:
    sheet = b'<link rel="stylesheet" crossorigin href="./static/css/index.css">'
    found = page("/", index=INDEX.replace(b"</head>", sheet + b"</head>"))
    assert found.count(sheet) == 1
    assert found.index(b"</main>") < found.index(sheet)


def test_a_fault_of_the_text_leaves_the_page_with_its_opening(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(first_text, "_found", lambda *_: 1 / 0)
    found = page("/")
    assert HOME.heading.encode() in found
    assert found.endswith(b'<div id="root"></div></body></html>')
    assert "Home" in caplog.text


def test_the_server_answers_before_what_draws_its_pages_is_loaded() -> None:
    code = (
        "import sys, streamlit, pinscope.dashboard.middleware, pinscope.dashboard.tabs, pinscope.dashboard.serve\n"
        "heavy = {'pandas', 'numpy', 'sqlalchemy', 'pyarrow', 'pinscope.store.store'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
