"""Findings: severity in words and colour, the numbers, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import streamlit as st

from pinscope.dashboard.plain import plain, sentence
from pinscope.dashboard.run_words import Colour
from pinscope.records.finding import Finding, Quantity, Severity
from pinscope.report.facts import SEVERITY_WORDS, by_severity, quantity_text
from pinscope.units import format_share, format_value

_COLOURS: Mapping[Severity, Colour] = {"critical": "red", "warning": "orange", "note": "blue", "good": "green"}


def finding_list(findings: Sequence[Finding]) -> None:
    """Draw the findings, the gravest first."""
    grid = st.grid(2, min_column_width=420)
    for finding in by_severity(findings):
        with grid, st.container(border=True, height="stretch", gap="xsmall"):
            _finding(finding)


def _finding(finding: Finding) -> None:
    badge = f":{_COLOURS[finding.severity]}-badge[{SEVERITY_WORDS[finding.severity]}]"
    st.markdown(f"{badge} **{plain(finding.title)}**")
    if finding.detail:
        st.markdown(plain(sentence(finding.detail)))
    if finding.evidence:
        st.caption(" · ".join(f"{plain(one.name)}: **{plain(quantity_text(one))}**" for one in finding.evidence))
    if finding.advice and finding.severity != "good":
        st.markdown(f":material/arrow_forward: {plain(finding.advice)}")
    if finding.code:
        with st.expander("Code to paste"):
            st.code(finding.code, language="python")


def headline(quantities: Sequence[Quantity]) -> None:
    """Draw the figures that answer the question."""
    with st.grid(min_column_width=240):
        for quantity in quantities:
            spread = f"± {format_share(quantity.spread)}" if quantity.spread is not None else None
            st.metric(
                plain(quantity.name), plain(format_value(quantity.value, quantity.unit)), delta=spread,
                delta_color="off", delta_arrow="off", help=quantity.reason and plain(quantity.reason), border=True,
                height="stretch",
            )  # fmt: skip
