"""One button measures this machine with the quick experiments; one bar shows every tab how far that is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from pinscope.dashboard import state
from pinscope.dashboard.gpu_cards import SHOWN
from pinscope.dashboard.labels import errors_shown, experiment_title, plain, sentence
from pinscope.dashboard.run_cards import PROGRESS_SECONDS
from pinscope.errors import PinScopeError
from pinscope.records.environment import Environment
from pinscope.runner.jobs import Request
from pinscope.runner.suite import ALL, Step, Suite, possible, select
from pinscope.store.store import Store


@dataclass
class _Shared:
    """What all tabs look at.

    Attributes:
        suite: the last one that was started.
        lock: held while one is started, so that two tabs do not start two.
    """

    suite: Suite | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, store: Store, environment: Environment) -> None:
        with self.lock:
            if self.suite is None or self.suite.has_ended:
                suite = Suite(store, machine_requests(environment), environment)
                suite.start()
                self.suite = suite

    def end(self) -> None:
        """Cancel what goes on, and wait for its end."""
        if self.suite is not None:
            self.suite.cancel()
            self.suite.join()


@st.cache_resource(show_spinner=False, on_release=_Shared.end)
def _shared() -> _Shared:
    return _Shared()


def machine_requests(environment: Environment) -> Sequence[Request]:
    """All quick experiments on the first GPU, and on each other one those that its card shows.

    Raises:
        NotPossible: none can run here.
    """
    first, *others = environment.devices
    requests = [*select(Request(ALL, "cuda", first.index, quick=True), environment).requests]
    for gpu in others:
        requests += possible([Request(name, "cuda", gpu.index, quick=True) for name in SHOWN], environment).requests
    return requests


@st.cache_data(show_spinner=False, ttl=30)
def _expected(_environment: Environment) -> tuple[int, float]:
    """How many experiments there are, and the seconds that they take."""
    suite = Suite(state.store(), machine_requests(_environment), _environment)
    return len(suite.steps), suite.expected_seconds


def measure_machine(store: Store, environment: Environment, place: DeltaGenerator) -> None:
    """Draw the button in its place, or below it how far the measuring is that it started."""
    shared = _shared()
    if shared.suite is not None and not shared.suite.has_ended:
        with st.container(border=True, key="measuring"):
            st.fragment(_bar, run_every=PROGRESS_SECONDS)(shared)
        return
    with place:
        _button(shared, store, environment)
    if shared.suite is not None:
        _problems(shared.suite.steps)


def _button(shared: _Shared, store: Store, environment: Environment) -> None:
    try:
        count, seconds = _expected(environment)
    except PinScopeError as error:
        st.button("Measure this machine", disabled=True, key="measure-refused", width="stretch")
        st.caption(plain(sentence(str(error))))
        return
    if st.button("Measure this machine", type="primary", icon=":material/play_arrow:", key="measure", width="stretch"):
        state.environment.clear()  # a run carries the machine as it is now
        with errors_shown():
            shared.start(store, state.environment())
            st.rerun()
    st.caption(f"{count} quick experiments, about {_roughly(seconds)}. You may close this page meanwhile.")


def _roughly(seconds: float) -> str:
    return f"{max(10, round(seconds, -1)):.0f} s" if seconds < 150 else f"{seconds / 60:.0f} min"


def _bar(shared: _Shared) -> None:
    suite = shared.suite
    if suite is None or suite.has_ended:
        st.rerun()
    with errors_shown():
        fraction = suite.fraction()
        left = _roughly((1 - fraction) * suite.expected_seconds)
        step = suite.current or suite.steps[-1]
        number = suite.steps.index(step) + 1
        words, action = st.columns([5, 1], vertical_alignment="center")
        with words:
            label = f"{experiment_title(step.request.experiment)} on GPU {step.request.device}"
            place = f"{number} of {len(suite.steps)} experiments, about {left} left"
            st.progress(fraction, text=f"**{fraction:.0%}** · {plain(label)} · {place}")
        if action.button("Cancel", icon=":material/stop_circle:", key="measuring-cancel", width="stretch"):
            with st.spinner("Stopping …"):
                suite.cancel()
                suite.join()
            st.rerun()


def _problems(steps: Sequence[Step]) -> None:
    """What could not be measured, with the reason."""
    for step in steps:
        if step.problem:
            st.warning(plain(sentence(f"{step.request.experiment} on GPU {step.request.device}: {step.problem}")))
