"""What every test is held to: it touches nobody's data and leaves nothing behind.

Servers that outlive a test belong into session or module fixtures: those start before the count is taken.
What starts later and may stay is entered in ``outliving``.

``scripts/test`` runs several tests at once, each in a worker process. So what a test leaves is told from what the tests
beside it have: threads, open files and locked memory are the worker's own, folders and temporary files the test's own,
processes bear the test's mark, and shared memory that a process of another test uses belongs to that one.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from pinscope.store.store import Store
    from tests.integration.postgresql_server import PostgreSQLServer

ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run",
]  # fmt: skip
SETTLE_SECONDS = 3.0
"""How long threads and children may take to end after a test."""
_OBJECTS_BETWEEN_COLLECTIONS = 10_000
"""Fewer than in PinScope's own processes: what a test leaves behind is found soon. Python's own: 700."""
_MARK = "PINSCOPE_TEST_MARK"
"""Environment variable by which a process is known to come from one test, however deep or orphaned."""

_TOGETHER = {"chromium": "browser", "forks": "forks", "kernel": "tracefs"}
"""Fixtures that are costly, or of which a machine has one: the tests that use them run in one worker."""
_TRACING = frozenset({
    "test_live_command", "test_probe", "test_probe_setup", "test_record",
    "test_tracefs",
})  # fmt: skip
"""Modules whose tests trace the driver's library on this machine, or run programs that have it: likewise."""

