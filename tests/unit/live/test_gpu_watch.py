"""The GPUs' driver is asked in a thread of its own; one that hangs is named, and holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import pytest

from pinscope.live.sampler import GpuWatch
from pinscope.probes.gpu import GpuMemory
from pinscope.probes.proc import Answer
from tests.data.gpu_fake import FakeNvml
from tests.data.synthetic_gpu import idle_h200

LONG = 20.0
PROMPT = 5.0


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


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


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    monkeypatch.setattr("pinscope.live.sampler.STOP_SECONDS", 0.1)
    one = Driver()
    yield one
    one.answers.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(driver: Driver, clock: Clock) -> Iterator[GpuWatch]:
    one = GpuWatch(driver.open, interval_seconds=0.01, limit_seconds=5.0, clock=clock)
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
    watch: GpuWatch, driver: Driver, clock: Clock
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
