"""Work at a steady pace, in threads that can be stopped and started at any time, also while the work hangs: a repeater,
the watch over the GPUs' driver, and the sampler, which is bounded and never silent about what went wrong."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from pinscope.errors import InvalidParameter, NotPossible
from pinscope.live.sampler import MOST_EVENTS, MOST_SAMPLES, GpuWatch, History, Repeater, Sampler
from pinscope.live.source import LiveSource
from pinscope.probes.gpu import GpuMemory
from pinscope.probes.proc import Answer
from pinscope.records.snapshot import Snapshot
from tests.data import synthetic_snapshot
from tests.data.fast_time import FastTime
from tests.data.gpu_fake import FakeNvml
from tests.data.synthetic_gpu import idle_h200
from tests.data.synthetic_host import SyntheticHost, zero
from tests.data.synthetic_snapshot import GIB, MIB, TAKEN_AT, device, holder
from tests.data.waiting import until

LONG = 60.0
PROMPT = 5.0
HOUR = 3600.0
MOST_BYTES_OF_A_SAMPLE = 13_000
"""16 holders that all changed and 8 GPUs: 45 MiB in an hour of one each second."""


# A repeater


def workers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "worker"]


def turns(time_: FastTime, work_seconds: Callable[[int], float], interval: float = 1.0) -> list[float]:
    """When each turn began until the clock reached its end."""
    begun: list[float] = []

    def work() -> None:
        begun.append(time_.now)
        time_.now += work_seconds(len(begun))

    repeated = Repeater("worker", work, interval, clock=time_.clock, wait=time_.wait)
    repeated.start()
    assert time_.reached.wait(LONG)
    repeated.stop()
    assert not repeated.running
    return begun


def test_it_begins_at_once_and_keeps_its_pace_whatever_the_work_takes() -> None:
    assert turns(FastTime(5.0), lambda _: 0.25) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_turns_that_slow_work_missed_are_left_out() -> None:
    assert turns(FastTime(8.0), lambda turn: 2.5 if turn == 2 else 0.25) == [0.0, 1.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert turns(FastTime(9.0), lambda _: 1.5) == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_pace_that_makes_no_sense_is_refused() -> None:
    for seconds in [0.0, -1.0, 0.001, float("nan"), float("inf")]:
        with pytest.raises(InvalidParameter, match="at least"):
            Repeater("worker", lambda: None, seconds)


def test_started_twice_it_is_still_one_thread_and_stopped_twice_it_is_stopped() -> None:
    repeated = Repeater("worker", lambda: None, 0.01)
    for _ in range(20):
        repeated.start()
        repeated.start()
        assert len(workers()) == 1
        repeated.stop()
        repeated.stop()
        assert workers() == []


class HangingWork:
    """Work that hangs until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.let_go = threading.Event()
        self.finished = threading.Event()
        self.repeater = Repeater("worker", self.work, 0.01, finish=self.finished.set)

    def work(self) -> None:
        self.begun.release()
        self.let_go.wait(LONG)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingWork]:
    monkeypatch.setattr("pinscope.live.sampler.STOP_SECONDS", 0.05)
    one = HangingWork()
    yield one
    one.let_go.set()
    one.repeater.stop()


def test_a_stop_does_not_wait_for_work_that_hangs(hanging: HangingWork) -> None:
    hanging.repeater.start()
    assert hanging.begun.acquire(timeout=LONG)
    begun = time.monotonic()
    hanging.repeater.stop()
    assert time.monotonic() - begun < PROMPT
    assert not hanging.repeater.running
    assert not hanging.finished.is_set()
    hanging.let_go.set()
    assert hanging.finished.wait(LONG)


def test_starting_again_uses_the_thread_that_hangs_instead_of_another(hanging: HangingWork) -> None:
    for _ in range(5):
        hanging.repeater.start()
        assert len(workers()) == 1
        hanging.repeater.stop()
    hanging.repeater.start()
    hanging.let_go.set()
    assert hanging.begun.acquire(timeout=LONG)
    assert hanging.begun.acquire(timeout=LONG)  # it goes on
    assert len(workers()) == 1


# The watch over the driver


