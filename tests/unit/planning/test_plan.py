"""Plans: who pays for page tables, what a plan warns of and draws, and the value to give each engine's settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.analysis.models import ENTRY_BYTES, GPU_PAGE_SIZES
from pinscope.analysis.pinning_strategy import Recipe, Recommended
from pinscope.planning.plan import SETTINGS, Demand, HostBudget, Plan, PlanParams, engines_table, make_plan, safety_of
from pinscope.planning.prices import ContextPrice, Origin, Pace, PagePrice, Prices
from pinscope.planning.reading import draw_plan, read_plan
from pinscope.records.run import Finding
from pinscope.report.write import plan_document
from pinscope.units import format_about, format_duration

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
GIVEN, MEASURED, RECORDED = (
    Origin("given"),
    Origin("measured", "a-run", "a GPU"),
    Origin("recorded", "r", "NVIDIA H200"),
)
ROOMY = HostBudget(safe_bytes=4 * TIB, limit="available on the host", total_bytes=8 * TIB, has_gpu=True)
CONTEXT = ContextPrice(500 * MIB, MEASURED)
USUAL = Pace("host_alloc", 4e9, 16 * GIB, 0.2, None, MEASURED)
FAST = Pace("thp_register", 40e9, 16 * GIB, 0.19, None, MEASURED)
GENTLE = Pace("thp_register_chunks", 38e9, 16 * GIB, 0.006, 256 * MIB, MEASURED)
ARRAY, CHUNKS = Recipe("thp_register", None, 16), Recipe("thp_register_chunks", 256 * MIB, 16)
RECIPES = Recommended(ARRAY, CHUNKS, gentler_in_chunks=True)


def page(size: int, origin: Origin = GIVEN) -> PagePrice:
    return PagePrice(ENTRY_BYTES / size, origin)


SMALL = page(4 * KIB)


def plan(
    pinned: int, processes: int = 1, gpus: int = 1, all_gpus: int = 1, *, shared: bool = False,
    price: PagePrice = SMALL, budget: HostBudget = ROOMY, context: ContextPrice | None = CONTEXT,
    paces: tuple[Pace, ...] = (USUAL, FAST, GENTLE), recipes: Recommended[Recipe] | None = RECIPES,
) -> Plan:  # fmt: skip
    demand = Demand(pinned, processes, gpus, max(gpus, all_gpus), 80 * GIB, shared)
    return make_plan(demand, Prices(price, context, paces, recipes if paces else None, None), budget)


def findings(made: Plan) -> dict[str, Finding]:
    return {finding.rule: finding for finding in read_plan(made).findings}


@pytest.mark.parametrize(("size", "entries", "table"), [(2 * MIB, 512 * KIB, 4 * MIB), (4 * KIB, 256 * MIB, 2 * GIB)])
def test_a_tebibyte_takes_what_the_usual_arithmetic_says(size: int, entries: int, table: int) -> None:
    made = plan(TIB, price=page(size))
    assert made.price.table_bytes(TIB) == table
    assert [sharing.tables_bytes for sharing in made.sharings] == [table, table]
    rows = {row[0]: row for row in read_plan(made).tables[1].rows}
    name = "at pages of 4 KiB" if size == 4 * KIB else "at pages of 2 MiB"
    assert rows[name][1:3] == (entries, table)


def test_each_process_pays_on_each_of_its_gpus_and_one_owner_on_its_own_alone() -> None:
    for processes, gpus, all_gpus, each, owner, contexts in [
        (4, 1, 1, (64, 64), (16, 16), 4),  # as an H200 showed
        (8, 1, 8, (16, 128), (16, 16), 8),
        (2, 1, 8, (16, 32), (16, 16), 2),  # GPUs that no process uses cost nothing
        (8, 8, 8, (128, 1024), (16, 128), 64),
        (5, 1, 2, (48, 80), (16, 16), 5),  # the busiest GPU counts
    ]:
        made = plan(8 * GIB, processes, gpus, all_gpus, shared=True)
        for sharing, mebibytes in zip(made.sharings, (each, owner), strict=True):
            assert (sharing.tables_per_gpu_bytes // MIB, sharing.tables_bytes // MIB) == mebibytes
            assert (sharing.contexts, sharing.contexts_bytes) == (contexts, contexts * CONTEXT.bytes)


def test_what_is_too_much_for_one_registration_is_never_advised_in_one_piece() -> None:
    fired = findings(plan(TIB, paces=(USUAL, FAST), recipes=Recommended(ARRAY, None, gentler_in_chunks=False)))
    assert 'pinned_empty("1 TiB", chunk="64 GiB")' in fired["plan-one-registration"].advice
    assert "plan-pin-faster" not in fired  # no run tells how long that takes
    assert "plan-one-registration" not in findings(plan(512 * GIB - 4 * KIB))


@given(
    pinned=st.integers(1, TIB), size=st.sampled_from(GPU_PAGE_SIZES), processes=st.integers(1, 64),
    gpus=st.integers(1, 8), all_gpus=st.integers(1, 16),
)  # fmt: skip
def test_one_owner_never_takes_more_page_tables_on_a_gpu(
    pinned: int, size: int, processes: int, gpus: int, all_gpus: int
) -> None:
    made = plan(pinned, processes, gpus, all_gpus, price=page(size), shared=True)
    each, owner = made.sharings
    assert owner.tables_per_gpu_bytes <= each.tables_per_gpu_bytes
    assert made.price.table_bytes(pinned) == -(-pinned // size) * 8 <= made.price.taken_bytes(pinned)
    assert each.tables_bytes == processes * gpus * made.price.taken_bytes(pinned)
    assert owner.contexts == each.contexts


def test_a_plan_recommends_what_the_run_does_and_not_what_is_fastest() -> None:
    slower = Recommended(Recipe("touch_register", None, 16), CHUNKS, gentler_in_chunks=True)
    paces = (USUAL, FAST, GENTLE, replace(FAST, strategy="touch_register", bytes_per_second=20e9))
    reading = read_plan(plan(200 * 10**9, paces=paces, recipes=slower))
    headline = {quantity.name: quantity.value for quantity in reading.headline}
    assert headline["Recommended strategy"] == "4 KiB pages, threads touch, register"
    assert headline["Time to pin, the recommended way"] == pytest.approx(10.0)
    (finding,) = (finding for finding in reading.findings if finding.rule == "plan-pin-faster")
    assert finding.detail.startswith("Recommended: 4 KiB pages, threads touch, register, ")
    assert 'strategy="touch_register"' in finding.advice
    assert [row[1] for row in reading.tables[2].rows] == ["no", "in chunks", "in one piece", "no"]


def test_waits_of_neighbours_are_given_for_the_measured_amount_alone() -> None:
    documents = [plan_document(plan(size), read_plan(plan(size)))["pinning"] for size in (16 * GIB, 17 * GIB)]
    waits = [[pace["longest_wait_seconds"] for pace in paces] for paces in documents]
    assert waits == [[0.19, 0.006, 0.2], [None] * 3]


@pytest.mark.parametrize(("processes", "shared", "private"), [(8, True, False), (2, False, True), (1, True, True)])
def test_what_several_processes_share_is_never_advised_to_be_private_to_one(
    processes: int, shared: bool, private: bool
) -> None:
    made = plan(60 * GIB, processes, shared=shared)
    fired, reading = findings(made), read_plan(made)
    assert (made.recipe is not None, "plan-pin-faster" in fired, "plan-shared-memory" in fired) == (
        private, private, not private,
    )  # fmt: skip
    calls = [finding.advice for finding in reading.findings if "pinscope.pinned_empty(" in finding.advice]
    assert calls
    assert {"shared=" in call for call in calls} == {not private}
    (time,) = (quantity for quantity in reading.headline if quantity.name == "Time to pin, the recommended way")
    assert (time.reason == "not measured for 60 GiB shared by 8 processes") == (not private)


SHARED_PACE = Pace("memfd", 10e9, 8 * GIB, None, None, RECORDED, 4)
HUGETLB_PACE = replace(SHARED_PACE, strategy="hugetlb", bytes_per_second=20e9)


def test_memory_that_processes_share_is_priced_by_what_was_measured_of_so_many() -> None:
    sharing = Recommended(Recipe("memfd", None, 0), Recipe("memfd", 64 * GIB, 0), gentler_in_chunks=False)
    made = plan(40 * 10**9, 4, shared=True, paces=(SHARED_PACE, HUGETLB_PACE, FAST), recipes=sharing)
    assert [pace.strategy for pace in made.paces] == ["hugetlb", "memfd"]
    reading, document = read_plan(made), plan_document(made, read_plan(made))
    assert reading.headline[1].value == pytest.approx(4.0)
    assert document["recommended"]["call"] == 'pinscope.pinned_empty("39062500 KiB", shared="NAME")'
    assert [pace["longest_wait_seconds"] for pace in document["pinning"]] == [None, None]
    assert (reading.tables[2].note or "").startswith("Until all 4 processes have it pinned, at the pace of 4, recorded")
    huge = plan(600 * GIB, 4, shared=True, paces=(replace(SHARED_PACE, measured_bytes=64 * GIB),), recipes=sharing)
    assert 'pinned_empty("600 GiB", chunk="64 GiB", shared="NAME")' in findings(huge)["plan-one-registration"].advice
    for free, call in ((40 * GIB, 'strategy="hugetlb"'), (39 * GIB, 'shared="NAME")')):
        reserved = replace(ROOMY, hugetlb_free_bytes=free)
        named = plan(40 * GIB, 4, shared=True, paces=(SHARED_PACE, HUGETLB_PACE), recipes=sharing, budget=reserved)
        assert call in findings(named)["plan-shared-memory"].advice
        slower = "takes 2.15 s, not 4.29 s" in findings(named)["plan-shared-memory"].detail
        assert slower == (free < 40 * GIB)
        alike = (SHARED_PACE, replace(HUGETLB_PACE, bytes_per_second=14e9))
        named = plan(40 * GIB, 4, shared=True, paces=alike, recipes=sharing, budget=reserved)
        finding = findings(named)["plan-shared-memory"]
        assert ("hugetlb" in finding.advice, "reserved" in finding.detail) == (False, False)
    assert not plan(40 * GIB, 4, paces=(SHARED_PACE,)).paces  # each pins its own
    refused = replace(ROOMY, only_cuda_allocates=True)
    assert not plan(40 * GIB, 4, shared=True, paces=(SHARED_PACE,), budget=refused).paces


@pytest.mark.parametrize(("free", "said"), [(30 * GIB, True), (60 * GIB, False), (None, False)])
def test_a_dev_shm_without_room_for_what_is_shared_is_named(free: int | None, said: bool) -> None:
    finding = findings(plan(60 * GIB, 2, shared=True, budget=replace(ROOMY, shm_free_bytes=free)))["plan-shared-memory"]
    assert ("/dev/shm has no room for 60 GiB; this takes none of it" in finding.detail) == said


@pytest.mark.parametrize("confidential", [True, False])
def test_where_registering_is_refused_only_cuda_allocates(confidential: bool) -> None:
    made = plan(16 * GIB, budget=replace(ROOMY, only_cuda_allocates=confidential))
    assert ("plan-confidential-computing" in findings(made)) == confidential
    assert made.recipe is not None
    assert made.recipe.strategy == ("host_alloc" if confidential else "thp_register")
    seconds = 16 * GIB / (USUAL if confidential else FAST).bytes_per_second
    assert (read_plan(made).verdict or "").endswith(f"pinning takes {format_about(seconds)}.")
    advice = findings(replace(plan(200 * GIB, budget=made.budget), recipes=None))["plan-pytorch-rounds"].advice
    assert ('strategy="host_alloc"' in advice) == confidential
    shared = findings(plan(16 * GIB, 2, shared=True, budget=made.budget))["plan-shared-memory"].advice
    assert ("shared=" in shared, "ne owner pins" in shared) == (not confidential, True)
    huge = findings(plan(1024 * GIB, budget=made.budget))
    assert ("plan-one-registration" in huge) == (not confidential)


def test_ranks_that_pin_at_once_are_priced_as_so_many() -> None:
    one, eight = (read_plan(plan(20 * 10**9, processes)) for processes in (1, 8))
    times = [reading.headline[1].value for reading in (one, eight)]
    assert times == [pytest.approx(0.5), pytest.approx(4.0)]
    notes = [reading.tables[2].note or "" for reading in (one, eight)]
    assert ["8 processes at once, 149 GiB, at the pace of one" in note for note in notes] == [False, True]
    assert plan(20 * GIB, 12).paces
    assert not plan(GIB // 2, 64).paces  # what each pins is less than a sixteenth


def test_the_recommended_way_is_timed_for_what_was_asked_not_for_what_a_library_makes_of_it() -> None:
    demand = replace(PlanParams(pinned=20 * GIB, processes=8, through="pytorch").demand(), gpu_memory_bytes=80 * GIB)
    (finding,) = (
        finding
        for finding in read_plan(
            make_plan(demand, Prices(SMALL, CONTEXT, (USUAL, FAST), RECIPES, None), ROOMY)
        ).findings
        if finding.rule == "plan-pin-faster"
    )
    assert "to pin 256 GiB, 16.0 times as long" in finding.title  # 256 GiB at 4 GB/s, 160 GiB at 40 GB/s
    assert f"recommended way ({format_duration(160 * GIB / 40e9)} for 160 GiB)" in finding.title


def test_gpu_memory_for_a_page_table_goes_away_in_steps_of_2_mib() -> None:
    made = plan(4 * KIB)
    assert (made.price.table_bytes(MIB), made.sharings[0].tables_bytes) == (2 * KIB, 2 * MIB)
    headline = read_plan(made).headline
    (table,) = (quantity for quantity in headline if quantity.name.startswith("Page table of one process"))
    assert table.value == 2 * MIB


def test_page_tables_are_worth_a_warning_from_a_hundredth_of_the_gpu() -> None:
    for processes, shared, severity, advice in [
        (1, True, None, ""), (2, True, "warning", "one owner"), (16, True, "critical", "one owner"),
        (16, False, "critical", "Pin only what is being copied"),
    ]:  # fmt: skip
        finding = findings(plan(256 * GIB, processes, shared=shared)).get("plan-page-tables")
        assert (finding.severity if finding else None) == severity
        assert finding is None or advice in finding.advice


def test_one_owner_is_advised_only_where_it_clearly_saves_beside_what_contexts_take_and_memory_is_shared() -> None:
    much = findings(plan(512 * GIB, processes=4, shared=True))["plan-one-owner"]
    assert (much.severity, much.title) == ("warning", "One owner saves 3 GiB of page tables on the GPU")
    apart = findings(plan(200 * GIB, processes=8, all_gpus=8, shared=True))["plan-one-owner"]
    assert apart.title == "One owner saves 2.73 GiB of page tables on 8 GPUs"  # 7 times 400 MiB
    assert "cudaIpcOpenMemHandle" in much.advice
    for made in (
        plan(64 * GIB, processes=4, shared=True),  # contexts take more anyway
        plan(GIB, processes=8, all_gpus=4, shared=True),  # the owner's contexts cost more than it saves
        plan(512 * GIB, processes=4, shared=True, context=None),
        plan(512 * GIB, processes=4),
    ):
        assert "plan-one-owner" not in findings(made), made.demand


def test_a_start_up_names_the_call_that_shortens_it_as_the_run_does() -> None:
    finding = findings(plan(256 * GIB))["plan-pin-faster"]
    assert finding.advice.startswith('Call pinscope.pinned_empty("256 GiB"). Where other processes use the GPU')
    far = tuple(replace(pace, measured_bytes=64 * GIB) for pace in (USUAL, FAST, GENTLE))
    huge = findings(plan(512 * GIB, paces=far))
    call = CHUNKS.call(512 * GIB)
    assert 'pinned_empty("512 GiB", chunk="256 MiB"' in call
    assert huge["plan-pin-faster"].advice == f"Call {call}. Keep each copy inside one chunk: CUDA refuses others."
    assert call in huge["plan-one-registration"].advice
    assert "chunks" in findings(plan(512 * GIB, paces=()))["plan-one-registration"].advice
    level = (USUAL, replace(FAST, bytes_per_second=USUAL.bytes_per_second))
    assert "plan-pin-faster" not in findings(plan(GIB, paces=level))
    assert "plan-pin-faster" not in findings(plan(512 * GIB, paces=()))
    tight = replace(ROOMY, safe_bytes=GIB // 2, total_bytes=4 * GIB)
    assert "plan-pin-faster" not in findings(plan(GIB, budget=tight))  # it must not be pinned at all


def test_strategies_are_ranked_from_a_sixteenth_of_what_was_measured_on() -> None:
    for pinned, known in [
        (GIB // 8, False), (GIB, True), (16 * GIB, True), (256 * GIB, True), (257 * GIB, True), (4 * KIB, False),
    ]:  # fmt: skip
        made = plan(pinned)
        reading = read_plan(made)
        (headline,) = (quantity for quantity in reading.headline if quantity.name == "Recommended strategy")
        timed = any(table.title == "Time to pin" for table in reading.tables)
        assert (headline.value is not None, timed, "plan-pin-faster" in findings(made)) == (known,) * 3
        assert known or (headline.reason or "").startswith("not measured for ")
        far = any(quantity.name.endswith(", at the pace of 16 GiB") for quantity in reading.headline)
        assert far == (pinned == 257 * GIB)
        document = plan_document(made, reading)
        assert (bool(document["pinning"]), document["recommended"] is not None) == (known, known)


def test_what_pytorch_rounds_an_amount_up_to_is_said() -> None:
    for asked, taken in [
        (40 * GIB, "64 GiB"), (5 * GIB, "8 GiB"), (20 * GIB + 400 * MIB, "32 GiB"), (3 * KIB, "4 KiB"),
        (64 * GIB, None), (8, None),
    ]:  # fmt: skip
        finding = findings(plan(asked)).get("plan-pytorch-rounds")
        assert (finding is None) == (taken is None)
        assert finding is None or finding.title.startswith(f"PyTorch pins {taken} for one tensor of ")


def test_the_way_around_the_rounding_is_named_with_code() -> None:
    for through, title, code in [
        ("any", "PyTorch pins 64 GiB for one tensor of 40 GiB", 'pinscope.pinned_empty("40 GiB")'),
        ("pytorch", "PyTorch pins 64 GiB for one tensor of 40 GiB", "pinned_max_round_threshold_mb"),
        ("cupy", "CuPy pins 64 GiB for one tensor of 40 GiB", "cupy.cuda.set_pinned_memory_allocator(None)"),
        ("cuda", None, ""),
    ]:  # fmt: skip
        demand = PlanParams(pinned=40 * GIB, through=through).demand()
        finding = findings(make_plan(demand, Prices(SMALL, CONTEXT, (USUAL, FAST), RECIPES, None), ROOMY)).get(
            "plan-pytorch-rounds"
        )
        assert (finding.title if finding else None) == title
        assert finding is None or (code in finding.advice and "Of many tensors each is rounded" in finding.detail)


@pytest.mark.parametrize(("safe", "said"), [(63, True), (39, False)])
def test_rounding_is_named_only_where_the_host_carries_what_was_asked_for(safe: int, said: bool) -> None:
    host = replace(ROOMY, safe_bytes=safe * GIB)
    made = make_plan(PlanParams(pinned=40 * GIB).demand(), Prices(SMALL, CONTEXT, (USUAL, FAST), RECIPES, None), host)
    assert safety_of(made).level == "not_safe"
    assert ("plan-pytorch-rounds" in findings(made)) == said


@pytest.mark.parametrize("shared", [False, True])
def test_the_sum_of_processes_that_pin_memory_of_their_own_is_held_against_the_host(shared: bool) -> None:
    host = replace(ROOMY, safe_bytes=60 * GIB, total_bytes=126 * GIB)
    verdict = read_plan(plan(20 * GIB, processes=4, budget=host, shared=shared)).verdict or ""
    assert ("do not pin 80 GiB (4 processes)" in verdict) == (not shared)
    each, owner = plan(20 * GIB, processes=4, shared=shared).sharings
    assert (each.tables_bytes, owner.tables_bytes) == (160 * MIB, (40 if shared else 160) * MIB)


def test_a_plan_says_what_was_not_measured_here_and_how_to() -> None:
    for origin, pace, named in [
        (MEASURED, FAST, None), (RECORDED, FAST, "pinscope run page_tables."),
        (Origin("assumed"), replace(FAST, origin=RECORDED), "run page_tables and pinscope run pinning_strategy."),
        (GIVEN, replace(FAST, origin=RECORDED), "pinscope run pinning_strategy."),
    ]:  # fmt: skip
        finding = findings(plan(GIB, price=page(4 * KIB, origin), paces=(pace,))).get("plan-not-measured-here")
        assert (finding is None) == (named is None)
        assert finding is None or finding.advice.endswith(named or "")


def test_what_no_run_tells_is_unknown_not_zero() -> None:
    reading = read_plan(plan(GIB, context=None, paces=()))
    unknown = [
        quantity
        for quantity in reading.headline
        if quantity.name in ("Recommended strategy", "Time to pin, the recommended way")
    ]
    assert [quantity.value for quantity in unknown] == [None, None]
    assert all(quantity.reason for quantity in unknown)
    assert [row[5] for row in reading.tables[0].rows] == [None, None]
    assert [table.title for table in reading.tables if table.title == "Time to pin"] == []


def test_times_are_drawn_fastest_first_and_only_where_a_run_told_them() -> None:
    (times,) = draw_plan(plan(40 * 10**9))
    seconds = {name: time for trace in times.figure.data for name, time in zip(trace.y, trace.x, strict=True)}
    first_on_top = times.figure.layout.yaxis.categoryarray[::-1]
    assert [seconds[name] for name in first_on_top] == pytest.approx([1.0, 40 / 38, 10.0])
    assert all(time in times.alt for time in ("1.00 s", "1.05 s", "10.0 s"))
    assert draw_plan(plan(GIB // 8)) == draw_plan(plan(GIB, paces=())) == []  # far less than was measured


@pytest.mark.parametrize(
    ("safe", "processes", "values"),
    [
        (64 * GIB, 1, ["64", "32", "68", str(64 * GIB), "64"]),
        (64 * GIB, 8, ["64", "4", "8", str(8 * GIB), "8"]),
        (63 * GIB, 8, ["63", "3.93", "8", str(63 * GIB // 8), "7.87"]),
        (GIB // 2, 8, ["0.5", "0.03", "0", str(GIB // 16), "0.06"]),
    ],
)
def test_the_values_fill_what_is_safe_in_the_unit_of_each_engine(safe: int, processes: int, values: list[str]) -> None:
    settings = engines_table(safe, processes)
    assert settings is not None
    assert [row[2] for row in settings.rows] == values
    for setting, value in zip(SETTINGS, values, strict=True):
        users = processes if setting.of == "each process" else 1
        assert float(value) * setting.unit_bytes * users * (2 if setting.rounds else 1) <= safe


def test_where_it_is_not_known_what_is_safe_no_value_is_named() -> None:
    assert engines_table(None, 4) is None
