"""What a while_serving run concludes, from synthetic rows."""

from __future__ import annotations

from typing import Any

from pinscope.experiments.while_serving.experiment import WhileServingObservation
from pinscope.experiments.while_serving.findings import code
from pinscope.experiments.while_serving.reading import Serving, cells_of
from pinscope.records.run import Finding, Reading
from tests.data import synthetic
from tests.data.readings import As

draw = As("while_serving").draw

Rows = list[dict[str, Any]]
MIB, GIB = 2**20, 2**30
LIMIT = 0.02


def rows(
    way: str, seconds: float, wait: float, *, chunk: int | None = None, giving_back: float = 1e-4, call: str = "launch",
    pinned: bool | None = True, repeats: int = 3,
) -> Rows:  # fmt: skip
    """Equal repeats; of the first the wait is ten per cent shorter."""
    found: Rows = []
    for repeat in range(repeats):
        for phase, longest in (("taken", wait * (1 if repeat else 0.9)), ("given_back", giving_back)):
            if way == "idle" and phase == "given_back":
                continue
            took = dict.fromkeys(("launch", "copy", "query", "synchronize", "round"), 1e-5)
            most = {**took, call: longest, "round": 2 * longest}
            found.append(
                WhileServingObservation(
                    repeat=repeat, warmup=False, way=way, phase="idle" if way == "idle" else phase, bytes=16 * GIB,
                    chunk_bytes=chunk, threads=16, work_seconds=seconds if phase == "taken" else seconds / 2,
                    rounds=100, pinned=pinned if phase == "taken" and way not in ("idle", "touch") else None,
                    **{f"{name}_longest_seconds": value for name, value in most.items()},
                    **{f"{name}_typical_seconds": value for name, value in took.items()},
                ).model_dump()
            )  # fmt: skip
    return found


IDLE = rows("idle", 1.0, 3e-4)
TOUCH = rows("touch", 0.4, 1e-3)
HOST_ALLOC = rows("host_alloc", 6.4, 0.31)
REGISTER = rows("register", 0.66, 0.25)
AUTO = rows("auto", 0.55, 0.009, chunk=256 * MIB, giving_back=0.006)
CHUNKS = [
    *rows("chunks", 1.3, 5e-4, chunk=2 * MIB), *rows("chunks", 0.5, 0.008, chunk=256 * MIB),
    *rows("chunks", 0.52, 0.015, chunk=GIB, giving_back=0.021), *rows("chunks", 0.6, 0.07, chunk=4 * GIB),
]  # fmt: skip
ALL = [*IDLE, *TOUCH, *HOST_ALLOC, *REGISTER, *CHUNKS, *AUTO]


def read(found: Rows, limit: float = LIMIT) -> Reading:
    return As("while_serving").read(synthetic.run("while_serving", params={"longest_wait": limit}), found)


def findings(found: Rows, limit: float = LIMIT) -> dict[str, Finding]:
    return {finding.rule: finding for finding in read(found, limit).findings}


def test_the_longest_chunk_that_keeps_to_the_limit_does_so_while_memory_is_given_back_too() -> None:
    serving = Serving(cells_of(ALL), LIMIT)
    best = serving.largest_within
    assert best is not None
    assert best.chunk_bytes == 256 * MIB
    longer = Serving(serving.cells, 0.05).largest_within
    assert longer is not None
    assert longer.chunk_bytes == GIB
    whole = Serving(serving.cells, 0.3).largest_within
    assert whole is not None
    assert whole.way == "register"
    assert Serving(serving.cells, 1e-5).largest_within is None


def test_a_longer_chunk_that_kept_to_the_limit_beyond_a_shorter_one_that_did_not_was_lucky() -> None:
    lucky = [*rows("chunks", 0.5, 0.03, chunk=256 * MIB), *rows("chunks", 0.5, 0.01, chunk=GIB)]
    best = Serving(cells_of([*rows("chunks", 1.3, 5e-4, chunk=2 * MIB), *lucky]), LIMIT).largest_within
    assert best is not None
    assert best.chunk_bytes == 2 * MIB


