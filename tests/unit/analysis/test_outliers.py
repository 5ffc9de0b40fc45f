"""Which GPUs of a fleet are blamed, for what, and why; and which are not."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest

from pinscope.analysis.figures import FINDING, HAS, named_figures
from pinscope.analysis.outliers import FLOAT, HAS_NOT, LEAST_GROUP, NOTHING, Fleet, FleetRun, fleet_of
from pinscope.charts.fleet import label_map
from pinscope.errors import BadInput
from tests.data.synthetic_fleet import KINDS, SyntheticFleet

Change = Callable[[FleetRun], FleetRun]


def fleet(hosts: int = 60, faults: int = 1, seed: int = 5, experiment: str = "bandwidth", **more: object) -> Fleet:
    runs, texts = SyntheticFleet(hosts, faults, seed, **more).fleet_runs(experiment)  # type: ignore[arg-type]
    return fleet_of(experiment, "cuda", runs, texts)


def blamed(found: Fleet) -> list[str]:
    return [one.gpu.newest.host for one in found.outliers]


def values(run: FleetRun) -> np.ndarray:
    return np.frombuffer(run.content, FLOAT)


def of_values(run: FleetRun, values: np.ndarray) -> FleetRun:
    return run._replace(content=values.astype(FLOAT).tobytes())


def test_each_fault_is_found_named_and_explained() -> None:
    made = SyntheticFleet(120, 1, seed=3)
    host = {fault: name for name, fault in made.faults.items()}
    for experiment, kinds in (("bandwidth", ("link", "node", "processor")), ("pinning_strategy", ("huge pages",))):
        found = fleet_of(experiment, "cuda", *made.fleet_runs(experiment))
        assert set(blamed(found)) <= set(made.faults)
        for kind in kinds:
            (one,) = (one for one in found.outliers if one.gpu.newest.host == host[kind])
            why = {key: (own, usual) for key, own, usual in one.why}
            assert why == {
                "link": {"gpu.link.width_now": ("8", "16")},
                "node": {"buffers.node": ("another than the GPU's", "the GPU's")},
                "processor": {},
                "huge pages": {"huge_pages.transparent": ("never", "madvise")},
            }[kind]  # fmt: skip
            assert (one.why_words == NOTHING) == (kind == "processor")
    bandwidth = fleet_of("bandwidth", "cuda", *made.fleet_runs())
    rate = next(one for one in bandwidth.outliers if one.gpu.newest.host == host["link"])
    assert rate.words.startswith("slower by 4")
    assert "size from 1 MiB on" in rate.words


def test_a_fleet_without_a_fault_blames_nobody() -> None:
    for seed in range(4):
        found = fleet(faults=0, seed=seed)
        assert not found.outliers
        assert not found.suspects


def test_of_one_run_nobody_is_blamed_but_told_to_run_again() -> None:
    made = SyntheticFleet(60, 1, seed=5, runs=1)
    found = fleet_of("bandwidth", "cuda", *made.fleet_runs())
    assert not found.outliers
    assert {one.gpu.newest.host for one in found.suspects} <= set(made.faults)
    assert len(found.suspects) == 3  # what huge pages cost is not in it


def test_a_run_that_is_bad_once_among_others_blames_nobody() -> None:
    runs, texts = SyntheticFleet(40, 0, seed=5).fleet_runs()
    bad = [of_values(run, values(run) / 2) if run.run_id == "node00007-1" else run for run in runs]
    found = fleet_of("bandwidth", "cuda", bad, texts)
    assert not found.outliers


def test_what_many_have_without_harm_explains_nothing() -> None:
    made = SyntheticFleet(60, 1, seed=5, kinds=("link",))
    runs, texts = made.fleet_runs()
    (guilty,) = made.faults
    texts = {
        name: json.dumps({**json.loads(text), "kernel": "6.19"}) if name in ("new", "link") else text
        for name, text in {**texts, "new": texts[""]}.items()
    }
    newer = [run._replace(surroundings="new") if run.host < "node00030" and run.host != guilty else run for run in runs]
    (one,) = fleet_of("bandwidth", "cuda", newer, texts).outliers
    assert [key for key, _, _ in one.why] == ["gpu.link.width_now"]


def test_a_finding_explains_an_outlier_where_the_others_have_it_not() -> None:
    made = SyntheticFleet(60, 1, seed=5, kinds=("processor",))
    runs, texts = made.fleet_runs()
    usual, own = f"{FINDING}of-many", f"{FINDING}of-one"
    facts = {**json.loads(texts[""]), usual: HAS}
    texts = {**texts, "": json.dumps(facts), "processor": json.dumps({**facts, own: HAS})}
    (outlier,) = fleet_of("bandwidth", "cuda", runs, texts).outliers
    assert outlier.why == [(own, HAS, HAS_NOT)]


def of_other_link(run: FleetRun) -> FleetRun:
    return run._replace(surroundings="narrow")


def with_narrow(texts: dict[str, str]) -> dict[str, str]:
    return {**texts, "narrow": json.dumps({**json.loads(texts[""]), "gpu.link.width_max": "8"})}


def test_few_of_another_link_are_held_against_the_others_and_many_among_themselves() -> None:
    runs, texts = SyntheticFleet(40, 0, seed=5).fleet_runs()
    half = [of_values(of_other_link(run), slow(run)) if run.host < "node00003" else run for run in runs]
    found = fleet_of("bandwidth", "cuda", half, with_narrow(texts))
    assert blamed(found) == [f"node0000{number}" for number in (0, 1, 2)] or len(found.outliers) == 3
    assert {key for one in found.outliers for key, _, _ in one.why} == {"gpu.link.width_max"}
    many = [of_values(of_other_link(run), slow(run)) if run.host < "node00016" else run for run in runs]
    found = fleet_of("bandwidth", "cuda", many, with_narrow(texts))
    assert (len(found.groups), blamed(found)) == (2, [])


def slow(run: FleetRun) -> np.ndarray:
    """All that is a rate, halved."""
    _, texts = SyntheticFleet(1, 0, 0).fleet_runs()
    named = named_figures(texts["layout"])
    assert named is not None
    return values(run) * np.where([figure.value.better == "more" for figure in named], 0.5, 2)


def test_a_figure_that_few_gpus_have_blames_nobody() -> None:
    runs, texts = SyntheticFleet(40, 0, seed=5).fleet_runs()
    some = len(values(runs[0])) // 2

    def of_few(run: FleetRun, having: str) -> FleetRun:
        """As one that is slow in the first host, and has the second half of its figures in few."""
        changed = slow(run) if run.host == "node00000" else values(run)
        return of_values(
            run, np.concatenate([values(run)[:some], changed[some:] if run.host < having else 0 * changed[some:]])
        )

    for having, hosts in (("node00020", ["node00000"]), ("node00005", [])):
        assert blamed(fleet_of("bandwidth", "cuda", [of_few(run, having) for run in runs], texts)) == hosts


def test_too_few_gpus_are_not_judged() -> None:
    found = fleet(hosts=LEAST_GROUP - 1, faults=1)
    assert (found.outliers, len(found.alone)) == ([], LEAST_GROUP - 1)


def test_runs_with_other_cells_and_what_cannot_be_read_are_taken_as_they_are() -> None:
    runs, texts = SyntheticFleet(30, 0, seed=5).fleet_runs()
    named = json.loads(texts["layout"])
    named["kinds"][0]["cells"] = named["kinds"][0]["cells"][:20]
    texts |= {"short": json.dumps(named), "damaged": "{"}
    width = len(named["kinds"][0]["figures"]) * 20
    mixed = [
        of_values(run._replace(layout="short"), values(run)[:width])
        if run.host < "node00010"
        else run._replace(layout="damaged" if run.host == "node00011" else "layout")
        for run in runs
    ]
    found = fleet_of("bandwidth", "cuda", mixed, texts)
    assert len(found.gpus) == 29
    assert np.isnan(found.values[0, width:]).all()
    assert np.isfinite(found.values[-1]).sum() > width
    assert not found.outliers
    newest = [run for run in mixed if run.layout == "short" and run.run_id.endswith("-2")]
    others = [run for run in runs if not run.run_id.endswith("-2")]
    found = fleet_of("bandwidth", "cuda", sorted([*newest, *others], key=lambda run: run.host), texts)
    assert (len(found.gpus), found.outliers) == (30, [])
    assert np.isfinite(found.values[0]).sum() > width


def test_the_map_has_a_row_a_label_and_one_with_an_outlier_comes_first() -> None:
    found = fleet(hosts=360, kinds=("link",))
    (outlier,) = found.outliers
    chart = label_map(found, "rack")
    assert chart is not None
    (heat,) = chart.figure.data
    assert sorted(heat.y) == sorted({f"r{number}" for number in range(12)})
    assert heat.y[0] == outlier.gpu.label("rack")
    assert np.nanmax(heat.z[0]) == pytest.approx(outlier.change, rel=0.1)
    assert np.nanmax(heat.z[1:]) < 0.2
    assert label_map(found, "nothing") is None
    assert found.gpus[40].label("rack") == "r1"


def test_the_spread_of_a_figure_is_that_of_its_gpus() -> None:
    found = fleet(hosts=51, faults=0)
    spread = found.spreads[3]
    values = found.values[:, spread.figure]
    assert spread.gpus == 51
    assert spread.quantiles[0] == pytest.approx(values.min())
    assert spread.quantiles[2] == pytest.approx(np.median(values))
    assert spread.quantiles[4] == pytest.approx(values.max())


def test_kinds_of_faults_are_the_four() -> None:
    assert set(SyntheticFleet(100, 2, seed=1).faults.values()) == set(KINDS)


def test_without_runs_there_is_no_fleet() -> None:
    with pytest.raises(BadInput, match="no finished run of bandwidth"):
        fleet_of("bandwidth", "cuda", [], {})