RELEASE = (
    "browser/test_accessible.py",
    "browser/test_compare.py",
    "browser/test_journey.py::test_a_run_is_shown_wherever_runs_are",
    "browser/test_journey.py::test_a_run_is_taken_away",
    "browser/test_journey.py::test_the_first_page_of_a_new_server",
    "browser/test_legible.py",
    "browser/test_manual.py",
    "browser/test_now.py::test_a_reader_follows",
    "browser/test_silence.py::test_the_commands",
    "browser/test_silence.py::test_the_exporter",
    "faults/test_starting.py::test_hostile_working",
    "integration/test_attach.py::test_a_process_that_has_the_number",
    "integration/test_attach.py::test_a_program_that_ends_meanwhile_is_kept_until_then[os.k",
    "integration/test_attach.py::test_a_program_that_ends_meanwhile_is_kept_until_then[sys",
    "integration/test_attach.py::test_a_program_that_waits",
    "integration/test_attach.py::test_a_second_trace",
    "integration/test_attach.py::test_figures_are_those_of_a_whole_trace_and_the_program_is_as_before[20",
    "integration/test_attach.py::test_where_pinscope_is_killed",
    "integration/test_check.py",
    "integration/test_cli.py::test_a_bundle_carries",
    "integration/test_cli.py::test_a_reader_that_goes_away",
    "integration/test_cli.py::test_a_run_that_is_ended",
    "integration/test_cli.py::test_a_run_whose_database",
    "integration/test_cli.py::test_a_terminal_gets_a_bar",
    "integration/test_cli.py::test_cancelling_stops",
    "integration/test_compare_many_rows.py",
    "integration/test_exporter.py::test_a_real_prometheus",
    "integration/test_fleet.py::test_a_lost_host",
    "integration/test_fleet.py::test_of_eight",
    "integration/test_fleet.py::test_what_a_host",
    "integration/test_fleet_launchers.py",
    "integration/test_fleet_scale.py",
    "integration/test_live_command.py::test_a_pipe_that_closes",
    "integration/test_live_command.py::test_without_a_terminal",
    "integration/test_many_events.py",
    "integration/test_notebooks.py",
    "integration/test_probe_setup.py::test_two_processes",
    "integration/test_programs.py::test_a_sample",
    "integration/test_pytest_plugin.py",
    "integration/test_record.py::test_a_database_that_is_deleted",
    "integration/test_record.py::test_a_terminal",
    "integration/test_record.py::test_killed_it_leaves",
    "integration/test_record.py::test_who_cancels",
    "integration/test_report_offline.py::test_a_report_opens",
    "integration/test_report_offline.py::test_bandwidth_prints",
    "integration/test_report_offline.py::test_on_paper",
    "integration/test_report_offline.py::test_page_and_charts_follow",
    "integration/test_report_offline.py::test_several_runs",
    "integration/test_runner.py::test_a_child_does_not",
    "integration/test_runner.py::test_a_run_completes",
    "integration/test_runner.py::test_a_run_that_no_signal",
    "integration/test_runner.py::test_runs_that_queue",
    "integration/test_runner.py::test_workers_have_loaded",
    "integration/test_store_postgresql.py::test_a_server_that_goes_away",
    "integration/test_store_postgresql.py::test_a_writer_that_is_killed",
    "integration/test_store_postgresql.py::test_many_processes",
    "integration/test_store_postgresql.py::test_two_processes",
    "integration/test_store_postgresql.py::test_what_two_processes",
    "integration/test_trace.py::test_a_program_that_a_signal_ends_is_kept_and_ends_us_alike[11",
    "integration/test_trace.py::test_pages_of_managed_memory_that_moved",
    "integration/test_trace.py::test_signals_and_inherited_files_are_the_program_s_and_what_was_recorded_is_kept[a s",
    "integration/test_trace.py::test_signals_and_inherited_files_are_the_program_s_and_what_was_recorded_is_kept[pin",
    "integration/test_trace.py::test_where_nothing",
    "integration/test_trace.py::test_where_records_cannot",
    "integration/test_trace_children.py",
    "integration/test_trace_parts.py::test_a_part_accuses",
    "integration/test_trace_parts.py::test_a_part_on_a_full_disk",
    "integration/test_trace_parts.py::test_parts_are_recorded",
    "integration/test_trace_parts.py::test_whatever_fails",
    "integration/test_trace_parts.py::test_where_a_part_cannot",
    "integration/test_trace_parts.py::test_wherever_ctrl_c",
    "integration/test_trace_processes.py::test_processes_that_copy_on",
    "integration/test_trace_strangers.py::test_a_folder_that_somebody",
    "integration/test_trace_strangers.py::test_where_anybody",
    "integration/test_what_if.py::test_a_file_is_pinned_whatever",
    "integration/test_what_if.py::test_a_second_run",
    "integration/test_what_if.py::test_both_runs",
    "integration/test_what_if.py::test_there_is_no_second",
    "integration/test_what_if.py::test_two_lines",
    "integration/test_what_if.py::test_what_became",
    "integration/test_what_if_wait.py::test_data_that_is_used_too_early_is_proven_and_its_line_named[\\nimport",
    "integration/test_what_if_wait.py::test_of_the_right_program_nothing_is_proven_and_nothing_called_good[\\nimport",
    "integration/test_what_if_wait.py::test_of_two_lines",
    "unit/analysis/test_check_campaign.py::test_equal_runs_pass_and_planted_regressions_never[50",
    "unit/analysis/test_trend.py::test_of_many_series",
    "unit/cli/test_table.py::test_every_table_of_the_recordings_fits_a_usual_terminal[1",
    "unit/dashboard/test_gpu_cards.py::test_cancel",
    "unit/dashboard/test_gpu_cards.py::test_one_click",
    "unit/dashboard/test_serve.py::test_it_does_not_read_the_settings",
    "unit/experiments/dataloader/test_steady_state.py::test_a_second_runs_pace_lies_within_it_93_times_in_100[0.0-",
    "unit/experiments/pressure/test_group.py::test_cancelling",
    "unit/experiments/pressure/test_group.py::test_of_a_run_that_is_killed",
    "unit/experiments/registration/test_across.py::test_every_process_gets",
    "unit/experiments/registration/test_across.py::test_on_two_gpus",
    "unit/experiments/registration/test_member.py::test_cancelling",
    "unit/experiments/registration/test_member.py::test_processes_share",
    "unit/experiments/staging/test_adding_a_way.py",
    "unit/experiments/test_adding_an_experiment.py::test_it_is_drawn",
    "unit/experiments/test_adding_an_experiment.py::test_it_is_read",
    "unit/experiments/test_adding_an_experiment.py::test_it_keeps",
    "unit/experiments/test_adding_an_experiment.py::test_it_runs",
    "unit/experiments/test_adding_an_experiment.py::test_its_parameters",
    "unit/experiments/topology/test_measure.py::test_the_environment_reaches",
    "unit/experiments/topology/test_measure.py::test_without_pytorch",
    "unit/lab/test_harness.py::test_at_least_94_percent_of_intervals_hold_the_true_median[normal",
    "unit/lab/test_harness.py::test_at_least_94_percent_of_intervals_hold_the_true_median[skewed",
    "unit/lab/test_shared_memory.py::test_processes_that_start",
    "unit/live/test_broken_entries.py::test_broken_entries_of_some",
    "unit/live/test_sampler.py::test_memory_is_bounded",
    "unit/live/timeline/test_charts.py::test_a_long_watch",
    "unit/probes/test_environment.py::test_no_malformed",
    "unit/python/test_opened.py::test_cells_have_units_in_their_names_and_the_figures_of_the_run_s_own_table[1",
    "unit/report/test_readable.py::test_a_finding_without",
    "unit/report/test_readable.py::test_plotly_is",
    "unit/runner/test_queue.py::test_many_at_once",
    "unit/runner/test_suite.py::test_a_step_that_cannot",
    "unit/runner/test_timeline.py::test_an_hour_is_recorded_whole",
    "unit/runner/test_what_if.py::test_a_program_whose",
    "unit/store/test_anonymous.py::test_a_recording_can_be_given_away_without_names_and_imported_beside_itself[bandwidth",
    "unit/store/test_anonymous.py::test_an_anonymous_run_is_imported_and_reads_as_the_run_does[kept-experiment",
    "unit/store/test_anonymous.py::test_no_byte_of_an_anonymous_bundle_or_report_names_anybody[kept-experiment",
    "unit/store/test_private.py::test_a_file_that_the_user_names",
    "unit/store/test_private.py::test_nobody_else",
    "unit/store/test_read_only.py::test_a_folder_that_may_not",
    "unit/store/test_read_only.py::test_in_a_folder_of_another_user",
    "unit/store/test_read_only.py::test_on_a_read_only_file_system_all_can_be_read[closed",
    "unit/store/test_read_only.py::test_what_lies",
    "unit/store/test_store.py::test_many_processes",
    "unit/store/test_store.py::test_two_processes",
    "unit/test_adding_a_figure.py::test_it_is_one_entry",
    "unit/test_adding_a_figure.py::test_json_has",
    "unit/test_adding_a_figure.py::test_the_terminal",
    "unit/test_leaves_nothing_behind.py",
    "unit/tracing/test_recorder.py::test_a_program_s_memory",
)
"""What a plain run leaves out: it costs seconds of processor time, and a test beside it asks the like in less."""