def test_beside_what_is_found_at_run_time_stands_the_fastest_way_with_its_time_and_wait() -> None:
    finding = findings([*HOST_ALLOC, *AUTO, *rows("chunks", 0.4, 0.03, chunk=64 * MIB)])["auto-keeps-limit"]
    assert "takes 550 ms, by chunks of 64 MiB 400 ms with calls of up to 30.0 ms." in finding.detail
    assert finding.evidence[-1].value == 0.03
    assert "takes 550 ms. " in findings([*HOST_ALLOC, *AUTO])["auto-keeps-limit"].detail


def test_chunks_are_advised_only_where_one_call_makes_calls_wait_clearly_longer() -> None:
    alike = [*HOST_ALLOC, *rows("auto", 0.55, 0.19, chunk=256 * MIB)]
    waits = findings(alike, limit=0.2)["own-calls-wait"]
    assert (waits.advice, waits.code) == ("Pin before the program starts to serve.", None)
    assert "auto-keeps-limit" not in findings(alike, limit=0.2)
    assert (
        read(alike, limit=0.2).verdict
        == "CUDA calls wait up to 310 ms while the same process pins 16 GiB (one cudaHostAlloc)."
    )
    calm = [*rows("host_alloc", 6.4, 0.002), *AUTO]
    assert not findings(calm)


def test_the_verdict_says_what_was_measured() -> None:
    for found, verdict in [
        (ALL, 'While serving, pin 16 GiB by pinscope.pinned_empty(chunk="auto"): longest wait 9.00 ms, '
         "with one cudaHostAlloc 310 ms."),
        ([*HOST_ALLOC, *CHUNKS],
         "While serving, pin 16 GiB by chunks of 256 MiB: longest wait 8.00 ms, with one cudaHostAlloc 310 ms."),
        ([*REGISTER, *rows("host_alloc", 6.4, 0.002)], "CUDA calls wait up to 250 ms while the same process pins "
         "16 GiB (one registration)."),
        ([*rows("register", 0.6, 0.002), *AUTO], "One call may pin 16 GiB while the program serves: its other CUDA "
         "calls waited 2.00 ms at most."),
        (AUTO, 'CUDA calls wait up to 9.00 ms while the same process pins 16 GiB (chunk="auto").'),
        ([*IDLE, *TOUCH], None),
        ([*IDLE, *rows("register", 0.6, 0.002, pinned=False), *AUTO],
         "CUDA does not take registered memory as pinned here: pin with cudaHostAlloc, before serving."),
    ]:  # fmt: skip
        assert read(found).verdict == verdict
        assert verdict is None or len(verdict.split()) <= 20


def test_calls_that_wait_are_a_warning_with_code_that_names_size_and_limit() -> None:
    found = findings(ALL)
    waits = found["own-calls-wait"]
    assert waits.severity == "warning"
    assert waits.title == "A kernel launch of the process took 310 ms while one cudaHostAlloc pinned 16 GiB (3 repeats)"
    assert "calls take up to 1.00 ms, so it is the driver" in waits.detail
    assert waits.code is not None
    assert '"16 GiB", chunk="auto", longest_wait=0.02' in waits.code
    compile(code(GIB, 1e-3), "pasted", "exec")
    assert found["auto-keeps-limit"].severity == "good"


def test_waits_that_touching_alone_causes_too_are_not_put_down_to_the_driver() -> None:
    found = findings([*rows("touch", 0.4, 0.2), *HOST_ALLOC])
    assert "busy processors or Python's interpreter lock, not the driver" in found["own-calls-wait"].detail


def test_calls_that_hardly_wait_are_no_finding() -> None:
    assert "own-calls-wait" not in findings([*TOUCH, *rows("register", 0.6, 0.002), *AUTO])


def test_chunks_found_at_run_time_that_exceed_the_limit_are_said() -> None:
    assert findings(ALL, 0.005)["auto-beyond-limit"].severity == "warning"


def test_memory_that_cuda_does_not_call_pinned_is_critical() -> None:
    assert findings([*HOST_ALLOC, *rows("register", 0.6, 0.2, pinned=False)])["not-pinned"].severity == "critical"


def test_a_way_that_broke_off_while_memory_was_given_back_is_read_as_far_as_it_came() -> None:
    half = [row for row in ALL if row["phase"] != "given_back"]
    assert read(half).verdict is not None
    assert draw(synthetic.run("while_serving"), half)
    assert read([row for row in ALL if row["phase"] == "given_back"]).verdict is None
