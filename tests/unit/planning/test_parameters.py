"""What a plan may be asked for, and the command that asks for the same."""

from __future__ import annotations

import pytest

from pinscope.errors import InvalidParameter
from pinscope.planning.plan import USUAL_GPU_BYTES, PlanParams, command_line
from tests.data import synthetic

GIB = 2**30


def test_bad_input_is_one_line_that_says_what_is_allowed() -> None:
    for name, value, complaint in [
        ("pinned", 0, "pinned: must be greater than 0"),
        ("pinned", "-1GiB", "pinned: must be greater than 0"),
        ("pinned", "much", "'much' is not a size"),
        ("pinned", 12, "multiple of 8"),
        ("pinned", "700", "700 bytes: did you forget the unit (700GB, 700GiB)?"),
        ("host_memory", " 126", "126 bytes: did you forget the unit (126GB, 126GiB)?"),
        ("through", "numpy", "any, cuda, pytorch or cupy"),
        ("gpus", 65, "gpus: "),
        ("host_memory", 0, "host_memory: must be greater than 0"),
        ("shared", "perhaps", "shared: must be yes or no"),
        ("page_size", "8KiB", "4KiB, 64KiB or 2MiB"),
    ]:
        with pytest.raises(InvalidParameter) as refused:
            PlanParams().with_overrides({name: value})
        assert complaint in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_machine_plans_for_its_own_gpu_and_one_without_for_the_recorded() -> None:
    assert PlanParams().on(synthetic.environment(2)).gpu_memory == 80 * GIB
    assert PlanParams(gpu_memory=24 * GIB).on(synthetic.environment(2)).gpu_memory == 24 * GIB
    usual = synthetic.environment(1)
    large = usual.devices[0].model_copy(update={"memory_total_bytes": 141 * GIB})
    recorded = usual.model_copy(update={"devices": (large,)})
    assert PlanParams().on(synthetic.environment(0), recorded).gpu_memory == 141 * GIB
    assert PlanParams().on(synthetic.environment(0)).demand().gpu_memory_bytes == USUAL_GPU_BYTES


def test_gpus_in_all_are_at_least_those_of_one_process() -> None:
    assert PlanParams(gpus=4).demand().all_gpus == 4
    assert PlanParams(gpus=4, processes=2, all_gpus=8).demand().all_gpus == 8


def test_more_gpus_than_processes_use_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="8 GPUs in all, but processes × GPUs of each process is 4"):
        PlanParams().with_overrides({"gpus": 4, "all_gpus": 8})


def test_the_sum_is_spread_over_the_processes_that_hold_memory_of_their_own() -> None:
    for given, pinned, total in [
        ({"pinned": "700G", "processes": 8}, 700 * 10**9, 5600 * 10**9),
        ({"pinned_total": "1T", "processes": 8}, 125 * 10**9, 10**12),
        ({"pinned_total": 1000, "processes": 3}, 336, 1008),  # whole words of 8 bytes
        ({"pinned_total": "1TiB", "processes": 8, "shared": True}, 2**40, 2**40),
        ({"pinned": 2**20}, 2**20, 2**20),
    ]:
        demand = PlanParams().with_overrides(given).demand()
        assert (demand.pinned_bytes, demand.total_bytes, demand.asked) == (pinned, total, pinned)


def test_what_a_library_rounds_up_is_what_is_pinned() -> None:
    for through, pinned in [("any", 40), ("cuda", 40), ("pytorch", 64), ("cupy", 64)]:
        demand = PlanParams().with_overrides({"pinned": "40GiB", "through": through}).demand()
        assert (demand.pinned_bytes, demand.asked_bytes) == (pinned * GIB, 40 * GIB)


def test_the_command_says_what_is_not_usual() -> None:
    params = PlanParams(pinned=2**40, processes=8, all_gpus=8, page_size="2MiB", gpu_memory=141 * GIB)
    words = "--pinned 1TiB --processes 8 --total-gpus 8 --gpu-memory 141GiB --page-size 2MiB"
    assert command_line(params) == f"pinscope plan {words}"
    assert command_line(PlanParams()) == "pinscope plan --pinned 64GiB"
    other = PlanParams(processes=2, shared=True, host_memory=2**40, through="cupy", like="h100")
    words = "--pinned 64GiB --processes 2 --shared --through cupy --like h100 --host-memory 1TiB"
    assert command_line(other) == f"pinscope plan {words}"
    other = PlanParams(pinned_total=2**40, processes=2)
    words = "--pinned-total 1TiB --processes 2"
    assert command_line(other) == f"pinscope plan {words}"
