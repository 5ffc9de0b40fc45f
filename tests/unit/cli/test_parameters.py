"""What ``--set`` takes is generated from the experiments' parameters."""

from __future__ import annotations

import pytest

from pinscope.cli.main import main
from pinscope.cli.run import parameter_help, parse_settings
from pinscope.errors import InvalidParameter
from pinscope.experiments.registry import EXPERIMENTS, find


def test_settings_are_split_at_the_first_equals_sign() -> None:
    assert parse_settings(["sizes=4KiB,1MiB", " note = a=b "]) == {"sizes": "4KiB,1MiB", "note": "a=b"}


@pytest.mark.parametrize("text", ["sizes", "=4", " =4", ""])
def test_a_setting_needs_key_and_value(text: str) -> None:
    with pytest.raises(InvalidParameter, match="KEY=VALUE"):
        parse_settings([text])


def test_every_parameter_is_explained_with_its_unit_and_its_choices() -> None:
    explained = dict(parameter_help(find("bandwidth").experiment.Params))
    assert explained["sizes"].startswith("Copy sizes (bytes). ")
    assert explained["directions"].endswith("Any of: h2d, d2h, bidirectional.")
    assert "One of: leave_one_out, all." in dict(parameter_help(find("overlap").experiment.Params))["combinations"]


def test_run_help_lists_every_parameter_of_every_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for entry in EXPERIMENTS:
        assert f"Parameters of {entry.experiment.name}" in text
        for name, explanation in parameter_help(entry.experiment.Params):
            assert f"{name} {' '.join(explanation.split())}" in text
