"""The writer of a run's observations: prompt, and nothing is lost whatever happens to the database."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import InvalidParameter, StoreFailed
from pinscope.records.run import Progress
from pinscope.runner.jobs import reconcile
from pinscope.store import safe_writer
from pinscope.store.new_file import own_folder
from pinscope.store.safe_writer import SafeWriter, bring_in, find_saved
from pinscope.store.store import Store
from tests.data.second_user import ATTACKS, as_another_user, attack, needs_root, open_place
from tests.unit.store.runs import in_another_process, new_rows, new_run, repeats
from tests.unit.store.test_database import limit_pages

DEAD = {"pid": 2**22, "started": 1.0, "boot_id": "x"}


class Troubled(Store):
    """A store that can be told to fail, and to be slow."""

    failing = False
    failing_after = False
    """Store the rows, but answer as if not: a connection that breaks at the wrong moment."""
    seconds = 0.0
    calls = 0

    def append(self, *arguments: Any, **named: Any) -> int:
        self.calls += 1
        time.sleep(self.seconds)
        if self.failing:
            raise StoreFailed("database somewhere: out of order")
        count = super().append(*arguments, **named)
        if self.failing_after:
            raise StoreFailed("database somewhere: connection lost")
        return count


@pytest.fixture
def store(url: str) -> Iterator[Troubled]:
    with Troubled(url) as opened:
        yield opened


@pytest.fixture
def writer(store: Troubled) -> Iterator[SafeWriter]:
    opened = SafeWriter(store, store.add(new_run("r")))
    yield opened
    opened.close()


@pytest.fixture
def shared_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two folders that every user may write in; beside the database no file can be."""
    with open_place() as place:
        first, second = place / "first", place / "second"
        for folder in (first, second):
            folder.mkdir()
            folder.chmod(0o1777)
        monkeypatch.delenv("TMPDIR", raising=False)
        monkeypatch.setattr(Store, "folder", None)
        monkeypatch.setattr(safe_writer, "SHARED_FOLDERS", (str(first), str(second)))
        yield first, second


def test_a_row_is_stored_before_append_returns(store: Troubled, writer: SafeWriter) -> None:
    took = 0.0
    for number in range(3):
        time.sleep(max(0.05, 3 * took))  # a store that is slow for a moment is asked less often
        begun = time.monotonic()
        writer.append(new_rows(1, first=number))
        took = time.monotonic() - begun
        assert repeats(store.observations("r")) == list(range(number + 1))


def test_rows_that_come_faster_than_the_store_takes_them_are_stored_together(
    store: Troubled, writer: SafeWriter
) -> None:
    store.seconds = 0.05
    begun = time.monotonic()
    for number in range(1000):
        writer.append(new_rows(1, first=number))
        time.sleep(0.0005)
    elapsed = time.monotonic() - begun
    assert store.calls < elapsed / 0.1 + 3  # at most half of the time is spent in the store
    assert store.run("r").observations < 1000
    time.sleep(0.2)
    writer.flush()
    assert repeats(store.observations("r")) == list(range(1000))


def test_a_row_that_is_no_observation_is_refused_at_once(store: Troubled, writer: SafeWriter) -> None:
    with pytest.raises(InvalidParameter, match="observation 1: x: nan"):
        writer.append([*new_rows(1), {"repeat": 0, "warmup": False, "x": float("nan")}])
    writer.append(new_rows(2))
    assert writer.close() is writer.close() is None
    assert len(store.observations("r")) == 2


def test_changes_of_the_run_are_written_too(store: Troubled, writer: SafeWriter) -> None:
    writer.update(progress=Progress(fraction=0.5))
    assert store.run("r").progress.fraction == 0.5
    assert writer.close(status="done", notes=("end",)) is None
    assert (store.run("r").status, store.run("r").notes) == ("done", ("end",))


