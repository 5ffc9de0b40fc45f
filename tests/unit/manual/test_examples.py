"""Output that the pages show is what the terminal shows, of recorded runs and of captured hosts."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from pinscope.cli import machine
from pinscope.cli.live import print_once
from pinscope.cli.live_view import View
from pinscope.cli.main import main
from pinscope.cli.run import parse_settings
from pinscope.experiments.registry import find
from pinscope.live.findings import snapshot_findings
from pinscope.probes.proc import Proc
from pinscope.report.facts import by_severity
from pinscope.store.recordings import recorded_runs
from tests.data.snapshot_checks import captured

ROOT = Path(__file__).parents[3]
H200 = ROOT / "tests" / "data" / "proc" / "h200-holders"


def example(page: str, command: str) -> tuple[list[str], list[str]]:
    """Words and output of a command that a page shows, without what is left out."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    block = re.search(rf"```console\n\$ pinscope ({command}[^\n]*)\n(.*?)```", text, re.DOTALL)
    assert block is not None, command
    return block[1].split(), [line for line in block[2].splitlines() if line and line != "…"]


@pytest.fixture
def on_the_recorded_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find the machine of the recorded H200 runs."""
    run = next(run for run in recorded_runs() if run.experiment == "bandwidth" and run.environment.host == "h200")
    monkeypatch.setattr(machine, "capture_environment", lambda: run.environment)
    works = partial(machine.capabilities, proc=Proc.below(H200), installed=lambda module: True)
    monkeypatch.setattr(machine, "capabilities", works)


@pytest.mark.parametrize(("page", "command"), [("quick-start", "doctor"), ("plan", "plan")])
@pytest.mark.usefixtures("on_the_recorded_host")
def test_the_example_is_what_the_recorded_host_shows(
    page: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, lines = example(page, command)
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(lines) > 5
    assert [line for line in lines if line not in shown] == []


def test_the_example_of_the_live_view_is_what_a_captured_host_shows(capsys: pytest.CaptureFixture[str]) -> None:
    words, lines = example("live-view", "live")
    seen = captured(H200)
    print_once(False, View(seen, by_severity(snapshot_findings(seen))))
    shown = capsys.readouterr().out.splitlines()
    assert words == ["live", "--once"]
    assert [line for line in lines if line not in shown] == []
    owner, worker = (next(holder for holder in seen.holders if holder.pid == pid) for pid in (746, 749))
    assert owner.inherited_by == (worker.pid,)
    assert sum(1 for holder in seen.holders if holder.gpus) == 10


def test_every_command_that_a_page_shows_takes_the_options_it_is_shown_with(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` behind it: the line is parsed, and nothing is carried out."""
    commands = [line for path in (ROOT / "docs").rglob("*.md") for line in commands_in(path.read_text())]
    assert len(commands) > 20
    for line in commands:
        words = line.split()
        own = 1 if words[0] == "trace" else len(words)  # what stands behind a traced program is the program's
        assert main([*words[:own], "--help", *words[own:]]) == 0, line
        capsys.readouterr()


def commands_in(markdown: str) -> list[str]:
    """What follows ``pinscope`` on the lines of code blocks, without comments and redirections."""
    blocks = "\n".join(re.findall(r"```(?:bash|console)\n(.*?)```", markdown, re.DOTALL))
    lines = re.findall(r"^(?:\$ |sudo )?(?:\.venv/bin/)?pinscope (.*)$", blocks, re.MULTILINE)
    return [re.split(r"\s+[#>]", line)[0].strip() for line in lines]


def test_settings_that_the_quick_start_shows_are_taken() -> None:
    for line in commands_in((ROOT / "docs" / "quick-start.md").read_text()):
        words = line.split()
        if words[0] == "run" and words[1] != "all":
            lab = "host" if "--lab" in words else "cuda"
            settings = parse_settings([word for word in words if "=" in word])
            find(words[1]).experiment.Params.preset(lab, "--quick" in words).with_overrides(settings)
