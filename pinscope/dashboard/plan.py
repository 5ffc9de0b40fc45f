"""Plan: what pinning an amount will take, before anything is pinned. The page's address holds the inputs."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from pinscope.dashboard import state
from pinscope.dashboard.pages import PLAN
from pinscope.dashboard.parameter_form import parameter_form
from pinscope.dashboard.widgets import heading, plain, reading_below_verdict, show_error
from pinscope.errors import InvalidParameter
from pinscope.planning.charts import draw_plan
from pinscope.planning.plan import (
    LEVEL_WORDS,
    Level,
    PlanParams,
    command_line,
    inputs,
    known_prices,
    plan_for,
    safety_of,
)
from pinscope.planning.reading import read_plan
from pinscope.text import sentence

_WRITTEN, _LINK, _FORM = "plan-written", "plan-link", "plan-form"
"""In the session: the inputs that this page put into its address, those that a link brought, and how many links did."""
_BANNERS: Mapping[Level, tuple[str, str]] = {
    "safe": ("success", ":material/check_circle:"),
    "care": ("warning", ":material/warning:"),
    "not_safe": ("error", ":material/block:"),
    "unknown": ("warning", ":material/help:"),
    "elsewhere": ("info", ":material/info:"),
}
"""Level → which of Streamlit's banners, and its sign: colour is not all that tells them apart."""


def show() -> None:
    """Draw the page: the form, and at once what it comes to."""
    heading(PLAN)
    environment = state.environment()
    prices = known_prices(state.store(), environment)
    preset, bad_link = _start(PlanParams.for_machine(environment, prices.recorded))
    answer = st.container()
    with st.container(border=True):
        overrides = parameter_form(preset, key=_form_key())
    try:
        params = preset.with_overrides(overrides)
    except InvalidParameter as error:
        show_error(error)
        return
    if bad_link and not overrides:  # it stays in the address until somebody changes an input
        line = plain(sentence(str(bad_link)))
        answer.error(line, title="The link's inputs cannot be used; this is the usual plan", icon=":material/error:")
    else:
        _write_link(inputs(params))
    plan = plan_for(params, prices, environment)
    reading = read_plan(plan)
    with answer:
        _verdict(safety_of(plan).level, reading.verdict or "")
    reading_below_verdict(reading, draw_plan(plan))
    st.header("This plan elsewhere", anchor=False)
    st.caption(
        "The address of this page holds these inputs. Opened on another machine, it plans with the prices known there. "
        "On the command line:"
    )
    st.code(command_line(params), language="bash")


def _start(usual: PlanParams) -> tuple[PlanParams, InvalidParameter | None]:
    """What the form begins with: the inputs of the link, or the usual ones and what is wrong with the link."""
    link = st.query_params.to_dict()
    if link and link != st.session_state.get(_WRITTEN):  # it came from outside
        st.session_state[_FORM] = st.session_state.get(_FORM, -1) + 1
        st.session_state[_LINK] = st.session_state[_WRITTEN] = link
    try:
        return usual.with_overrides(st.session_state.get(_LINK, {})), None
    except InvalidParameter as error:
        return usual, error


def _form_key() -> str:
    """Each link begins a form of its own: in the one before, what was typed would win."""
    number = st.session_state.get(_FORM, 0)
    return f"plan-{number}" if number else "plan"


def _write_link(wanted: Mapping[str, str]) -> None:
    st.session_state[_WRITTEN] = dict(wanted)
    if st.query_params.to_dict() != wanted:
        st.query_params.from_dict(dict(wanted))


def _verdict(level: Level, verdict: str) -> None:
    kind, icon = _BANNERS[level]
    words = LEVEL_WORDS[level]
    text = verdict.removeprefix(f"{words}: ")
    getattr(st, kind)(plain(text[:1].upper() + text[1:]), title=words, icon=icon)


if __name__ == "__main__":
    show()
