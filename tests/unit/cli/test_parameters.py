"""What ``--set`` takes is generated from the experiments' parameters."""

from __future__ import annotations

import re

import pytest

from pinscope.cli.main import main
from pinscope.cli.run import parse_settings
from pinscope.errors import InvalidParameter
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.report.facts import form_parameters


def test_settings_are_split_at_the_first_equals_sign() -> None:
    assert parse_settings(["sizes=4KiB,1MiB", " note = a=b "]) == {"sizes": "4KiB,1MiB", "note": "a=b"}


def test_a_setting_needs_key_and_value() -> None:
    for text in ["sizes", "=4", " =4", ""]:
        with pytest.raises(InvalidParameter, match="KEY=VALUE"):
            parse_settings([text])


def help_of(*arguments: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Printed help, with its lines joined."""
    assert main([*arguments]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_run_help_lists_every_experiment_on_one_line_and_no_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    for entry in EXPERIMENTS:
        gpu_only = " (GPU only)" if entry.experiment.labs.get("host") else ""
        assert re.search(rf"^  {entry.name} +{re.escape(entry.experiment.summary + gpu_only)}$", shown, re.MULTILINE)
    assert "Kinds of host memory" not in shown
    assert len(shown.splitlines()) < 45


def test_the_help_of_an_experiment_shows_its_question_and_parameters_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for entry in EXPERIMENTS:
        shown = help_of("run", entry.name, "--help", capsys=capsys)
        assert entry.experiment.question in shown
        for parameter in form_parameters(entry.experiment.Params):
            assert parameter.description in shown
            assert parameter.takes in shown
        others = [other.experiment.question for other in EXPERIMENTS if other.name != entry.name]
        assert [question for question in others if question in shown] == []


def test_the_help_of_an_experiment_shows_defaults_and_how_to_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    shown = help_of("run", "--lab", "cuda", "bandwidth", "-h", capsys=capsys)
    assert "[default: 1%; --quick: 2%; host model: 2%]" in shown
    assert "[default: all of these]" in shown


def test_every_default_is_written_as_set_takes_it() -> None:
    for entry in EXPERIMENTS:
        for quick in [False, True]:
            preset = entry.experiment.Params.preset("cuda", quick)
            parameters = form_parameters(type(preset))
            written = {parameter.name: parameter.written(getattr(preset, parameter.name)) for parameter in parameters}
            assert preset.with_overrides(written) == preset


def test_help_of_what_is_no_experiment_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nope", "--help"]) == 2
    assert "there are: bandwidth, overlap" in capsys.readouterr().err
