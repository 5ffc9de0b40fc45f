"""The writer of a run's observations: prompt, and nothing is lost whatever happens to the database."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import InvalidParameter, StoreFailed
from pinscope.records.run import Progress
from pinscope.store import rescue
from pinscope.store.bundle import read_bundle, write_bundle
from pinscope.store.new_file import own_folder
from pinscope.store.rescue import FLUSH_SECONDS, SafeWriter, find_saved
from pinscope.store.store import Store
from tests.data.second_user import ATTACKS, as_another_user, attack, needs_root, open_place
from tests.unit.store.runs import new_rows, new_run, repeats
from tests.unit.store.test_database import limit_pages

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


@pytest.fixture
def writer(store: Store) -> Iterator[SafeWriter]:
    opened = SafeWriter(store, store.add(new_run("r")))
    yield opened
    opened.close()


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
def troubled(url: str) -> Iterator[Troubled]:
    with Troubled(url) as opened:
        yield opened


def until(condition: Any, seconds: float = 5) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_row_is_stored_before_append_returns(store: Store, writer: SafeWriter) -> None:
    took = 0.0
    for number in range(3):
        time.sleep(max(0.05, 3 * took))  # a store that is slow for a moment is asked less often
        begun = time.monotonic()
        writer.append(new_rows(1, first=number))
        took = time.monotonic() - begun
        assert repeats(store.observations("r")) == list(range(number + 1))


def test_rows_that_come_faster_than_the_store_takes_them_are_stored_together(troubled: Troubled) -> None:
    troubled.seconds = 0.05
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    begun = time.monotonic()
    for number in range(1000):
        writer.append(new_rows(1, first=number))
        time.sleep(0.0005)
    elapsed = time.monotonic() - begun
    assert writer.close() is None
    assert repeats(troubled.observations("r")) == list(range(1000))
    assert troubled.calls < elapsed / 0.1 + 3  # at most half of the time is spent in the store


@pytest.mark.alone
def test_what_nothing_follows_is_stored_soon_all_the_same(troubled: Troubled) -> None:
    troubled.seconds = 0.05
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    writer.append(new_rows(1))
    begun = time.monotonic()
    writer.append(new_rows(1, first=1))
    assert troubled.run("r").observations == 1
    until(lambda: troubled.run("r").observations == 2)
    assert time.monotonic() - begun < FLUSH_SECONDS + 0.5
    writer.close()


def test_a_row_that_is_no_observation_is_refused_at_once(store: Store, writer: SafeWriter) -> None:
    with pytest.raises(InvalidParameter, match="observation 1: x: nan"):
        writer.append([*new_rows(1), {"repeat": 0, "warmup": False, "x": float("nan")}])
    writer.append(new_rows(2))
    assert writer.close() is None
    assert len(store.observations("r")) == 2


def test_changes_of_the_run_are_written_too(store: Store, writer: SafeWriter) -> None:
    writer.update(progress=Progress(fraction=0.5))
    assert store.run("r").progress.fraction == 0.5
    with pytest.raises(InvalidParameter, match="id of a run cannot be changed"):
        writer.update(id="x")
    assert writer.close(status="done", notes=("end",)) is None
    assert (store.run("r").status, store.run("r").notes) == ("done", ("end",))


def test_closing_twice_does_no_harm(writer: SafeWriter) -> None:
    assert writer.close() is None
    assert writer.close() is None


def test_rows_wait_while_the_store_fails_and_are_stored_when_it_recovers(troubled: Troubled) -> None:
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    writer.append(new_rows(1))
    troubled.failing = True
    writer.append(new_rows(2, first=1))
    assert writer.problem is None or "out of order" in writer.problem
    until(lambda: writer.problem == "database somewhere: out of order")
    troubled.failing = False
    writer.append(new_rows(1, first=3))
    until(lambda: writer.problem is None)
    assert writer.close() is None
    assert repeats(troubled.observations("r")) == [0, 1, 2, 3]


def test_the_store_is_tried_again_though_no_more_rows_come(troubled: Troubled) -> None:
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    troubled.failing = True
    writer.append(new_rows(2))
    troubled.failing = False
    until(lambda: troubled.run("r").observations == 2)
    assert writer.close() is None


def test_a_lost_answer_stores_nothing_twice(troubled: Troubled) -> None:
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    troubled.failing_after = True
    writer.append(new_rows(2))
    time.sleep(0.05)
    writer.append(new_rows(1, first=2))
    troubled.failing_after = False
    assert writer.close() is None
    assert repeats(troubled.observations("r")) == [0, 1, 2]


def take_away(path: Path) -> None:
    """Remove a rescue bundle, and the folder that was made for it."""
    path.unlink()
    path.parent.rmdir()


def saved(path: Path | None, folder: Path) -> list[int]:
    """The repeats in a rescue bundle, which is taken away."""
    assert path is not None
    assert path.parent == own_folder(folder)
    ((run, rows),) = read_bundle(path)
    take_away(path)
    assert run.id == "r"
    return repeats(rows)


def test_a_full_disk_ends_in_a_bundle_with_the_whole_run(store: Store) -> None:
    writer = SafeWriter(store, store.add(new_run("r")))
    limit_pages(store, 40)
    for number in range(0, 3000, 100):
        writer.append(new_rows(100, first=number))
    deadline = time.monotonic() + 10  # on a busy machine the writer's thread stores what came last
    while writer.problem is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert writer.problem is not None
    path = writer.close(status="done")
    assert path is not None
    assert path.name == "pinscope-r.pinscope"
    kept = store.observations("r")
    assert 0 < len(kept) < 3000
    # The bundle completes the run once there is room again and the run has been marked.
    limit_pages(store, 1_000_000)
    store.update("r", status="interrupted")
    assert store.import_runs(read_bundle(path)).completed == ("r",)
    assert (store.run("r").status, store.run("r").observations) == ("done", 3000)
    assert saved(path, Path(tempfile.gettempdir())) == list(range(3000))


def test_a_deleted_database_ends_in_a_bundle_with_the_whole_run(store: Store) -> None:
    writer = SafeWriter(store, store.add(new_run("r")))
    writer.append(new_rows(3))
    for left in Path(store.name).parent.glob("store.db*"):
        left.unlink()
    writer.append(new_rows(2, first=3))
    assert saved(writer.close(), Path(tempfile.gettempdir())) == [0, 1, 2, 3, 4]


def test_a_database_deleted_after_the_last_row_is_noticed(store: Store) -> None:
    writer = SafeWriter(store, store.add(new_run("r")))
    writer.append(new_rows(3))
    until(lambda: store.run("r").observations == 3)
    for left in Path(store.name).parent.glob("store.db*"):
        left.unlink()
    assert saved(writer.close(), Path(tempfile.gettempdir())) == [0, 1, 2]


def test_a_second_bundle_does_not_replace_the_first(troubled: Troubled) -> None:
    troubled.failing = True
    folder = own_folder(Path(tempfile.gettempdir()))
    folder.mkdir(0o700)
    (folder / "pinscope-r.pinscope").write_text("precious")
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    writer.append(new_rows(2))
    path = writer.close()
    assert path == folder / "pinscope-r-2.pinscope"
    assert (folder / "pinscope-r.pinscope").read_text() == "precious"
    (folder / "pinscope-r.pinscope").unlink()
    assert saved(path, folder.parent) == [0, 1]


def test_the_bundle_goes_where_there_is_room(
    troubled: Troubled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubled.failing = True
    home, here = tmp_path / "home", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setattr(rescue, "SHARED_FOLDERS", ())
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    writer.append(new_rows(2))
    assert saved(writer.close(), here) == [0, 1]
    home.mkdir()
    again = SafeWriter(troubled, troubled.run("r"))
    again.append(new_rows(1))
    assert saved(again.close(), home) == [0]


@pytest.fixture
def shared_folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Two folders that every user may write in, for files of runs that the database does not take."""
    with open_place() as place:
        first, second = place / "first", place / "second"
        for folder in (first, second):
            folder.mkdir()
            folder.chmod(0o1777)
        monkeypatch.delenv("TMPDIR")
        monkeypatch.setattr(rescue, "SHARED_FOLDERS", (str(first), str(second)))
        yield first, second


