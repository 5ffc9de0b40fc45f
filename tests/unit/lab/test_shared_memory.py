"""pinscope.pinned_empty(shared=NAME): real processes and memory, with a driver that takes notes."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import pytest

from pinscope.errors import InvalidParameter, MeasurementFailed, NotEnoughMemory, NotPossible
from pinscope.lab import backing, pinned_array
from pinscope.lab.pinned_array import PinnedArray, pinned_empty
from tests.unit.lab.driver import Driver

MIB = 2**20
ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys, time
import numpy as np
from pinscope.lab.pinned_array import pinned_empty
from tests.unit.lab.driver import Driver

name, value = sys.argv[1], int(sys.argv[2])
calls = Driver()
array = pinned_empty("8MiB", shared=name, calls=calls)
array[value] = 1
print(calls.calls, calls.untouched, int(array[:4096].sum()), flush=True)
sys.stdin.readline()
del array
"""


@pytest.fixture
def name() -> Iterator[str]:
    made = f"test-{token_hex(4)}"
    yield made
    assert not place(made).exists(), "the name was left behind"


def place(name: str) -> Path:
    return Path(f"/dev/shm/pinscope-{name}")


def start(name: str, value: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, str(value)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip


def shared(name: str, size: int = 8 * MIB, **named: Any) -> PinnedArray:
    return pinned_empty(size, shared=name, calls=named.pop("calls", None) or Driver(), **named)


def test_processes_that_start_at_once_get_the_same_memory_each_pinned_and_one_makes_it(name: str) -> None:
    children = [start(name, 5000 + number) for number in range(4)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("['register'] 0 0")
    array = shared(name)
    assert [int(array[5000 + number]) for number in range(4)] == [1] * 4
    owner = int(place(name).read_text().split()[0])
    assert owner in {child.pid for child in children}
    assert place(name).stat().st_mode & 0o777 == 0o600
    for child in children:
        child.communicate("\n", timeout=30)
    assert int(array[5000]) == 1, "the memory stays with its last user"
    assert not place(name).exists()


def test_what_others_wrote_stays_where_one_opens_it_and_the_maker_alone_takes_the_name_away(name: str) -> None:
    calls, other = Driver(), Driver()
    with shared(name, calls=calls) as array:
        array[:] = 7
        with shared(name, calls=other) as opened:
            assert np.all(opened == 7)
            opened[0] = 9
            assert array[0] == 9
        assert place(name).exists()
    assert not place(name).exists()
    assert calls.calls == other.calls == ["register", "synchronize", "unregister"]
    assert calls.held == other.held == {}
    with shared(name) as array:
        assert not array.any(), "a name that was taken away makes new memory"


def test_it_is_given_back_with_the_last_array_that_uses_it(name: str) -> None:
    before = set(Path("/proc/self/fd").iterdir())
    view = shared(name)[::2]
    assert place(name).exists()
    del view
    gc.collect()
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_a_maker_that_is_killed_leaves_a_name_that_the_next_one_takes_over(name: str) -> None:
    child = start(name, 0)
    assert child.stdout is not None
    child.stdout.readline()
    child.kill()
    child.communicate()
    assert place(name).exists()
    with shared(name) as array:
        assert array[0] == 0
        assert str(os.getpid()) == place(name).read_text().split()[0]


def test_in_a_forked_child_neither_pinning_nor_name_goes(name: str) -> None:
    calls = Driver()
    with shared(name, calls=calls):
        if (child := os.fork()) == 0:
            array = shared(name)
            array._pin.release()  # type: ignore[union-attr]
            os._exit(0 if place(name).exists() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert place(name).exists()


def test_chunks_are_registered_one_by_one(name: str) -> None:
    calls = Driver()
    with shared(name, chunk="2MiB", calls=calls) as array:
        assert (len(calls.held), array.chunk) == (4, 2 * MIB)


def test_where_pinning_fails_or_is_refused_nothing_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MeasurementFailed):
        shared(name, chunk="2MiB", calls=Driver(fail_at=2))
    assert not place(name).exists()
    with pytest.raises(NotPossible, match="which this GPU refuses"):
        shared(name, calls=Driver(can_register=False))
    with pytest.raises(NotEnoughMemory, match="cannot be pinned safely"):
        shared(name, 2**50)
    assert not place(name).exists()
    with pytest.raises(NotEnoughMemory, match="hugetlb"):
        shared(name, 2**33, strategy="hugetlb")
    assert not place(name).exists()
    with shared(name) as array:
        monkeypatch.setattr(pinned_array, "_check_safe", lambda _: pytest.fail("it is there already"))
        with shared(name) as opened:
            assert opened.nbytes == array.nbytes


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"name": "a/b"}, "shared is 'a/b'; up to 100 letters"),
        ({"name": ""}, "shared is ''"),
        ({"chunk": "auto"}, 'chunk="auto" does not go with shared'),
        (
            {"strategy": "thp_register"},
            "'thp_register' makes no shared memory; those that do: memfd, hugetlb, hugetlb_1g",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(named: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        shared(named.pop("name", "test-refused"), **named)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_size_another_users_name_and_another_container_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared(name):
        with pytest.raises(InvalidParameter, match=r"has 8 MiB \(8388608 bytes\), not 4194304 bytes"):
            shared(name, 4 * MIB)
        monkeypatch.setattr(backing, "_namespace", lambda: "pid:[another]")
        with pytest.raises(NotPossible, match="was made in another container"):
            shared(name)
        monkeypatch.undo()
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        with pytest.raises(InvalidParameter, match="is another user's"):
            shared(name)


def test_others_wait_until_the_maker_has_touched_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    touching, go_on = threading.Event(), threading.Event()
    touch = pinned_array.touch_pages

    def slowly(address: int, nbytes: int) -> None:
        touching.set()
        go_on.wait(10)
        touch(address, nbytes)

    monkeypatch.setattr(pinned_array, "touch_pages", slowly)
    kept: list[PinnedArray] = []
    maker = threading.Thread(target=lambda: kept.append(shared(name)))
    maker.start()
    touching.wait(10)
    opener = threading.Thread(target=lambda: kept.append(shared(name)))
    opener.start()
    opener.join(0.2)
    assert opener.is_alive()
    assert not kept
    go_on.set()
    maker.join(10)
    opener.join(10)
    assert len(kept) == 2
    kept[0][0] = 3
    assert kept[1][0] == 3
    kept.clear()
    gc.collect()
