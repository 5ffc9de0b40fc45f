"""Where an experiment is to run, and in which size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import streamlit as st

from pinscope.dashboard.plain import plain
from pinscope.experiments.contract import AnyExperiment
from pinscope.records.environment import Device, Environment
from pinscope.records.run import HOST_MODEL_NOTE, LAB_TITLES, LabKind


@dataclass(frozen=True)
class Place:
    """A lab with its device.

    Attributes:
        lab: ``cuda`` or ``host``.
        device: GPU index; 0 on the host lab.
        title: as people read it.
        gpu: the GPU; ``None`` on the host lab.
    """

    lab: LabKind
    device: int
    title: str
    gpu: Device | None


def places(experiment: AnyExperiment, environment: Environment) -> list[Place]:
    """Where this experiment can be asked to run here: GPUs first."""
    found = [
        Place("cuda", device.index, f"GPU {device.index}: {device.name}", device) for device in environment.devices
    ]
    found.append(Place("host", 0, LAB_TITLES["host"], None))
    return [place for place in found if experiment.labs.get(place.lab, "not written for it") is None] or found


def choose_place(experiment: AnyExperiment, environment: Environment) -> tuple[Place, bool]:
    """Draw the two choices; the place, and whether the run is to be quick."""
    options = places(experiment, environment)
    grid = st.grid(2, min_column_width=280, gap=("small", "large"))
    with grid.cell():
        chosen = st.selectbox("Runs on", [place.title for place in options], key="place", persist_state="session")
    with grid.cell():
        size = st.segmented_control(
            "Size", ["Quick", "Full"], default="Quick", required=True, key="size", persist_state="session",
            help="Quick takes seconds and is less precise. Full covers more sizes and combinations.",
        )  # fmt: skip
    place = _named(options, chosen)
    if place.lab == "host":
        st.caption(plain(HOST_MODEL_NOTE))
    return place, size != "Full"


def _named(options: Sequence[Place], title: str | None) -> Place:
    return next((place for place in options if place.title == title), options[0])
