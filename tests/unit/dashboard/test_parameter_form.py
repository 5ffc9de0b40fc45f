"""The form is made from the fields of the parameters, whatever experiment they belong to."""

from __future__ import annotations

from typing import Any, Literal, Self

import pytest
from pydantic import Field
from streamlit.testing.v1 import AppTest

from pinscope.experiments.contract import Params
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.records.parameters import Bytes, Several, Sizes
from pinscope.records.run import LabKind
from pinscope.report.facts import form_parameters


class MadeUpParams(Params):
    """One field of every kind that a form can ask for."""

    share: float = Field(0.25, ge=0, le=1, title="A share", json_schema_extra={"unit": "share"}, description="S.")
    seconds: float = Field(1.5, gt=0, title="A time", json_schema_extra={"unit": "seconds"}, description="T.")
    count: int = Field(3, ge=1, le=9, title="A count", json_schema_extra={"unit": "count"}, description="C.")
    size: Bytes = Field(1_000_008, title="A size", json_schema_extra={"unit": "bytes"}, description="B.")
    sizes: Sizes = Field((4096, 2**20), title="Sizes", json_schema_extra={"unit": "bytes"}, description="BB.")
    word: Literal["one_way", "both"] = Field("both", title="A word", description="W.")
    words: Several[Literal["a", "b", "c"]] = Field(("a", "c"), title="Words", description="WW.")
    switch: bool = Field(True, title="A switch", description="X.")

    @classmethod
    def preset(cls, lab: LabKind, quick: bool) -> Self:
        del lab, quick
        return cls()


def form() -> None:
    """The script under test."""
    import streamlit as st

    from pinscope.dashboard.parameter_form import parameter_form
    from tests.unit.dashboard.test_parameter_form import MadeUpParams

    st.session_state["overrides"] = parameter_form(MadeUpParams.preset("host", True), "made-up")


@pytest.fixture
def app() -> AppTest:
    return AppTest.from_function(form, default_timeout=30).run()


def overrides(app: AppTest) -> dict[str, Any]:
    app.run()
    assert not app.exception
    found: dict[str, Any] = app.session_state["overrides"]
    return found


def changed(app: AppTest) -> MadeUpParams:
    """The parameters that the form asks for, validated."""
    return MadeUpParams().with_overrides(overrides(app))


def test_every_field_has_a_control_and_the_common_ones_come_last() -> None:
    names = [parameter.name for parameter in form_parameters(MadeUpParams)]
    assert set(names) == set(MadeUpParams.model_fields)
    assert names[-3:] == ["precision", "repeats", "time_limit"]


def test_every_experiment_can_be_asked_for_by_a_form() -> None:
    for lab in ["cuda", "host"]:
        for entry in EXPERIMENTS:
            experiment = entry.experiment
            for parameter in form_parameters(experiment.Params):
                chosen = getattr(experiment.Params.preset(lab, True), parameter.name)
                assert (
                    not parameter.choices or set(parameter.choices) >= {chosen} or set(parameter.choices) >= set(chosen)
                )


def test_a_form_left_alone_asks_for_the_preset(app: AppTest) -> None:
    assert overrides(app) == {}


def test_a_share_is_asked_for_in_per_cent_a_number_within_its_bounds_and_a_size_as_text_with_its_unit(
    app: AppTest,
) -> None:
    share, count = app.number_input(key="made-up-share"), app.number_input(key="made-up-count")
    assert (share.value, share.min, share.max) == (25, 0, 100)
    assert (count.min, count.max, count.step) == (1, 9, 1)
    assert app.text_input(key="made-up-sizes").value == "4 KiB, 1 MiB"
    assert app.text_input(key="made-up-size").value == "1000008 B"  # no unit says it exactly
    share.set_value(12.5)
    app.text_input(key="made-up-sizes").set_value("1GiB, 64 KiB")
    params = changed(app)
    assert (params.share, params.sizes) == (0.125, (2**16, 2**30))


def test_choices_are_offered_in_words(app: AppTest) -> None:
    assert list(app.selectbox(key="made-up-word").options) == ["one-way", "both"]
    app.selectbox(key="made-up-word").set_value("one_way")
    app.pills(key="made-up-words").set_value(["b"])
    app.toggle(key="made-up-switch").set_value(False)
    assert overrides(app) == {"word": "one_way", "words": ("b",), "switch": False}
