"""What a page says first, known before any of it is drawn: the same words from the same functions.

Loads little, for a server that has just been started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Literal

from pinscope.dashboard import answers, state
from pinscope.dashboard.first_blocks import HEADING, Block, Line
from pinscope.dashboard.pages import HOME, RUNS, PageEntry
from pinscope.dashboard.run_titles import title
from pinscope.errors import PinScopeError
from pinscope.experiments.registry import find_reader
from pinscope.records.environment import Environment
from pinscope.records.run import Run
from pinscope.store.store import Store


def first_words(page: PageEntry, query: Mapping[str, str]) -> list[Block]:
    """What is known now of what follows the page's opening; what the store cannot tell is left out."""
    with suppress(PinScopeError):
        if page is HOME:
            return list(_home())
        if page is RUNS and "run" in query:
            return [_run(_store().run(query["run"]))]
    return []


@lru_cache(maxsize=1)
def machine() -> Environment:
    """This machine as it was when it was first looked at: which GPUs it has does not change."""
    return state.environment()


def _store() -> Store:
    return state.store()


def _home() -> Iterator[Block]:
    """What it answers: of each GPU; without one the latest runs of this machine's own, else the tour's first step."""
    environment, store = machine(), _store()
    if environment.devices:
        yield Block("heading", ".st-key-gpu-cards", (Line("GPUs", "h2"),))
        for gpu in environment.devices:
            verdicts = [_link(run.verdict, run) for run in answers.newest_runs(store, gpu).values() if run.verdict]
            name = Line(f"GPU {gpu.index}: {gpu.name}", "strong")
            yield Block("card", '.st-key-gpu-cards [data-testid="stPageLink"]', (name, *verdicts))
        return
    why = Line(answers.why_no_gpu(environment))
    yield Block("note", '[data-testid="stAlert"]', (Line(answers.NO_GPU, "strong"), why))
    own = answers.latest_runs(store)
    if own:
        until = '[class*="st-key-run-"]'
        yield Block("heading", until, (Line("Latest runs", "h2"),))
        yield from (Block("card", until, (_title(run), Line(run.verdict or ""))) for run in own)
    else:
        yield from _tour()


def _tour() -> Iterator[Block]:
    """Its first step."""
    steps = answers.tour_runs()
    for run in list(steps.values())[:1]:
        until = ".st-key-tour h3"
        yield Block("heading", until, (Line(answers.tour_heading(steps), "h2"), Line(answers.TOUR_NOTE, "small")))
        question = Line(find_reader(run.experiment).kind.question)
        yield Block("card", until, (question, _title(run), Line(run.verdict or "", "h3")))


def _run(run: Run) -> Block:
    verdict = (Line(run.verdict, "h3"),) if run.verdict else ()
    question = Line(find_reader(run.experiment).kind.question)
    return Block("opening", HEADING, (Line("All runs", link=RUNS.address), Line(title(run), "h1"), question, *verdict))


def _title(run: Run) -> Line:
    return _link(title(run), run, "strong")


def _link(text: str, run: Run, tag: Literal["p", "strong"] = "p") -> Line:
    return Line(text, tag, f"{RUNS.address}?run={run.id}")
