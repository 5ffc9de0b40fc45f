"""Parameters of the experiments: what is taken, what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.errors import InvalidParameter, UnknownName
from pinscope.experiments.bandwidth.experiment import BandwidthParams
from pinscope.experiments.contract import Params
from pinscope.experiments.overlap.experiment import OverlapParams, recipes
from pinscope.experiments.page_tables.experiment import PageTablesParams
from pinscope.experiments.registration.experiment import RegistrationParams
from pinscope.experiments.registry import EXPERIMENTS, find
from pinscope.records.run import LabKind

PRESETS = [
    (entry.experiment.Params, lab, quick) for entry in EXPERIMENTS for lab in ("cuda", "host") for quick in (0, 1)
]


@pytest.mark.parametrize(("params", "lab", "quick"), PRESETS)
def test_every_preset_is_valid_and_survives_json(params: type[Params], lab: LabKind, quick: bool) -> None:
    preset = params.preset(lab, bool(quick))
    assert params.model_validate(preset.model_dump(mode="json")) == preset


@pytest.mark.parametrize("entry", EXPERIMENTS, ids=lambda entry: entry.experiment.name)
def test_every_parameter_has_words_for_the_form(entry: Any) -> None:
    for name, field in entry.experiment.Params.model_fields.items():
        assert field.title, name
        assert field.description, name
        assert field.description.endswith("."), name


def test_sizes_take_units_and_lists_and_come_out_ascending_and_once() -> None:
    params = BandwidthParams.preset("cuda", True).with_overrides({"sizes": "1MiB, 4096,1e6,64KiB,4KiB"})
    assert params.sizes == (4096, 65536, 1_000_000, 2**20)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"sizes": "0"}, "sizes: .*greater than 0"),
        ({"sizes": "-4KiB"}, "sizes: .*greater than 0"),
        ({"sizes": "4KiB,-1"}, "sizes: .*greater than 0"),
        ({"sizes": ""}, "sizes: needs at least one value"),
        ({"sizes": "many"}, "sizes: 'many' is not a size"),
        ({"sizes": "12"}, "sizes: a size must be a multiple of 8"),
        ({"memory": "pinned,paged"}, "memory: .*'pageable', 'pinned'"),
        ({"directions": "up"}, "directions: .*'h2d', 'd2h' or 'bidirectional'"),
        ({"precision": "nan"}, "precision: "),
        ({"repeats": "0"}, "repeats: .*greater than or equal to 8"),
        ({"time_limit": "-1"}, "time_limit: .*greater than 0"),
        ({"colour": "red"}, "no parameter 'colour'; there are: .*sizes"),
    ],
)
def test_bad_values_are_refused_in_one_line_that_names_the_parameter(overrides: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidParameter, match=complaint) as caught:
        BandwidthParams.preset("host", True).with_overrides(overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"buffer": "3MiB"}, "^buffer: it takes a multiple of 2 MiB"),
        ({"shared": "33MiB"}, "^shared: it takes a multiple of the GPU buffer"),
        ({"processes": "0,2"}, "^processes: .*greater than or equal to 1"),
        ({"processes": "65"}, "^processes: .*less than or equal to 64"),
        ({"strategies": "both"}, "^strategies: .*'each_registers' or 'one_owner'"),
        ({"step_limit": "0"}, "^step_limit: .*greater than 0"),
    ],
)
def test_sizes_and_counts_that_do_not_fit_together_are_refused(overrides: dict[str, str], complaint: str) -> None:
    with pytest.raises(InvalidParameter, match=complaint) as caught:
        RegistrationParams.preset("host", True).with_overrides(overrides)
    assert "\n" not in str(caught.value)


def test_smaller_page_table_runs_take_half_in_the_same_ways() -> None:
    full = PageTablesParams.preset("cuda", False)
    half = full.smaller()
    assert half is not None
    assert (half.total, half.backings, half.memory) == (full.total // 2, full.backings, full.memory)


def test_smaller_registration_runs_stay_within_what_is_taken() -> None:
    params: RegistrationParams | None = RegistrationParams.preset("cuda", False)
    while params is not None:
        smallest = params
        params = params.smaller()
    assert smallest.buffer == 2 * 2**20


def test_an_unknown_experiment_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownName, match="no experiment 'bandwith'; there are: bandwidth, overlap"):
        find("bandwith")


def test_smaller_bandwidth_runs_lose_their_largest_size_until_one_is_left() -> None:
    params: BandwidthParams | None = BandwidthParams.preset("host", True)
    sizes = []
    while params is not None:
        sizes.append(params.sizes)
        params = params.smaller()
    assert [len(one) for one in sizes] == [4, 3, 2, 1]
    assert all(one[0] == sizes[0][0] for one in sizes)


def test_smaller_overlap_runs_move_smaller_chunks_down_to_a_limit() -> None:
    params: OverlapParams | None = OverlapParams.preset("host", True)
    while params is not None:
        smallest = params
        params = params.smaller()
    assert smallest.chunk == 4 * 2**20


def test_each_ingredient_is_left_out_once() -> None:
    chosen = recipes(OverlapParams.preset("cuda", True))
    assert sorted(len(recipe.missing) for recipe in chosen) == [0, 1, 1, 1, 1]
    assert {recipe.missing for recipe in chosen if recipe.missing} == {
        ("pinned memory",), ("separate copy stream",), ("double buffering",), ("events",),
    }  # fmt: skip


def test_deeper_rings_are_measured_with_the_full_recipe_alone() -> None:
    chosen = recipes(OverlapParams.preset("cuda", False))
    assert [recipe.label for recipe in chosen if recipe.depth > 2] == ["full recipe, ring of 4"]
    assert len(chosen) == 6