# A busy machine must not fail a test for being slow.
if importlib.util.find_spec("hypothesis"):  # the GPU tests do without it
    import hypothesis

    hypothesis.settings.register_profile("pinscope", deadline=None, max_examples=25)
    hypothesis.settings.register_profile("release", deadline=None)
    hypothesis.settings.load_profile("pinscope")


def pytest_configure() -> None:
    """What is started in a shell's background inherits that it ignores Ctrl-C: the tests' children must not.

    What is imported for a test stays: the garbage collector looks for nothing until all tests are found.
    """
    gc.disable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before xdist notes the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a plain run leaves out. What several tests share is made once: they run in one worker, in turn."""
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(RELEASE):
            item.add_marker(pytest.mark.release)
        if item.get_closest_marker("xdist_group"):
            continue
        if item.path.stem in _TRACING:
            item.add_marker(pytest.mark.xdist_group("tracefs"))
            continue
        fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - only functions have it
        if together := sorted(_TOGETHER[name] for name in fixtures if name in _TOGETHER):
            item.add_marker(pytest.mark.xdist_group(together[0]))
        elif any(definition[-1].scope == "module" for definition in fixtures.values()):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """All that was imported stays: the garbage collector need not look at it again, a tenth of what most tests take."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


@dataclass
class Outliving:
    """What may stay after a test: process ids (with all below them) and thread names."""

    processes: set[int] = field(default_factory=set)
    threads: set[str] = field(default_factory=set)


