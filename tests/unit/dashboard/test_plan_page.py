"""Plan: the page answers at once, and again with every change."""

from __future__ import annotations

from collections.abc import Callable

from streamlit.testing.v1 import AppTest

from pinscope.dashboard.pages import PLAN
from tests.unit.dashboard.conftest import Open, all_opened


def metric(app: AppTest, label: str) -> str:
    """A figure of the headline."""
    return next(one.value for one in app.metric if one.label.replace("\\", "") == label)


def test_a_plan_stands_before_anything_is_entered(open_page: Open, machine: Callable[[int], None]) -> None:
    machine(1)
    app = open_page(PLAN)
    assert not app.exception
    assert metric(app, "Page table of one process, on one GPU") == "128 MiB"
    assert app.get("plotly_chart")
    assert app.text_input(key="plan-gpu_memory").value == "80 GiB"


def test_a_change_changes_the_plan_and_the_command(open_page: Open, machine: Callable[[int], None]) -> None:
    machine(1)
    app = open_page(PLAN)
    app.text_input(key="plan-pinned").set_value("1TiB")
    app.number_input(key="plan-processes").set_value(4)
    app.selectbox(key="plan-page_size").set_value("2MiB").run()
    all_opened(app)
    assert metric(app, "Page tables on a GPU, each process registers") == "16 MiB"
    assert metric(app, "Page tables on a GPU, one owner copies for all") == "4 MiB"
    words = "--pinned 1TiB --processes 4 --gpu-memory 80GiB --page-size 2MiB"
    assert app.code[-1].value == f"pinscope plan {words}"


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


def test_a_machine_without_a_gpu_is_told_whose_figures_these_are(
    open_page: Open, machine: Callable[[int], None]
) -> None:
    machine(0)
    words = "\n".join(str(one.value) for one in open_page(PLAN).markdown)
    assert "NVIDIA H200" in words.replace("\\", "")


def test_the_address_holds_the_inputs_and_whoever_opens_it_sees_the_same_plan(
    open_page: Open, machine: Callable[[int], None]
) -> None:
    machine(1)
    app = open_page(PLAN, pinned="1TiB", processes="4", gpu_memory="24GiB", page_size="2MiB")
    assert app.text_input(key="plan-pinned").value == "1 TiB"
    assert app.selectbox(key="plan-page_size").value == "2MiB"
    assert app.code[-1].value == "pinscope plan --pinned 1TiB --processes 4 --gpu-memory 24GiB --page-size 2MiB"
    answer = app.info[0].value.replace("\\", "")
    assert answer.startswith(
        "The plan is for GPUs of 24 GiB, this host's have 80 GiB. Pinning 1 TiB takes about 31.5 s"
    )
    app.number_input(key="plan-processes").set_value(2).run()
    assert dict(app.query_params) == {
        "pinned": "1TiB", "processes": "2", "gpu_memory": "24GiB", "page_size": "2MiB",
    }  # fmt: skip


def test_a_link_that_cannot_be_used_is_one_clear_line_above_the_usual_plan(
    open_page: Open, machine: Callable[[int], None]
) -> None:
    machine(1)
    links = (({"pinned": "lots"}, "'lots' is not a size"), ({"colour": "red"}, "o parameter 'colour'"))
    for link, complaint in links:
        app = open_page(PLAN, **link)
        (line,) = [one.value.replace("\\", "") for one in app.error if "error" in one.icon]
        assert complaint in line
        assert metric(app, "Page table of one process, on one GPU") == "128 MiB"
        app.text_input(key="plan-pinned").set_value("2GiB").run()
        assert not [one for one in app.error if "error" in one.icon]
        assert app.query_params["pinned"] == "2GiB"
