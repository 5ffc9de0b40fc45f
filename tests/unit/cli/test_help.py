"""Help: every command has it by either name, and every option and parameter is explained in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pinscope.cli.main import command_line, main
from pinscope.manual.reference import commands

COMMANDS = dict(commands(command_line()))


def test_every_command_has_help_by_either_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ["pinscope", "pinscope runs", *COMMANDS]:
        printed = []
        for option in ("-h", "--help"):
            assert main([*name.split()[1:], option]) == 0
            printed.append(capsys.readouterr().out)
        assert printed[0] == printed[1]
        assert printed[0].startswith(f"Usage: {name} ")
        assert "-h, --help" in printed[0]


def test_every_option_is_explained_in_sentences() -> None:
    for command in COMMANDS.values():
        for parameter in command.params:
            assert parameter.help[0].isupper(), parameter.name
            assert parameter.help.endswith("."), parameter.name


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("pinscope r", {"run", "runs", "report", "record"}),
        ("pinscope run ba", {"bandwidth"}),
        ("pinscope runs ", {"list", "show", "edit", "cancel", "delete", "trend"}),
        ("pinscope runs list --status ca", {"cancelled"}),
        ("pinscope live --o", {"--once"}),
    ],
)
def test_the_shell_is_offered_what_fits(
    typed: str, offered: set[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split(" ")) - 1))
    monkeypatch.setenv("_PINSCOPE_COMPLETE", "complete_bash")
    assert main([]) == 0
    assert set(capfd.readouterr().out.split()) == offered


def test_the_completion_of_commands_imports_none_of_them() -> None:
    script = (
        "import sys\nfrom pinscope.cli.main import main\ncode = main([])\n"
        "print(code, {'streamlit', 'pandas', 'sqlalchemy', 'numpy'} & set(sys.modules), file=sys.stderr)"
    )
    asking = {"COMP_WORDS": "pinscope d", "COMP_CWORD": "1", "_PINSCOPE_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **asking}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["doctor", "dashboard", "docs"]
    assert done.stderr == "0 set()\n"


@pytest.mark.parametrize("given", [None, "2"])
def test_a_command_loads_without_threads_and_leaves_the_environment_as_it_was(given: str | None) -> None:
    script = (
        "import os, sys\nfrom pinscope.cli.main import command_line\ncommand_line().commands['compare']\n"
        "print('numpy' in sys.modules, len(os.listdir('/proc/self/task')), os.environ.get('OPENBLAS_NUM_THREADS'))"
    )
    variables = {name: text for name, text in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    chosen = {"OPENBLAS_NUM_THREADS": given} if given else {}
    done = subprocess.run(
        [sys.executable, "-c", script], env=variables | chosen, capture_output=True, text=True, check=True
    )
    loaded, threads, left = done.stdout.split()
    assert (loaded, left) == ("True", str(given))
    assert given or threads == "1"
