"""What a run waits for before it measures."""

from __future__ import annotations

from pinscope.runner.worker import queues
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
