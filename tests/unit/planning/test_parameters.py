"""What a plan may be asked for, and the command that asks for the same."""

from __future__ import annotations

import pytest

from pinscope.errors import InvalidParameter
from pinscope.planning.plan import USUAL_GPU_BYTES, PlanParams, command_line
from tests.data import synthetic

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("pinned", 0, "pinned: must be greater than 0"),
        ("pinned", "-1GiB", "pinned: must be greater than 0"),
        ("pinned", "much", "'much' is not a size"),
        ("pinned", 12, "multiple of 8"),
        ("gpus", 65, "gpus: "),
        ("host_memory", 0, "host_memory: must be greater than 0"),
        ("shared", "perhaps", "shared: must be yes or no"),
        ("page_size", "8KiB", "'4KiB', '64KiB' or '2MiB'"),
    ],
)
def test_bad_input_is_one_line_that_says_what_is_allowed(name: str, value: object, complaint: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        PlanParams().with_overrides({name: value})
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_machine_plans_for_its_own_gpu_and_one_without_for_the_recorded() -> None:
    assert PlanParams.for_machine(synthetic.environment(2)).gpu_memory == 80 * GIB
    usual = synthetic.environment(1)
    large = usual.devices[0].model_copy(update={"memory_total_bytes": 141 * GIB})
    recorded = usual.model_copy(update={"devices": (large,)})
    assert PlanParams.for_machine(synthetic.environment(0), recorded).gpu_memory == 141 * GIB
    assert PlanParams.for_machine(synthetic.environment(0)).gpu_memory == USUAL_GPU_BYTES


def test_gpus_in_all_are_at_least_those_of_one_process() -> None:
    assert PlanParams(gpus=4).demand().all_gpus == 4
    assert PlanParams(gpus=4, all_gpus=8).demand().all_gpus == 8


def test_the_command_says_what_is_not_usual() -> None:
    params = PlanParams(pinned=2**40, processes=8, all_gpus=8, page_size="2MiB", gpu_memory=141 * GIB)
    words = "--pinned 1TiB --processes 8 --total-gpus 8 --gpu-memory 141GiB --page-size 2MiB"
    assert command_line(params) == f"pinscope plan {words}"
    assert command_line(PlanParams()) == "pinscope plan --pinned 64GiB --gpu-memory 80GiB"
    other = PlanParams(processes=2, shared=True, host_memory=2**40)
    words = "--pinned 64GiB --processes 2 --shared --gpu-memory 80GiB --host-memory 1TiB"
    assert command_line(other) == f"pinscope plan {words}"