@pytest.mark.parametrize("trouble", ["failing", "failing_after"])
def test_rows_wait_in_a_file_while_the_store_fails_and_leave_it_when_it_recovers(store: Troubled, trouble: str) -> None:
    writer = SafeWriter(store, store.add(new_run("r")), clock=count().__next__)  # each call finds the store rested
    writer.append(new_rows(1))
    setattr(store, trouble, True)
    writer.append(new_rows(2, first=1))
    assert writer.problem is not None
    (file,) = own_folder(Path(store.name).parent).iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    bring_in(store)  # another command: it leaves the file of a writer that lives
    assert file.exists()
    setattr(store, trouble, False)
    writer.append(new_rows(1, first=3))
    assert writer.problem is None
    assert writer.close(status="done") is None
    assert not file.parent.exists()
    assert repeats(store.observations("r")) == [0, 1, 2, 3]


def fill(store: Store) -> Callable[[], None]:
    limit_pages(store, 40)
    return lambda: limit_pages(store, 1_000_000)


def delete(store: Store) -> Callable[[], None]:
    for left in Path(store.name).parent.glob("store.db*"):
        left.unlink()
    return lambda: None


def refuse_updates(store: Store) -> Callable[[], None]:
    def fail(*_: object, **__: object) -> None:
        raise StoreFailed("database somewhere: out of order")

    store.update = fail  # type: ignore[method-assign]
    return lambda: delattr(store, "update")


@pytest.mark.parametrize(
    ("spoil", "rows", "marked"),
    [(fill, 3000, True), (delete, 0, False), (delete, 3000, False), (refuse_updates, 0, True)],
)
def test_what_a_database_does_not_take_comes_in_with_the_next_command(
    store: Troubled, spoil: Callable[[Store], Callable[[], None]], rows: int, marked: bool
) -> None:
    writer = SafeWriter(store, store.add(new_run("r", process=DEAD)))
    writer.append(new_rows(3))
    mend = spoil(store)
    for first in range(3, rows, 100):
        writer.append(new_rows(100, first=first))
    path = writer.close(status="failed", error="the GPU is gone")
    assert path is not None
    saved = find_saved(store, "r")
    assert saved is not None
    assert (saved[0].status, repeats(saved[1])) == ("failed", repeats(writer.rows))
    mend()
    if marked:
        store.update("r", status="interrupted")
    reconcile(store)
    run = store.run("r")
    assert (run.status, run.error, run.observations) == ("failed", "the GPU is gone", len(writer.rows))
    assert store.observations("r") == writer.rows
    assert not path.parent.exists()


def test_what_a_killed_writer_kept_comes_in_as_far_as_it_is_whole(store: Troubled) -> None:
    run = store.add(new_run("r", process=DEAD))
    store.failing = True
    writer = SafeWriter(store, run)
    writer.append(new_rows(5))
    file = own_folder(Path(store.name).parent) / "unsaved-r.jsonl"
    content = file.read_bytes()
    writer.close()
    file.write_bytes(content + b'[{"repeat": 5, "warm')
    store.failing = False
    reconcile(store)
    assert (store.run("r").status, repeats(store.observations("r"))) == ("interrupted", [0, 1, 2, 3, 4])


def test_a_run_that_was_cancelled_stays_so(store: Troubled) -> None:
    writer = SafeWriter(store, store.add(new_run("r")))
    store.failing = True
    writer.append(new_rows(2))
    Store.update(store, "r", status="cancelled")
    assert writer.close(status="done") is not None
    bring_in(store)
    assert (store.run("r").status, store.run("r").observations) == ("cancelled", 2)


def test_a_file_of_another_database_stays(store: Troubled, tmp_path: Path) -> None:
    store.failing = True
    writer = SafeWriter(store, store.add(new_run("r")))
    writer.append(new_rows(2))
    path = writer.close(status="done")
    with Store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        bring_in(other)
        assert other.runs(recordings=False) == []
        assert find_saved(other, "r") is None
    assert path is not None
    assert path.exists()
    store.failing = False
    bring_in(store)


