"""Page tables: the arithmetic, and which findings growths of each kind lead to. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.analysis.models import page_table_bytes, page_table_memory_bytes
from pinscope.analysis.statistics import bound_slope
from pinscope.experiments.page_tables.experiment import PageTablesObservation
from pinscope.experiments.page_tables.reading import cells_of
from pinscope.records.run import Finding
from tests.data import synthetic
from tests.data.readings import As, Made

draw = As("page_tables").draw
MADE = Made("page_tables", params={})
reading, rules = MADE.reading, MADE.findings

GIB, MIB = 2**30, 2**20
ROWS = list[dict[str, Any]]


def rows(
    page: int = 4096, *, memory: str | None = None, backing: str | None = None, total: int = 16 * GIB, steps: int = 64,
    device: int = 0, kept: int = 0, noise: int = 0, granule: int = 2 * MIB,
) -> ROWS:  # fmt: skip
    """A growth in steps of the meter, from a base of 1 GiB; with the phases before and after."""

    def row(phase: str, step: int, used: int) -> dict[str, Any]:
        held = phase == "held"
        observation = PageTablesObservation(
            repeat=step, warmup=False, memory=memory or ("registered" if backing else "pinned"), backing=backing,
            phase=phase, device=device, devices=1, bytes=step * (total // steps),
            step_bytes=total // steps if step else 0, device_used_bytes=used, nvml_used_bytes=used,
            pinned_bytes=step * (total // steps), page_table_bytes=None,
            touch_seconds=0.1 if held and backing else None, pin_seconds=0.02 if held else None,
            free_seconds=0.5 if phase == "freed" else None,
        )  # fmt: skip
        return observation.model_dump()

    found = [row("before", 0, GIB)]
    for step in range(1, steps + 1):
        grown = page_table_bytes(step * (total // steps), page) // granule * granule
        found.append(row("held", step, GIB + grown + noise * (step % 3)))
    return [*found, row("freed", 0, GIB + kept)]


def test_the_gpu_gives_memory_for_tables_in_steps() -> None:
    for pinned, taken in [
        (0, 0),
        (1, 2 * MIB),
        (GIB, 2 * MIB),
        (GIB + 4096, 4 * MIB),
        (8 * GIB, 16 * MIB),
        (32 * GIB, 64 * MIB),
    ]:
        assert page_table_memory_bytes(pinned, 4096) == taken


def test_the_interval_holds_the_true_slope_at_every_step_and_rounding_of_the_meter() -> None:
    """A line of least squares through the rises missed it: 2.01 MiB a GiB for 2, with an error of 0.001 quoted."""
    for page in [4096, 8192, 16 * 1024, 64 * 1024]:
        for step_mib in [2, 16, 64, 100, 256, 600]:
            for rounding in ["down", "up", "nearest"]:
                shift = {"down": 0, "up": 2 * MIB - 1, "nearest": MIB}[rounding]
                sizes = [count * step_mib * MIB for count in range(64 * GIB // (step_mib * MIB) + 1)][:1025]
                shown = [(page_table_bytes(size, page) + shift) // (2 * MIB) * 2 * MIB for size in sizes]
                slope = bound_slope(sizes, shown, 2 * MIB)
                assert slope is not None
                assert slope.low * (1 - 1e-9) <= 8 / page <= slope.high * (1 + 1e-9)
                assert slope.steps == 1
                # As narrow as a step of the run and the meter let it be: each end is known to about one of them.
                assert slope.high - slope.low <= 2.5 * (step_mib * MIB * 8 / page + 2 * MIB) / sizes[-1]


def test_a_disturbance_widens_the_interval_instead_of_moving_it_away() -> None:
    sizes = [count * 64 * MIB for count in range(257)]
    shown = [page_table_bytes(size, 4096) // (2 * MIB) * 2 * MIB + (6 * MIB if size > 8 * GIB else 0) for size in sizes]
    slope = bound_slope(sizes, shown, 2 * MIB)
    assert slope is not None
    assert slope.steps > 1
    assert slope.low <= 8 / 4096 <= slope.high


def test_too_few_readings_bound_nothing() -> None:
    assert bound_slope([0, 1], [0, 1], 1) is None
    assert bound_slope([1, 1, 1], [0, 1, 2], 1) is None


@pytest.mark.parametrize(("page", "within"), [(4096, 0.005), (16 * 1024, 0.1)])
def test_the_slope_comes_out_of_the_meters_steps(page: int, within: float) -> None:
    (cost,) = cells_of(rows(page))
    assert cost.known_slope is not None
    assert cost.known_slope.low <= 8 / page <= cost.known_slope.high
    assert cost.per_byte == pytest.approx(8 / page, rel=within)
    assert cost.page_bytes == pytest.approx(page, rel=within)
    assert cost.returned == 1
    assert cost.host_pinned_bytes == 16 * GIB


def test_no_headline_says_3_99_kib_where_4_kib_fits() -> None:
    """On an H200 the meter rose just before each whole GiB, so that every rise was seen up to a step early."""
    for steps in [16, 64, 160, 256]:
        early = [
            {**row, "nvml_used_bytes": GIB + page_table_bytes(row["bytes"] + 64 * MIB, 4096) // (2 * MIB) * 2 * MIB}
            if row["phase"] == "held" else row
            for row in rows(steps=steps)
        ]  # fmt: skip
        result = reading(early)
        assert next(figure.value for figure in result.headline if figure.name == "Page size of the mapping") == 4096
        (finding,) = (one for one in result.findings if one.rule == "page-table-price")
        assert finding.title.endswith("the GPU maps it in pages of 4 KiB")
        low, high = (figure.value for figure in finding.evidence[:2])
        assert isinstance(low, float)
        assert isinstance(high, float)
        assert low * (1 - 1e-9) <= 2 * MIB <= high * (1 + 1e-9)


def test_the_directories_above_the_tables_do_not_hide_the_page_size() -> None:
    """As an H200 showed it in steps of 4 MiB: 2 MiB more at 904, 1924, 2944 and 3964 MiB, every 1020 MiB."""
    rises = (904, 1924, 2944, 3964)
    fine = [
        {**row, "nvml_used_bytes": GIB + 2 * MIB * sum(row["bytes"] >= rise * MIB for rise in rises)}
        if row["phase"] == "held" else row
        for row in rows(total=4 * GIB, steps=1024)
    ]  # fmt: skip
    growth = cells_of(fine)[0]
    assert growth.known_slope is not None
    assert growth.known_slope.low > 8 / 4096  # the entries alone are not all of it
    assert growth.known_slope.low <= 8 / 4096 * (1 + 1 / 256) <= growth.known_slope.high
    assert growth.page_bytes == 4096


def test_growth_below_two_steps_of_the_meter_is_unknown_not_zero() -> None:
    result = reading(rows(2 * MIB))
    assert result.headline[0].value is None
    assert "too little" in (result.headline[0].reason or "")


def test_memory_that_others_gave_back_is_not_counted_as_returned() -> None:
    assert cells_of(rows(kept=-GIB))[0].returned == 1.0


def test_the_host_models_unseen_growth_is_not_said_to_go_in_a_gpus_steps() -> None:
    host = [{**row, "page_table_bytes": 4096, "nvml_used_bytes": None, "device_used_bytes": None} for row in rows()]
    reason = reading(host, lab="host").headline[0].reason or ""
    assert "too little for a figure" in reason
    assert "steps" not in reason


def test_a_staircase_is_a_line_and_disturbance_is_not() -> None:
    assert "growth-not-straight" not in rules(rows(total=4 * GIB, steps=32))
    assert "growth-not-straight" in rules(rows(noise=40 * MIB))


def test_memory_that_does_not_come_back_is_a_warning() -> None:
    assert "page-tables-kept" in rules(rows(kept=8 * MIB))
    assert "page-tables-kept" not in rules(rows())


def test_huge_pages_are_said_to_help_only_where_they_do() -> None:
    small = rows(backing="4k")
    assert "all-kinds-same-tables" in rules(small + rows(backing="thp"))
    assert "kind-shrinks-tables" in rules(small + rows(2 * MIB, backing="hugetlb"))


def test_a_kind_that_takes_less_is_named() -> None:
    by_rule = {finding.rule: finding for finding in reading(rows() + rows(2 * MIB, memory="created")).findings}
    assert by_rule["kind-shrinks-tables"].title.endswith("take less GPU memory than 2 MiB a GiB: cuMemCreate")


def test_a_pool_without_access_takes_no_gpu_memory_and_changes_no_other_figure() -> None:
    pool = rows(memory="pool")
    for row in pool:
        row.update(nvml_used_bytes=GIB, device_used_bytes=GIB)
    alone, both = rows() + rows(memory="pool_granted"), rows() + pool + rows(memory="pool_granted")
    by_rule = {finding.rule: finding for finding in reading(both).findings}
    assert by_rule["no-access-no-table"].title.endswith("16 GiB took 0 B; with access 32 MiB")
    assert reading(both).verdict == reading(alone).verdict
    assert "no-access-no-table" not in rules(alone)
    assert "None of 2 ways" in by_rule["all-kinds-same-tables"].title
    chart = draw(synthetic.run("page_tables", params={}), both)[0]
    assert {"2 of 3 ways", "host pool without access"} <= {trace.name for trace in chart.figure.data}
    assert chart.caption.endswith("share one line: allocated pinned, host pool.")
    name = next(note for note in chart.figure.layout.annotations if note.text.startswith("host pool without access"))
    assert name.y == page_table_bytes(16 * GIB, 64 * 1024) / MIB  # above the grey line that it would lie on


def test_huge_pages_are_advised_only_where_touching_and_registering_them_is_clearly_faster() -> None:
    def said(huge: float) -> Finding:
        faster = [{**row, "touch_seconds": row["touch_seconds"] and huge} for row in rows(backing="thp")]
        findings = reading(rows(backing="4k") + faster).findings
        return next(finding for finding in findings if finding.rule == "time-of-pinning")

    assert "2.4 times as long as in huge pages" in said(0.03).title
    assert said(0.03).advice.startswith("Use huge pages, or touch")
    assert "huge" not in said(0.095).title + said(0.095).advice


def test_other_gpus_that_pay_are_named() -> None:
    both = rows() + rows(device=1)
    assert "every-gpu-pays" in rules(both)
    assert "every-gpu-pays" not in rules(rows() + rows(2 * MIB, device=1)) | rules(rows())


def test_the_host_model_reads_the_page_tables_of_the_process() -> None:
    host = [{**row, "page_table_bytes": row["nvml_used_bytes"], "nvml_used_bytes": None, "device_used_bytes": None}
            for row in rows(granule=4096)]  # fmt: skip
    result = reading(host, lab="host")
    assert result.headline[0].name == "Page tables per pinned GiB, allocated pinned"
    assert result.headline[0].value == pytest.approx(2 * MIB)
    assert (result.verdict or "").startswith(
        "Host model, no GPU: each locked GiB takes 2 MiB of the kernel's page tables"
    )


def test_a_run_that_has_only_begun_reads_and_draws() -> None:
    for count in [0, 1, 2, 5]:
        some = rows(backing="4k")[:count]
        assert (reading(some).headline == ()) == (count < 2)
        draw(synthetic.run("page_tables", params={}), some)