class Driver:
    """A driver that can be made to hang, to be away, or to break."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.absent: str | None = None
        self.breaks: Exception | None = None
        self.opened = self.closed = self.asked = 0

    def open(self) -> FakeNvml:
        return _Reader(self)


class _Reader(FakeNvml):
    def __init__(self, driver: Driver) -> None:
        super().__init__(gpus=[idle_h200()], absent=driver.absent)
        self._driver = driver

    def __enter__(self) -> Self:
        self._driver.opened += 1
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.closed += 1
        super().__exit__(kind, error, trace)

    def memory(self, index: int) -> Answer[GpuMemory]:
        self._driver.asked += 1
        self._driver.answers.wait(LONG)
        if self._driver.breaks is not None:
            raise self._driver.breaks
        return super().memory(index)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr("pinscope.live.sampler.STOP_SECONDS", 0.1)
    one = Driver()
    yield one
    one.answers.set()


@pytest.fixture
def clock() -> FastTime:
    return FastTime(0.0)


@pytest.fixture
def watch(driver: Driver, clock: FastTime) -> Iterator[GpuWatch]:
    one = GpuWatch(driver.open, interval_seconds=0.01, limit_seconds=5.0, clock=clock.clock)
    yield one
    driver.answers.set()
    one.stop()


def test_the_last_figures_are_there_at_once_with_the_rates(watch: GpuWatch, driver: Driver) -> None:
    assert watch.latest().reason == "the driver is not being asked"
    watch.start()
    watch.wait(LONG)
    (gpu,) = watch.latest().value or ()
    assert (gpu.name, gpu.rx_bytes_per_second) == ("NVIDIA H200", 27.6e9)
    until(lambda: driver.asked >= 3)
    assert driver.opened == 1  # and stays open


def test_a_driver_that_hangs_is_named_with_the_time_and_answers_count_again_later(
    watch: GpuWatch, driver: Driver, clock: FastTime
) -> None:
    watch.start()
    watch.wait(LONG)
    driver.answers.clear()
    asked = driver.asked
    until(lambda: driver.asked > asked)
    assert watch.latest().value is not None  # slow is not hung
    clock.now += 12.3
    assert watch.latest().reason == "NVML has not answered for 12 s"
    driver.answers.set()
    until(lambda: watch.latest().value is not None)


def test_figures_from_before_a_stop_are_not_shown_after_the_next_start(watch: GpuWatch, driver: Driver) -> None:
    watch.start()
    watch.wait(LONG)
    watch.stop()
    driver.answers.clear()
    watch.start()
    assert watch.latest().value is None
    driver.answers.set()
    until(lambda: watch.latest().value is not None)


@pytest.mark.parametrize(
    ("absent", "breaks", "reason"),
    [
        ("no NVIDIA driver is installed here", None, "no NVIDIA driver is installed here"),
        (None, RuntimeError("lost\nits mind"), "the GPUs could not be read: RuntimeError: lost its mind"),
    ],
    ids=["not there", "breaks"],
)
def test_a_driver_that_gives_no_figures_says_why_and_is_opened_anew(
    watch: GpuWatch, driver: Driver, absent: str | None, breaks: Exception | None, reason: str
) -> None:
    driver.absent, driver.breaks = absent, breaks
    watch.start()
    watch.wait(LONG)
    assert watch.latest().reason == reason
    driver.absent = driver.breaks = None
    until(lambda: watch.latest().value is not None)
    watch.stop()
    assert driver.opened == driver.closed > 1


# The sampler


def threads() -> int:
    return sum(one.name == "pinscope-sampler" for one in threading.enumerate())


class Scene:
    """Gives one snapshot after the other, each a little different, unless it is told to misbehave."""

    def __init__(self, holders: int = 1, devices: int = 0) -> None:
        self.taken = 0
        self.fails: Exception | None = None
        self.passes = threading.Event()
        self.passes.set()
        self._holders = [holder(pid) for pid in range(1, holders + 1)]
        self._devices = [device(index) for index in range(devices)]
        self._whole = synthetic_snapshot.snapshot(holders=tuple(self._holders), devices=tuple(self._devices))

    def take(self) -> Snapshot:
        self.taken += 1
        self.passes.wait(LONG)
        if self.fails is not None:
            raise self.fails
        moment = {"taken_at": TAKEN_AT + timedelta(seconds=self.taken), "cpu_seconds": self.taken / 1e6}
        holders = tuple(
            one.model_copy(update={"host_alloc_bytes": (self.taken * 100 + number) * 4096})
            for number, one in enumerate(self._holders)
        )
        devices = tuple(
            one.model_copy(update={"memory_used_bytes": 2**40 + self.taken, "rx_bytes_per_second": self.taken / 3})
            for one in self._devices
        )
        return self._whole.model_copy(update={**moment, "holders": holders, "devices": devices})


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr("pinscope.live.sampler.STOP_SECONDS", 0.1)
    one = Scene()
    yield one
    one.passes.set()


def sampled(scene: Scene, seconds: float, **settings: float) -> History:
    """The history after so many seconds of hurried sampling."""
    time_ = FastTime(seconds)
    one = Sampler(scene.take, clock=time_.clock, wait=time_.wait, **settings)
    with one:
        assert time_.reached.wait(LONG)
    return one.history()


def test_an_hour_is_kept_and_no_more_and_no_thread_is_lost() -> None:
    scene = Scene(holders=2, devices=1)
    history = sampled(scene, 2 * HOUR)
    assert scene.taken == 2 * HOUR + 1
    assert len(history.samples) == MOST_SAMPLES
    assert [history.samples[0].elapsed_seconds, history.samples[-1].elapsed_seconds] == [HOUR + 1, 2 * HOUR]
    assert len(history.events) == MOST_EVENTS
    assert history.latest is not None
    assert history.latest.taken_at == TAKEN_AT + timedelta(seconds=scene.taken)
    assert history.trouble is None
    assert threads() == 0


def test_memory_is_bounded_with_many_holders_that_all_change() -> None:
    window = 200
    tracemalloc.start()
    try:
        scene = Scene(holders=40, devices=8)
        before = tracemalloc.get_traced_memory()[0]
        kept = [sampled(scene, 2.5 * window, history_seconds=window - 1)]
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(kept[0].samples) == window
    events = MOST_EVENTS * 1_500
    assert used - events < window * MOST_BYTES_OF_A_SAMPLE


def test_a_reading_that_fails_is_reported_until_the_next_one_succeeds(scene: Scene) -> None:
    one = Sampler(scene.take, interval_seconds=0.01)
    with one:
        until(lambda: len(one.history().samples) >= 1)
        scene.fails = OSError("no more\nfiles")
        until(lambda: one.history().trouble is not None)
        failing = one.history()
        assert failing.trouble == "Reading failed: OSError: no more files"
        assert failing.latest is not None  # the last one that succeeded
        scene.fails = NotPossible("the probe is gone; start it again")
        until(lambda: (one.history().trouble or "").endswith("failed: the probe is gone; start it again"))
        scene.fails = None
        until(lambda: one.history().trouble is None)
    assert len(one.history().samples) > len(failing.samples)


def test_a_reading_that_hangs_is_named_with_the_time_and_does_not_hold_up_the_stop(scene: Scene) -> None:
    time_ = FastTime(HOUR)
    one = Sampler(scene.take, clock=time_.clock)
    scene.passes.clear()
    one.start()
    until(lambda: scene.taken == 1)
    time_.now += 4.0
    assert one.history().trouble is None
    time_.now += 8.0
    assert one.history().trouble == "The reading has been going on for 12 s"
    begun = time.monotonic()
    one.stop()
    assert time.monotonic() - begun < PROMPT
    assert one.history().trouble is None
    scene.passes.set()
    until(lambda: threads() == 0)
    assert one.history().samples == ()  # what came after the stop is not kept


def test_while_the_driver_hangs_host_figures_go_on_and_a_stop_is_prompt(tmp_path: Path, driver: Driver) -> None:
    driver.answers.clear()
    synthetic = SyntheticHost(tmp_path, pinned_bytes=GIB)
    pid = synthetic.cuda_process([zero(64 * MIB, 1)])
    watch = GpuWatch(driver.open, limit_seconds=0.1, clock=lambda: 100 * time.monotonic())
    with LiveSource(synthetic.proc, watch) as source, Sampler(source.take, 0.02) as one:
        until(lambda: len(one.history().samples) >= 3)
        latest = one.history().latest
        assert latest is not None
        (gap,) = [gap for gap in latest.unreadable if gap.what == "GPUs"]
        assert gap.reason.startswith("NVML has not answered for ")
        assert [(held.pid, held.host_alloc_bytes) for held in latest.holders] == [(pid, 64 * MIB)]
        assert latest.devices == ()
        driver.answers.set()
        until(lambda: bool((one.history().latest or latest).devices))
        driver.answers.clear()
        until(lambda: not (one.history().latest or latest).devices)
        begun = time.monotonic()
    assert time.monotonic() - begun < PROMPT