@needs_root
@pytest.mark.parametrize("how", [*ATTACKS, "no sticky bit"])
def test_a_run_is_saved_past_what_another_user_has_put_there(
    troubled: Troubled, shared_folders: tuple[Path, Path], how: str
) -> None:
    troubled.failing = True
    first, second = shared_folders
    precious = first.parent / "mine" / "pinscope-r.pinscope"
    precious.parent.mkdir()
    precious.write_text("precious")
    if how == "no sticky bit":
        first.chmod(0o777)
    else:
        attack(how, own_folder(first), precious, "pinscope-r.pinscope", "pinscope-r-2.pinscope")
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    writer.append(new_rows(2))
    path = writer.close()
    assert path is not None
    assert path == find_saved("r")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    read = f"try: open({str(path)!r})\nexcept PermissionError: print('refused')"
    assert as_another_user(read) == "refused\n"
    assert saved(path, second) == [0, 1]
    assert precious.read_text() == "precious"
    assert list(precious.parent.iterdir()) == [precious]


@needs_root
def test_another_user_cannot_pass_off_a_file_as_the_run_that_was_saved(
    shared_folders: tuple[Path, Path], tmp_path: Path
) -> None:
    """Not even one that is this user's: a link to another run's file, or a second name of it."""
    first, _ = shared_folders
    first.chmod(0o777)  # where the kernel lets this user follow links of others
    write_bundle(tmp_path / "older.pinscope", [(new_run("older", status="done"), [])])
    link = "os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True)\nos.symlink(sys.argv[2], sys.argv[1])"
    for folder in (first, own_folder(first)):
        as_another_user(link, folder / "pinscope-r.pinscope", tmp_path / "older.pinscope")
    assert find_saved("r") is None


