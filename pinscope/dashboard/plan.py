"""Plan: what pinning an amount will take, before anything is pinned. The page's address holds the inputs."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from pinscope.dashboard import state
from pinscope.dashboard.pages import PLAN
from pinscope.dashboard.parameter_form import parameter_form
from pinscope.dashboard.widgets import heading, plain, reading_below_verdict, same_as_command, show_error
from pinscope.errors import InvalidParameter
from pinscope.planning.plan import (
    LEVEL_WORDS,
    Level,
    PlanParams,
    command_line,
    host_and_prices,
    inputs,
    plan_for,
    safety_of,
)
from pinscope.planning.reading import draw_plan, read_plan
from pinscope.report.facts import form_parameters
from pinscope.text import sentence

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
    preset, bad_link = _start(PlanParams())
    answer = st.container()
    with st.container(border=True):
        overrides = parameter_form(preset, key="plan")
    try:
        params = preset.with_overrides(overrides)
        host, prices = host_and_prices(params, state.store(), state.environment())
    except InvalidParameter as error:
        show_error(error)
        return
    params = params.on(host, prices.recorded)
    if bad_link and not overrides:  # it stays in the address until somebody changes an input
        title = "The link's inputs cannot be used; this is the usual plan"
        answer.error(plain(sentence(str(bad_link))), title=title, icon=":material/error:")
    else:
        st.query_params.from_dict(inputs(params))
    plan = plan_for(params, prices, host)
    reading = read_plan(plan)
    with answer:
        _verdict(safety_of(plan).level, reading.verdict or "")
    reading_below_verdict(reading, draw_plan(plan))
    st.header("This plan elsewhere", anchor=False)
    same_as_command(command_line(params), "these inputs")


def _start(usual: PlanParams) -> tuple[PlanParams, InvalidParameter | None]:
    """What the form begins with: the inputs of the link by which the page was opened, or the usual ones and why."""
    link = st.session_state.setdefault("plan-link", st.query_params.to_dict())
    if st.session_state.get("plan-like", link.get("like", "")) != link.get("like", "") and link.pop("gpu_memory", None):
        st.session_state.pop("plan-gpu_memory", None)  # it was that of the link's host
    try:
        return usual.with_overrides(link), None
    except InvalidParameter as error:
        return usual, error


def _verdict(level: Level, verdict: str) -> None:
    kind, icon = _BANNERS[level]
    words = LEVEL_WORDS[level]
    text = verdict.removeprefix(f"{words}: ")
    for parameter in form_parameters(PlanParams):  # the page has fields for options
        text = text.replace(f"--{parameter.name.replace('_', '-')}", f"“{parameter.title}”")
    getattr(st, kind)(plain(text[:1].upper() + text[1:]), title=words, icon=icon)


if __name__ == "__main__":
    show()
