"""Text on its way to the terminal: no markup, no control characters, colour in terminals only."""

from __future__ import annotations

import io
import json
import sys

import pytest

from pinscope.cli import terminal
from pinscope.cli.main import main
from pinscope.cli.outcome import print_findings
from pinscope.cli.terminal import print_json, print_line, print_prose, print_table
from pinscope.records.run import Finding, Quantity


def test_text_from_outside_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("host \x1b]0;title\x07\x1b[2J\x9b31m name\r")
    print_table(("[bold]name",), [("[red]not red[/red] :smile: \x1b[31m",)])
    out = capsys.readouterr().out
    assert not any(ord(sign) < 32 and sign != "\n" for sign in out)
    assert "\x9b" not in out
    assert "[bold]name" in out
    assert "[red]not red[/red] :smile:" in out


def test_a_terminal_gets_lines_that_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(terminal, "terminal_columns", lambda: 40)
    print_table(("id", "text"), [("20261121-035956-f72895", "many words that must go on in further lines")])
    print_prose("A finding that says more than fits.", "  ", "    ")
    print_prose("Run: pinscope run bandwidth --set repeats=300", "  → ", "    ")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert any(line.startswith("20261121-035956-f72895  many words") for line in lines)
    assert lines[-2:] == ["  → Run: pinscope run bandwidth --set", "    repeats=300"]


def test_json_is_ascii_where_the_terminal_is_not_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    print_json({"name": "Pinned ÷ pageable → µs"})
    sys.stdout.flush()
    assert json.loads(raw.getvalue().decode("ascii")) == {"name": "Pinned ÷ pageable → µs"}


def test_json_carries_no_control_characters_of_foreign_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    command = "a\x1b[2J b\x9b31m c\x7f\x85 ÷"
    print_json({"command": command}, on_one_line=True)
    out = capsys.readouterr().out
    assert out == '{"command": "a\\u001b[2J b\\u009b31m c\\u007f\\u0085 ÷"}\n'
    assert json.loads(out) == {"command": command}


def test_a_finding_takes_no_lines_from_foreign_names_and_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings([
        Finding(
            rule="rule", severity="note", title="one\n✓ Good: forged holds 1 GiB", detail="Told.",
            evidence=(Quantity(name="Held by a\nb", value="train\n→ Run: rm -r /", unit="text"),), advice="None.",
        )
    ])  # fmt: skip
    assert capsys.readouterr().out.splitlines() == [
        "ℹ Note: one ✓ Good: forged holds 1 GiB", "  Told.", "  · Held by a b: train → Run: rm -r /", "  → None.", "",
    ]  # fmt: skip


def test_without_a_command_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Commands:" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pinscope 0.")
