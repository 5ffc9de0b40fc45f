"""What a run waits for before it measures, and what it carries of its GPUs afterwards."""

from __future__ import annotations

from pinscope.records.environment import LinkErrors
from pinscope.runner.worker import _with_links, queues
from tests.data import synthetic


def test_a_run_that_measures_on_every_gpu_waits_for_all_of_them_in_the_same_order() -> None:
    of_one = synthetic.run("bandwidth", devices=3, device=1)
    of_all = [
        synthetic.run("bandwidth", devices=3, device=device, params={"all_devices": True}) for device in (0, 1, 2)
    ]
    every = sorted(device.uuid for device in of_one.environment.devices)
    assert len(set(every)) == 3
    assert [queues(run) for run in of_all] == [every] * 3
    assert queues(of_one) == [of_one.environment.devices[1].uuid]


def test_runs_of_the_host_model_wait_for_one_another() -> None:
    assert queues(synthetic.run("bandwidth", "host", params={"all_devices": True})) == ["host"]


def errors(replays: int) -> LinkErrors:
    return LinkErrors(replays=replays, correctable=0, nonfatal=0, fatal=0)


def test_a_gpu_carries_the_link_and_its_errors_from_right_before_and_right_after_measuring() -> None:
    device = synthetic.document("bandwidth").run.environment.devices[0]
    planned = device.model_copy(update={"link_errors": errors(1), "missing": {"link_errors_after": "nothing was run"}})
    assert planned.link is not None
    warm = planned.link.model_copy(update={"generation_now": 5})
    before = planned.model_copy(update={"link_errors": errors(2)})
    after = planned.model_copy(update={"link_errors": errors(3), "link": warm})
    (after_run,) = _with_links((planned,), (before,), (after,))
    assert (after_run.link_errors, after_run.link_errors_after, after_run.link) == (errors(2), errors(3), warm)
    assert after_run.missing == {}


def test_a_gpu_that_fell_off_its_bus_while_it_measured_says_so() -> None:
    device = synthetic.document("bandwidth").run.environment.devices[0]
    (after_run,) = _with_links((device,), (device,), ())
    assert after_run.link_errors_after is None
    assert after_run.missing["link_errors_after"] == "the driver did not show the GPU after the run"
