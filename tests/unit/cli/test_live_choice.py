"""What keys change, and what colours show."""

from __future__ import annotations

import pytest

from pinscope.cli import terminal
from pinscope.cli.live import process_page
from pinscope.cli.live_view import Choice, HolderTable, View, frame, press
from pinscope.cli.terminal import styled
from pinscope.records.run import Finding
from tests.data.synthetic_snapshot import GIB, holder, snapshot

COLUMNS = ["pid", "user", "cudaHostAlloc", "program"]
PIDS = [7, 5, 6]


def after(keys: list[str], choice: Choice | None = None) -> Choice:
    for key in keys:
        choice = press(choice or Choice(), key, COLUMNS, PIDS)
    assert choice is not None
    return choice


def test_the_chosen_row_stays_with_its_process_and_within_the_table() -> None:
    assert after(["down"]).pid == 5
    assert after(["down"]).row([5, 6, 7]) == 0
    assert after(["end", "down"]).pid == 6
    assert after(["end"]).row([7, 5]) == 0  # 6 is gone
    assert after(["home", "up"]).row([]) == 0


def test_each_column_sorts_and_the_same_key_again_turns_it_round() -> None:
    assert [after([str(number)]).column for number in (1, 2, 3, 4)] == COLUMNS
    assert after(["9"]) == Choice()
    assert (after(["3", "3"]).turned, after(["3", "3", "3"]).turned, after(["3", "2"]).turned) == (True, False, False)
    assert after(["3", "3", "0"]) == Choice()


def test_typed_words_are_no_commands() -> None:
    typed = after(["/", "q", " ", "p", "9", "backspace"])
    assert (typed.words, typed.typing, typed.ended, typed.paused) == ("q p", True, False, False)
    assert after(["enter"], typed).words == "q p"
    assert after(["escape"], typed).words == ""
    assert after(["enter", "q"], typed).ended


def test_what_is_not_known_comes_last_whichever_way_it_is_sorted() -> None:
    holders = (holder(1, host_alloc_bytes=GIB), holder(2, host_alloc_bytes=None), holder(3, host_alloc_bytes=3 * GIB))
    for turned, pids in ((False, [3, 1, 2]), (True, [1, 3, 2])):
        view = View(snapshot(holders=holders), choice=Choice(column="cudaHostAlloc", turned=turned))
        assert [row.holder.pid for row in HolderTable(view, 100).rows] == pids


def test_a_long_table_moves_until_the_chosen_row_is_on_the_screen() -> None:
    holders = tuple(holder(100 + number, host_alloc_bytes=(50 - number) * GIB) for number in range(50))
    lines = frame(View(snapshot(holders=holders), choice=Choice(pid=140)), 100, 24)
    assert len(lines) == 24
    assert [line.text.split()[0] for line in lines if line.style == "reverse"] == ["140"]


def test_a_process_shows_its_facts_and_only_its_own_findings() -> None:
    other = Finding(rule="r", severity="note", title="Another", detail="", evidence=(), advice="None.")
    own = other.model_copy(update={"title": "python (pid 7) grows", "severity": "warning"})
    view = View(snapshot(holders=(holder(7, parent_pid=6),)), [own, other])
    text = "\n".join(line.text for line in process_page(view, 7, 100))
    assert "pid 6" in text
    assert "! python (pid 7) grows" in text
    assert "Another" not in text
    assert "has ended" in process_page(view, 8, 100)[0].text


def test_no_color_leaves_bold_print(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "is_steerable", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled("x", "bold red") == "\x1b[1;31mx\x1b[0m"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled("x", "bold red") == "\x1b[1mx\x1b[0m"
    assert styled("x", "yellow") == "x"
    monkeypatch.setattr(terminal, "is_steerable", lambda: False)
    assert styled("x", "bold red") == "x"