def test_a_full_disk_moves_the_file_elsewhere(
    store: Troubled, shared_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.failing = True
    writer = SafeWriter(store, store.add(new_run("r")))
    writer.append(new_rows(2))
    write, full = os.write, own_folder(shared_folders[0])

    def refuse(file: int, content: Any) -> int:
        if full in Path(f"/proc/self/fd/{file}").readlink().parents:
            if len(content) > 10:
                return write(file, content[:10])
            raise OSError(28, "No space left on device")
        return write(file, content)

    monkeypatch.setattr(os, "write", refuse)
    writer.append(new_rows(2, first=2))
    path = writer.close(status="done")
    assert path is not None
    assert path.parent == own_folder(shared_folders[1])
    assert not full.exists()
    store.failing = False
    bring_in(store)
    assert (store.run("r").status, repeats(store.observations("r"))) == ("done", [0, 1, 2, 3])


def test_when_nothing_can_be_written_that_is_said(store: Troubled, monkeypatch: pytest.MonkeyPatch) -> None:
    store.failing = True
    monkeypatch.setattr(safe_writer, "_folders", lambda _: iter(()))
    writer = SafeWriter(store, store.add(new_run("r")))
    writer.append(new_rows(2))
    with pytest.raises(StoreFailed, match=r"2 observations are lost, .*: .*out of order"):
        writer.close()


@needs_root
@pytest.mark.parametrize("how", [*ATTACKS, "no sticky bit"])
def test_a_run_is_saved_past_what_another_user_has_put_there(
    store: Troubled, shared_folders: tuple[Path, Path], how: str
) -> None:
    store.failing = True
    first, second = shared_folders
    precious = first.parent / "mine" / "unsaved-r.jsonl"
    precious.parent.mkdir()
    precious.write_text("precious")
    if how == "no sticky bit":
        first.chmod(0o777)
    else:
        attack(how, own_folder(first), precious, "unsaved-r.jsonl")
    writer = SafeWriter(store, store.add(new_run("r")))
    writer.append(new_rows(2))
    path = writer.close()
    assert path is not None
    assert path.parent == own_folder(second)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    read = f"try: open({str(path)!r})\nexcept PermissionError: print('refused')"
    assert as_another_user(read) == "refused\n"
    store.failing = False
    bring_in(store)
    assert repeats(store.observations("r")) == [0, 1]
    assert precious.read_text() == "precious"
    assert list(precious.parent.iterdir()) == [precious]


@needs_root
@pytest.mark.parametrize("whose", ["another's folder", "another's file", "a link of this user's"])
def test_nobody_else_brings_a_run_into_the_database(
    store: Troubled, shared_folders: tuple[Path, Path], tmp_path: Path, whose: str
) -> None:
    store.failing = True
    writer = SafeWriter(store, new_run("r"))
    writer.append(new_rows(1))
    path = writer.close()
    assert path is not None
    real, own = tmp_path / "real", own_folder(shared_folders[0])
    path.rename(real)
    path.parent.rmdir()
    if whose == "another's folder":
        shared_folders[0].chmod(0o777)  # where the kernel lets this user follow links of others
        as_another_user("os.mkdir(sys.argv[1])\nos.symlink(sys.argv[2], sys.argv[3])", own, real, own / path.name)
    else:
        own.mkdir(0o700)
        if whose == "another's file":
            (own / path.name).write_bytes(real.read_bytes())
            os.chown(own / path.name, 65534, 65534)
        else:
            (own / path.name).symlink_to(real)
    store.failing = False
    bring_in(store)
    assert store.runs(recordings=False) == []
    assert find_saved(store, "r") is None


@pytest.mark.parametrize("failing", [False, True])
def test_kill_of_the_process_loses_nothing_that_was_acknowledged(store: Troubled, url: str, failing: bool) -> None:
    store.add(new_run("r", process=DEAD))
    program = f"""
import time
from pinscope.errors import StoreFailed
from pinscope.store.safe_writer import SafeWriter
writer = SafeWriter(store, store.run("r"))
def fail(*_, **__): raise StoreFailed("out of order")
for number in range(10**9):
    if {failing} and number == 300:
        store.append = fail
    writer.append([{{"repeat": number, "warmup": False}}])
    if number % 100 == 0:
        time.sleep(0.05)
        writer.flush()
        print(number, flush=True)
"""
    child = in_another_process(url, program)
    assert child.stdout is not None
    while (last := int(child.stdout.readline())) < 1000:
        pass
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    reconcile(store)
    rows = store.observations("r")
    assert repeats(rows) == list(range(len(rows)))
    assert len(rows) > last
    assert store.run("r").status == "interrupted"
