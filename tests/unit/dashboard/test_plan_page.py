"""Plan: the page answers at once, and again with every change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from streamlit.testing.v1 import AppTest

from pinscope.dashboard import state
from pinscope.dashboard.pages import PLAN
from pinscope.lab.harness import safe_pinned_bytes
from pinscope.store.recordings import recorded_runs
from pinscope.units import format_bytes
from tests.data import synthetic
from tests.unit.dashboard.conftest import Open, all_opened


def metric(app: AppTest, label: str) -> str:
    """A figure of the headline."""
    return next(one.value for one in app.metric if one.label.replace("\\", "") == label)


def test_a_change_changes_the_plan_and_the_command(open_page: Open, machine: Callable[[int], None]) -> None:
    machine(1)
    app = open_page(PLAN)
    app.text_input(key="plan-pinned").set_value("1TiB")
    app.number_input(key="plan-processes").set_value(4)
    app.toggle(key="plan-shared").set_value(True)
    app.text_input(key="plan-host_memory").set_value("4TiB")
    app.selectbox(key="plan-through").set_value("cuda")
    app.selectbox(key="plan-page_size").set_value("2MiB").run()
    all_opened(app)
    assert metric(app, "Page tables on a GPU, each process registers") == "16 MiB"
    assert metric(app, "Page tables on a GPU, one owner copies for all") == "4 MiB"
    assert metric(app, "Safe to pin on a host with 4 TiB free") == "2 TiB"
    words = "--pinned 1TiB --processes 4 --shared --through cuda --gpu-memory 80GiB --host-memory 4TiB --page-size 2MiB"
    assert app.code[-1].value == f"pinscope plan {words}"


def test_another_host_can_be_asked_about_by_a_link_and_this_one_again(
    open_page: Open, machine: Callable[[int], None]
) -> None:
    machine(1)
    link = {"pinned": "60GiB", "processes": "4", "shared": "True", "gpu_memory": "80GiB", "host_memory": "1TiB"}
    app = open_page(PLAN, **link)
    assert app.success[0].value.replace("\\", "").startswith("That host bears 60 GiB")
    assert dict(app.query_params) == link
    app.toggle(key="plan-shared").set_value(False)
    app.text_input(key="plan-host_memory").set_value("").run()
    assert not app.exception
    assert app.error[0].value.replace("\\", "").startswith("Do not pin 240 GiB (4 processes) on this host")
    assert dict(app.query_params) == {"pinned": "60GiB", "processes": "4", "gpu_memory": "80GiB"}
    app.text_input(key="plan-host_memory").set_value("0").run()
    assert "ost_memory: must be greater than 0" in app.error[0].value.replace("\\", "")


def test_what_is_to_be_given_goes_by_the_name_of_its_field(open_page: Open, machine: Callable[[int], None]) -> None:
    machine(0)
    assert open_page(PLAN).info[0].value.replace("\\", "").endswith("give “Memory of another host” or “Host like”.")


def test_the_host_of_a_recording_is_planned_for_with_its_gpu(open_page: Open, machine: Callable[[int], None]) -> None:
    machine(1)
    app = open_page(PLAN, like="h200", pinned="16GiB")
    of_it = [run for run in recorded_runs() if any("H200" in device.name for device in run.environment.devices)]
    newest = max(of_it, key=lambda run: run.created_at)
    safe = format_bytes(safe_pinned_bytes(newest.environment.limits, "cuda"))
    assert app.success[0].value.replace("\\", "").startswith(f"That host bears 16 GiB, up to {safe} is safe")
    app.text_input(key="plan-like").set_value("abacus").run()
    assert "no run 'abacus'" in app.error[0].value.replace("\\", "")


def test_the_gpu_of_a_links_host_goes_with_that_host(open_page: Open, machine: Callable[[int], None]) -> None:
    machine(1)
    app = open_page(PLAN, pinned="16GiB", gpu_memory="24GiB", host_memory="1TiB")
    assert app.query_params["gpu_memory"] == "24GiB"
    app.text_input(key="plan-pinned").set_value("8GiB").run()
    assert app.query_params["gpu_memory"] == "24GiB"
    app.text_input(key="plan-like").set_value("h200").run()
    assert not app.exception
    assert app.text_input(key="plan-gpu_memory").value == ""
    assert app.query_params["gpu_memory"].startswith("14")
    assert app.query_params["pinned"] == "8GiB"


def test_a_link_that_cannot_be_used_is_one_clear_line_above_the_usual_plan(
    open_page: Open, machine: Callable[[int], None]
) -> None:
    machine(1)
    app = open_page(PLAN, pinned="lots")
    (line,) = [error.value.replace("\\", "") for error in app.error if "error" in error.icon]
    assert "'lots' is not a size" in line
    assert metric(app, "Page table of one process, on one GPU") == "128 MiB"
    app.text_input(key="plan-pinned").set_value("2GiB").run()
    assert not [error for error in app.error if "error" in error.icon]
    assert app.query_params["pinned"] == "2GiB"


def test_in_wsl2_what_is_safe_is_not_known(
    open_page: Open, machine: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(1)
    wsl = synthetic.environment(1).model_copy(update={"virtualization": "WSL2"})
    monkeypatch.setattr(state, "capture_environment", lambda: wsl)
    app = open_page(PLAN)
    app.text_input(key="plan-pinned").set_value("1GiB").run()
    assert not app.success
    assert app.warning[0].value.replace("\\", "").startswith("WSL2 allows far less than 128 GiB, and how much is not")
    assert metric(app, "Safe to pin on this host").replace("\\", "") == "n/a"


def test_bad_input_is_one_clear_line_and_the_form_stays(open_page: Open) -> None:
    app = open_page(PLAN)
    app.text_input(key="plan-pinned").set_value("lots").run()
    assert not app.exception
    assert len(app.error) == 1
    assert "is not a size" in app.error[0].value.replace("\\", "")
    assert not app.metric
    app.text_input(key="plan-pinned").set_value("2GiB").run()
    assert not app.error
    assert metric(app, "Page table of one process, on one GPU") == "4 MiB"
