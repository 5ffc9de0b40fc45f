"""Plan: what pinning an amount will take, before anything is pinned."""

from __future__ import annotations

import streamlit as st

from pinscope.dashboard import state
from pinscope.dashboard.parameter_form import parameter_form
from pinscope.dashboard.widgets import reading_view, show_error
from pinscope.errors import InvalidParameter
from pinscope.planning.charts import draw_plan
from pinscope.planning.parameters import PlanParams, command_line
from pinscope.planning.prices import known_prices, plan_for
from pinscope.planning.reading import read_plan


def show() -> None:
    """Draw the page: the form, and at once what it comes to."""
    st.title("Plan", anchor=False)
    st.markdown(
        "What does it take to pin an amount: GPU memory for page tables, time, and how much is safe on this host? "
        "The plan uses runs of this machine where there are any, else recorded ones. Nothing is pinned."
    )
    environment = state.environment()
    prices = known_prices(state.store(), environment)
    preset = PlanParams.for_machine(environment, prices.recorded)
    with st.container(border=True):
        overrides = parameter_form(preset, key="plan")
    try:
        params = preset.with_overrides(overrides)
    except InvalidParameter as error:
        show_error(error)
        return
    plan = plan_for(params, prices, environment)
    reading = read_plan(plan)
    reading_view(reading, draw_plan(plan))
    st.header("This plan on the command line", anchor=False)
    st.code(command_line(params), language="bash")


if __name__ == "__main__":
    show()
