"""Parameters of the experiments: what is taken, what is refused, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.errors import InvalidParameter
from pinscope.experiments.bandwidth.experiment import BandwidthParams
from pinscope.experiments.overlap.experiment import OverlapParams, recipes
from pinscope.experiments.registry import EXPERIMENTS, find

PRESETS = [
    (entry.experiment.Params, lab, quick) for entry in EXPERIMENTS for lab in ("cuda", "host") for quick in (0, 1)
]


def test_every_preset_is_valid_and_survives_json() -> None:
    for params, lab, quick in PRESETS:
        preset = params.preset(lab, bool(quick))
        assert params.model_validate(preset.model_dump(mode="json")) == preset


def test_every_parameter_has_words_for_the_form() -> None:
    for entry in EXPERIMENTS:
        for name, field in entry.experiment.Params.model_fields.items():
            assert field.title, name
            assert field.description, name
            assert field.description.endswith("."), name


def test_sizes_take_units_and_lists_and_come_out_ascending_and_once() -> None:
    params = BandwidthParams.preset("cuda", True).with_overrides({"sizes": "1MiB, 4096,1e6,64KiB,4KiB"})
    assert params.sizes == (4096, 65536, 1_000_000, 2**20)


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


def test_bad_values_are_refused_in_one_line_that_names_the_parameter() -> None:
    for experiment, name, value, complaint in [
        ("bandwidth", "sizes", "-4KiB", ".*greater than 0"),
        ("bandwidth", "sizes", "4KiB,-1", ".*greater than 0"),
        ("bandwidth", "sizes", "", "needs at least one value"),
        ("bandwidth", "sizes", "many", "'many' is not a size"),
        ("bandwidth", "sizes", "12", "a size must be a multiple of 8"),
        ("bandwidth", "memory", "pinned,paged", ".*pageable, pinned"),
        ("bandwidth", "directions", "up", ".*h2d, d2h or bidirectional"),
        ("bandwidth", "precision", "nan", ""),
        ("bandwidth", "repeats", "0", ".*greater than or equal to 8"),
        ("bandwidth", "time_limit", "-1", ".*greater than 0"),
        ("page_tables", "all_devices", "maybe", ""),
        ("registration", "buffer", "3MiB", "it takes a multiple of 2 MiB"),
        ("registration", "shared", "33MiB", "it takes a multiple of the GPU buffer"),
        ("registration", "processes", "0,2", ".*greater than or equal to 1"),
        ("registration", "processes", "65", ".*less than or equal to 64"),
        ("pinning_strategy", "chunk", "3MiB", ".*multiple of 2097152"),
        ("pinning_strategy", "threads", "-1", ".*greater than or equal to 0"),
        ("pressure", "cap", "32MiB", ".*67108864"),
        ("pressure", "limit", "128MiB", ".*268435456"),
        ("pressure", "share", "1.5", ".*less than or equal to 1"),
        ("while_serving", "chunks", "10000", ".*no multiple of 4 KiB"),
        ("while_serving", "size", "1MiB", ".*67108864"),
        ("scatter", "sizes", "24", ".*no multiple of 16 bytes"),
        ("scatter", "sizes", "32MiB", ".*up to 16 MiB"),
        ("scatter", "pieces", "1", ""),
        ("dataloader", "pin_memory", "maybe", ""),
        ("dataloader", "steps", 34, ""),
        ("dataloader", "rounds", 12, ""),
        ("access", "size", 3 * 2**20, ""),
        ("access", "spacings", "3", ""),
        ("access", "ways", "teleport", ""),
    ]:
        with pytest.raises(InvalidParameter, match=f"^{name}.*?: {complaint}") as caught:
            find(experiment).experiment.Params.preset("cuda", True).with_overrides({name: value})
        assert "\n" not in str(caught.value)


def test_a_run_that_does_not_fit_becomes_smaller_down_to_a_limit() -> None:
    """Each is valid: parameters are checked as they are made."""
    for experiment, chosen, smallest in [
        ("bandwidth", {}, {"sizes": (2**12,)}),
        ("overlap", {}, {"chunk": 4 * 2**20}),
        ("registration", {}, {"buffer": 2 * 2**20}),
        ("pinning_strategy", {"size": "11GiB"}, {"size": 64 * 2**20, "chunk": 8 * 2**20}),
        ("while_serving", {}, {"size": 64 * 2**20}),
        ("pressure", {}, {"cap": 64 * 2**20, "file": 16 * 2**20}),
        ("pressure", {"group": "limited"}, {"limit": 256 * 2**20}),
    ]:
        params: Any = find(experiment).experiment.Params.preset("cuda", False).with_overrides(chosen)
        while (smaller := params.smaller()) is not None:
            assert smaller != params
            params = smaller
        assert {name: getattr(params, name) for name in smallest} == smallest