@needs_root
def test_a_link_in_this_user_s_own_folder_is_not_followed(shared_folders: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = shared_folders
    (tmp_path / "older.pinscope").touch()
    own_folder(first).mkdir(0o700)
    (own_folder(first) / "pinscope-r.pinscope").symlink_to(tmp_path / "older.pinscope")
    assert find_saved("r") is None


def test_a_refuge_comes_first_unless_something_is_there(troubled: Troubled, tmp_path: Path) -> None:
    troubled.failing = True
    (tmp_path / "mine.pinscope").write_text("mine")
    for name, kept in (("free.pinscope", True), ("mine.pinscope", False)):
        writer = SafeWriter(troubled, troubled.add(new_run()), refuge=tmp_path / name)
        writer.append(new_rows(2))
        saved = writer.close()
        assert saved is not None
        assert (saved == tmp_path / name) == kept
        ((_, rows),) = read_bundle(saved)
        assert rows == new_rows(2)
        saved.unlink() if kept else take_away(saved)
    assert (tmp_path / "mine.pinscope").read_text() == "mine"


def test_when_nothing_can_be_written_that_is_said(
    troubled: Troubled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubled.failing = True
    for place in ("HOME", "TMPDIR"):
        monkeypatch.setenv(place, str(tmp_path / "gone"))
    monkeypatch.setattr(rescue, "SHARED_FOLDERS", ())
    monkeypatch.setattr(Path, "cwd", lambda: tmp_path / "gone")
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    writer.append(new_rows(2))
    with pytest.raises(StoreFailed, match=r"2 observations are lost, .*: .*out of order; cannot write"):
        writer.close()


def test_a_run_without_observations_needs_no_bundle(troubled: Troubled) -> None:
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    assert writer.close() is None


def test_how_a_run_ended_is_saved_though_it_has_no_observations(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SafeWriter(store, store.add(new_run("r")))

    def fail(*_: object, **__: object) -> None:
        raise StoreFailed("database somewhere: out of order")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "update", fail)
        path = writer.close(status="failed", error="the GPU is gone")
    assert path is not None
    assert path == find_saved("r")
    ((run, rows),) = read_bundle(path)
    take_away(path)
    assert (run.status, run.error, rows) == ("failed", "the GPU is gone", [])
    assert store.import_runs([(run, rows)]).completed == ("r",)
    assert store.run("r") == run


def test_a_run_is_saved_before_a_slow_database_is_waited_for(troubled: Troubled) -> None:
    writer = SafeWriter(troubled, troubled.add(new_run("r")))
    troubled.failing = True
    writer.append(new_rows(3))
    seen: list[Path | None] = []

    def answer(*_: object, **__: object) -> int:
        seen.append(find_saved("r"))
        troubled.failing = False
        return Store.append(troubled, "r", new_rows(3), start=0)

    troubled.append = answer  # type: ignore[method-assign]
    assert writer.close(status="done") is None
    assert seen[0] is not None
    assert find_saved("r") is None  # the database has it after all
    assert (troubled.run("r").status, troubled.run("r").observations) == ("done", 3)


def test_the_writer_may_be_used_while_others_read(store: Store, writer: SafeWriter) -> None:
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert len(store.observations("r")) <= store.run("r").observations

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200):
        writer.append(new_rows(1, first=number))
    stop.set()
    reader.join()


@pytest.mark.alone
def test_kill_of_the_process_loses_nothing_older_than_the_limit(store: Store, url: str) -> None:
    run = store.add(new_run("r"))
    program = """
import sys, time
from pinscope.store.rescue import SafeWriter
from pinscope.store.store import Store
store = Store()
writer = SafeWriter(store, store.run("r"))
for number in range(10**9):
    writer.append([{"repeat": number, "warmup": False, "at": time.monotonic()}])
    if number % 100 == 0:
        print(number, flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PINSCOPE_DATABASE": url, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    while int(child.stdout.readline()) < 2000:
        pass
    killed = time.monotonic()
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    rows = store.observations(run.id)
    assert repeats(rows) == list(range(len(rows)))
    assert rows[-1]["at"] > killed - 2 * FLUSH_SECONDS  # a write may have been under way for as long again