@pytest.fixture(scope="session")
def outliving() -> Outliving:
    """Enter here what a test starts and a later test goes on using."""
    return Outliving()


@pytest.fixture
def url() -> str:
    """The test's own database, which what it calls opens too."""
    return os.environ["PINSCOPE_DATABASE"]


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """That database, opened."""
    from pinscope.store.store import Store

    with Store(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def kernel() -> Iterator[Path]:
    """Where the kernel's tracing is; skips where there is none."""
    from tests.data.fake_driver import tracing

    with tracing() as folder:
        yield folder


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for CUPTI's library."""
    from tests.data.fake_cupti import built

    return built(tmp_path_factory.mktemp("cupti"))


@pytest.fixture(scope="module")
def server(outliving: Outliving) -> Iterator[PostgreSQLServer]:
    """A real PostgreSQL server."""
    from tests.integration.postgresql_server import started_server

    with started_server(outliving) as started:
        yield started


@pytest.fixture(scope="session")
def chromium(outliving: Outliving) -> Iterator[Browser]:
    """Debian's Chromium, or the one that CHROMIUM names. One for all: Playwright's loop runs once in a process."""
    from playwright.sync_api import sync_playwright  # a GPU host runs tests too, without a browser

    binary = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert binary, "no chromium here: apt-get install chromium, or set CHROMIUM to its path"
    before = set(psutil.Process().children())
    with sync_playwright() as playwright:
        outliving.processes.update(child.pid for child in set(psutil.Process().children()) - before)
        browser = playwright.chromium.launch(executable_path=binary, args=ARGUMENTS)
        yield browser
        browser.close()


def _use_private_places(patch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Point the store, the queue, the data folders and the temporary folder below ``folder``; returns the last."""
    temporary = folder / "t"
    temporary.mkdir()
    patch.setenv("PINSCOPE_DATABASE", f"sqlite:///{folder / 'pinscope.sqlite'}")
    patch.setenv("PINSCOPE_QUEUE", str(folder / "queue"))  # nobody waits for the runs of other tests
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        patch.setenv(name, str(folder / name.lower()))
    patch.setenv("TMPDIR", str(temporary))
    patch.setattr(tempfile, "tempdir", None)  # asks for TMPDIR again
    return temporary


@pytest.fixture(scope="session", autouse=True)
def _session_uses_private_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers of session fixtures must not see a user's data either."""
    with pytest.MonkeyPatch.context() as patch:
        _use_private_places(patch, tmp_path_factory.mktemp("session"))
        patch.setenv("PINSCOPE_COMMIT", "0" * 40)  # else git is asked twice for each run
        yield


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(tmp_path_factory: pytest.TempPathFactory, outliving: Outliving) -> Iterator[None]:
    """A test starts in places of its own and ends with what it began with."""
    with pytest.MonkeyPatch.context() as patch:
        mark = uuid.uuid4().hex[:12]  # short: sockets lie in these folders, and their paths may have 107 characters
        # Not numbered: to find the next number takes longer with each folder that is there.
        temporary = _use_private_places(patch, tmp_path_factory.mktemp(f"own-{mark}", numbered=False))
        patch.setenv(_MARK, mark)
        before, older = _resources(temporary), _pids()
        yield
        deadline = time.monotonic() + SETTLE_SECONDS
        while left := _left_over(before, _resources(temporary), _started(older, mark), outliving):
            if time.monotonic() > deadline:
                pytest.fail("left behind: " + "; ".join(left), pytrace=False)
            gc.collect()
            time.sleep(0.05)


@dataclass(frozen=True)
class _Resources:
    threads: frozenset[threading.Thread]
    shared_memory: frozenset[str]
    open_files: frozenset[str]
    temporary_files: frozenset[str]
    locked_kib: int


def _resources(temporary: Path) -> _Resources:
    return _Resources(
        threads=frozenset(threading.enumerate()),
        shared_memory=frozenset(_names("/dev/shm")),
        open_files=frozenset(_open_files()),
        temporary_files=frozenset(f"{temporary}/{name}" for name in _names(temporary)),
        locked_kib=int(re.search(r"VmLck:\s+(\d+)", Path("/proc/self/status").read_text())[1]),  # type: ignore[index]
    )


def _left_over(before: _Resources, after: _Resources, started: Set[int], outliving: Outliving) -> list[str]:
    """What is there after and was not before, one line each; ``started``: processes of this test."""
    threads = [t for t in after.threads - before.threads if t.name not in outliving.threads]
    processes = [p for p in started if not _below(p, outliving.processes)]
    left = [f"thread {thread.name!r}" for thread in threads]
    left += [f"process {pid} ({_read(pid, 'cmdline').replace(chr(0), ' ').strip()})" for pid in processes]
    if shared := after.shared_memory - before.shared_memory:
        left += [f"/dev/shm/{name}" for name in shared - _used_beside(started)]
    left += [f"open file {name}" for name in after.open_files - before.open_files]
    left += [f"temporary file {name}" for name in after.temporary_files - before.temporary_files]
    if after.locked_kib > before.locked_kib:
        left.append(f"{after.locked_kib - before.locked_kib} KiB of locked memory")
    return left


def _read(pid: int, name: str) -> str:
    """A file of /proc/PID; empty if the process is gone or not ours."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""


def _names(folder: str | Path) -> set[str]:
    return set(os.listdir(folder))  # noqa: PTH208 - six times a test


def _pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdecimal()}  # noqa: PTH208 - twice a test


def _started(older: Set[int], mark: str) -> set[int]:
    """What this test started: children, ended but unread ones included, and all that inherited its environment."""
    return {pid for pid in _pids() - older if _parent(pid) == os.getpid() or mark in _read(pid, "environ")}


def _parent(pid: int) -> int:
    """Its parent's process id; 0 if it is gone."""
    parent = re.search(r"PPid:\s+(\d+)", _read(pid, "status"))
    return int(parent[1]) if parent else 0


def _used_beside(started: Set[int]) -> set[str]:
    """Names in /dev/shm that living processes of other tests have mapped or open."""
    names = set()
    for pid in _pids() - started - {os.getpid()}:
        used = re.findall(r"/dev/shm/(\S+)", _read(pid, "maps"))
        with suppress(OSError):  # it is gone, or another user's
            used += [str(link.readlink()).removeprefix("/dev/shm/") for link in Path(f"/proc/{pid}/fd").iterdir()]
        names.update(used)
    return names


def _below(pid: int, allowed: set[int]) -> bool:
    """True if the process or one of its ancestors is allowed."""
    while pid > 1 and pid not in allowed:
        pid = _parent(pid)
    return pid in allowed


def _open_files() -> set[str]:
    """Regular files this process holds open."""
    names = set()
    for descriptor in _names("/proc/self/fd"):
        try:
            if stat.S_ISREG(os.fstat(int(descriptor)).st_mode):
                names.add(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - for each descriptor, twice a test
        except OSError:  # the descriptor of this very listing
            continue
    return names
