"""``pinscope trace`` as people use it: real processes and signals, a real database, a stand-in for CUPTI."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from pinscope.cli.main import main
from pinscope.errors import NotPossible
from pinscope.probes.environment import install_command
from pinscope.report.write import SUFFIXES
from pinscope.runner import program as runner_program
from pinscope.runner import traced_program, tracing
from pinscope.runner.jobs import cancel
from pinscope.runner.traced_program import ask_cupti
from pinscope.store.bundle import read_bundle
from pinscope.store.recordings import recorded_answer
from pinscope.store.store import Store
from pinscope.tracing import process_merge
from tests.data.fake_cupti import FIRST_LINE, variables
from tests.integration.traces import attached, program, rows, started, traced

MIB = 2**20
TRAIN = """\
def load(size):
    copy(size, PAGEABLE, DEVICE)
def main():
    for step in range(20):
        pinned(1, 4096 * (step + 1), 1 << 20)
        load(16 << 20)
        time.sleep(0.002)
        kernel(3_000_000)
        time.sleep(0.004)
        wait(1000)
        copy(1 << 20, PINNED, DEVICE)
        copy(64, DEVICE, PAGEABLE)
        if step % 2: pinned(2, 4096 * (step + 1), 1 << 20)
main()
"""


@pytest.mark.usefixtures("_cupti")
def test_the_line_that_should_pin_is_named_and_the_trace_is_a_run_with_its_events_attached(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path, TRAIN + "print(os.fsencode(sys.argv[-1])); sys.exit(5)")
    bundle = tmp_path / "train.pinscope"
    named = ("--name", "before the fix", "--tag", "ci")
    code, document = traced(tmp_path, "--fail-on", "pageable", *named, "-o", bundle, path, "-m", "x", "arg\udcff")
    out, err = capfd.readouterr()
    assert (code, out) == (5, "b'arg\\xff'\n")
    run_id = document["run"]["id"]
    with Store() as store:
        run = store.run("before the fix")
    assert (run.id, run.tags, run.figure is not None) == (run_id, ("ci",), True)
    assert (run.kind, run.lab, run.status, run.params["program"]) == (
        "trace", "traced", "done", [str(path), "-m", "x", "arg?"],
    )  # fmt: skip
    assert f"train.py:{FIRST_LINE + 1}" in err  # first in the verdict, unless this busy machine pins slowly
    sites = rows(document, "site")
    assert [(row["line"], row["source"], row["target"], row["count"], row["bytes"]) for row in sites] == [
        (FIRST_LINE + 1, "pageable", "device", 20, 320 * MIB),
        (FIRST_LINE + 10, "pinned", "device", 20, 20 * MIB),
        (FIRST_LINE + 11, "device", "pageable", 20, 20 * 64),
    ]
    assert sites[0]["source_line"] == "copy(size, PAGEABLE, DEVICE)"
    assert sites[0]["stack"].splitlines()[1].startswith("main (")
    assert sites[0]["copy_seconds"] == pytest.approx(320 * MIB / 9e9, rel=1e-6)
    assert sites[0]["idle_seconds"] == pytest.approx(sites[0]["call_seconds"], rel=0.05)
    rules = {finding["rule"] for finding in document["run"]["findings"]}
    assert {"pageable-copies", "waits-for-the-gpu"} <= rules
    (pins,) = rows(document, "allocation")
    assert (pins["count"], pins["bytes"], pins["left_count"], pins["left_bytes"]) == (20, 20 * MIB, 10, 10 * MIB)
    assert (pins["held_bytes"], pins["peak_bytes"], pins["at_peak_bytes"]) == (20 * MIB, 11 * MIB, 11 * MIB)
    assert document["observations"][0]["peak_bytes"] == 11 * MIB
    sizes = {(row["direction"], row["most_bytes"]): row["count"] for row in rows(document, "size")}
    assert sizes == {("h2d", MIB): 20, ("h2d", 16 * MIB): 20, ("d2h", 256): 20}
    assert 20 * 0.0003 <= pins["call_seconds"] < 20 * 0.1  # this machine may be busy
    assert {attachment.name: attachment.rows for attachment in run.attachments} == {
        "copies": 60, "kernels": 20, "calls": 110, "pinned": 30,
    }  # fmt: skip
    copies, calls = attached(document, "copies"), attached(document, "calls")
    assert sum(row["bytes"] for row in copies) == 340 * MIB + 20 * 64
    assert all(row["call_at_ns"] < row["at_ns"] and row["took_ns"] > 0 for row in copies)
    waits = {(Path(row["file"]).name, row["line"]) for row in calls if row["call"] == "cuStreamSynchronize"}
    assert waits == {("train.py", FIRST_LINE + 9)}
    assert sum(row["change_bytes"] for row in attached(document, "pinned")) == 10 * MIB
    for suffix in SUFFIXES:
        assert main(["report", run_id, "-o", str(tmp_path / f"report{suffix}")]) == 0
    ((kept, rows_kept),) = read_bundle(bundle)
    assert (kept.id, len(rows_kept)) == (run_id, run.observations)


@pytest.mark.usefixtures("_cupti")
def test_names_that_are_not_utf_8_are_shown_with_a_question_mark(tmp_path: Path) -> None:
    (tmp_path / "caf\udce9").mkdir()
    odd = 'exec(compile("copy(4096, PAGEABLE, DEVICE)", "od\\udce9d.py", "exec"))'
    text = f'copy(4096, PAGEABLE, DEVICE)\nimport pinscope\nwith pinscope.trace("epoch \\udce9"):\n  {odd}'
    code, document = traced(tmp_path, program(tmp_path / "caf\udce9", text))
    sites = rows(document, "site")
    files = {row["file"]: row.get("ranges") for row in sites}
    assert (code, files) == (0, {f"{tmp_path}/caf?/train.py": None, "od?d.py": "epoch ?"})
    assert {row["file"] for row in attached(document, "calls")} == files.keys()


@pytest.mark.usefixtures("_cupti")
def test_kernels_that_could_have_been_issued_during_a_copy_count_for_it_until_the_program_waits(tmp_path: Path) -> None:
    """Each copy holds the CPU for 1.9 ms of a kernel's 8; the next kernel comes 2 ms or more after its end."""
    step = "kernel(8_000_000); copy(16 << 20, PAGEABLE, DEVICE); {}time.sleep(0.008)\n"
    text = "".join(f"for _ in range(10): {step.format(then)}" for then in ("", "wait(1000); "))
    _, document = traced(tmp_path, program(tmp_path, text))
    followed, waited = sorted(rows(document, "site"), key=lambda site: site["line"])
    assert 0 < followed["launch_idle_seconds"] <= followed["call_seconds"] - followed["idle_seconds"] + 1e-9
    calls = [call for call in attached(document, "calls") if call["line"] == waited["line"]]
    calls.sort(key=lambda call: call["at_ns"])
    until_waits = sum(
        wait["at_ns"] - copy["at_ns"] - copy["took_ns"] for copy, wait in zip(calls[::2], calls[1::2], strict=True)
    )  # a busy machine may hold the program up there
    assert waited["launch_idle_seconds"] <= until_waits / 1e9


@pytest.mark.usefixtures("_cupti")
def test_a_stretch_of_a_trace_is_written_for_perfetto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "sys.modules['pinscope.tracing.stacks'].MOST_STACKS = 1\n"
    text += "for _ in range(20): copy(1 << 20, PAGEABLE, DEVICE); time.sleep(0.01)\ncopy(1 << 20, PAGEABLE, DEVICE)"
    _, document = traced(tmp_path, program(tmp_path, text))
    assert document["run"]["notes"] == ["Not all lines are named: the program has more than 1 stacks."]
    assert sorted(row["count"] for row in rows(document, "site") if row["file"]) == [20]
    run_id, file = document["run"]["id"], tmp_path / "some.perfetto.json"
    ran = [(row["at_ns"] / 1e9, (row["at_ns"] + row["took_ns"]) / 1e9) for row in attached(document, "copies")]
    begun = round(ran[9][0], 4)
    expected = sum(end > begun and start < begun + 0.035 for start, end in ran)
    assert main(["report", run_id, "-o", str(file), "--start-after", f"{begun:.4f}s", "--for", "35ms"]) == 0
    copies = [event for event in json.loads(file.read_text())["traceEvents"] if event.get("cat") == "copy"]
    assert 1 <= len([event for event in copies if event["ph"] == "X"]) == expected < 20
    capsys.readouterr()
    wrong = {
        ("--start-after", "1d"): "nothing was recorded then", ("--for", "soon"): "--for: 'soon' is not a duration",
    }  # fmt: skip
    for options, words in wrong.items():
        assert main(["report", run_id, "-o", str(tmp_path / "x.perfetto.json"), *options]) == 2
        assert words in capsys.readouterr().err
    assert main(["report", run_id, "-o", str(tmp_path / "x.html"), "--for", "1s"]) == 2
    assert not (tmp_path / "x.html").exists()


@pytest.mark.usefixtures("_cupti")
def test_managed_memory_is_said_though_its_pages_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUPTI_NO_COUNTERS", "35")
    _, document = traced(tmp_path, program(tmp_path, "managed(1 << 30)\nkernel(1000)"))
    assert document["run"]["verdict"] == "Managed memory was not followed. No copy was recorded."
    (finding,) = document["run"]["findings"]
    assert finding["rule"] == "not-recorded"
    assert "gives no counters" in finding["detail"]
    assert {row["kind"] for row in document["observations"]} == {"program", "device"}


MANAGED = """\
def write():
    for _ in range(10):
        counter(CPU_FAULT, 0, 0, 0)
        counter(TO_HOST, 1 << 20, 2, 1000)
        time.sleep(0.01)
def add():
    kernel(30_000_000)
    counter(GPU_FAULT, 1, 1, 1000)
    counter(TO_GPU, 10 << 20, 2, 1000)
    counter(TO_HOST, 1 << 20, 4, 1000)
    time.sleep(0.03)
def ahead():
    prefetch()
    time.sleep(0.01)
    counter(TO_GPU, 7 << 20, 1, 1000)
managed(1 << 30)
for _ in range(3):
    write(); add(); ahead()
"""


@pytest.mark.usefixtures("_cupti")
def test_pages_of_managed_memory_that_moved_are_given_to_the_lines_that_touched_them(tmp_path: Path) -> None:
    _, document = traced(tmp_path, program(tmp_path, MANAGED))
    lines = {row["line"] - FIRST_LINE + 1: row for row in document["observations"] if row["kind"] == "migration"}
    names = ("to_gpu_bytes", "to_host_bytes", "prefetched_bytes", "gpu_fault_groups", "cpu_faults")
    figures = {line: [row[name] / (MIB if "bytes" in name else 1) for name in names] for line, row in lines.items()}
    faults = [figure.pop() for figure in figures.values()]
    assert sum(faults) == 30
    assert lines[5]["cpu_faults"] >= 28  # on a busy machine one is told after its line
    assert {line: figure for line, figure in figures.items() if any(figure)} == {
        5: [0, 30, 0, 0], 7: [30, 3, 0, 3], 13: [21, 0, 21, 0],
    }  # fmt: skip
    assert 3 * 0.09 * 0.8 < lines[5]["cpu_seconds"] < 3 * 0.09 * 5  # sleeps are longer on a busy machine
    assert lines[7]["kernel_seconds"] == pytest.approx(3 * 0.03)
    assert "Prefetch or copy the managed memory that train.py" in document["run"]["verdict"]
    accused = {finding["title"].partition(":")[2].partition(":")[0] for finding in document["run"]["findings"]}
    assert accused == {str(FIRST_LINE + 4), str(FIRST_LINE + 6)}


@pytest.mark.usefixtures("_cupti")
def test_managed_memory_that_was_allocated_while_nothing_was_recorded_is_followed_afterwards(tmp_path: Path) -> None:
    text = "managed(1 << 30); time.sleep(1)\ncounter(CPU_FAULT, 0, 0, 0); time.sleep(0.2)\nkernel(1000)"
    _, document = traced(tmp_path, "--start-after", "0.7s", program(tmp_path, text))
    (row,) = rows(document, "migration")
    assert (row["cpu_faults"], row["line"]) == (1, FIRST_LINE + 1)
    assert not [finding for finding in document["run"]["findings"] if finding["rule"] == "not-recorded"]


@pytest.mark.usefixtures("_cupti")
def test_a_module_is_traced_as_python_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package").mkdir()
    program(tmp_path / "package", "copy(1 << 20, PAGEABLE, DEVICE)\nprint(sys.argv[1:])", "__main__.py")
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "-m", "package", "--json", "x"]) == 0
    out, err = capfd.readouterr()
    assert out == "['--json', 'x']\n"
    assert f"Pin what __main__.py:{FIRST_LINE} copies, where it is made: " in err


@pytest.mark.usefixtures("_cupti")
def test_the_recording_ends_where_a_trace_is_full_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in (process_merge, tracing):
        monkeypatch.setattr(module, "MOST_RECORDS", 1000)
    text = "for _ in range(60):\n    for _ in range(500): copy(64, 1, 3)\n    time.sleep(0.01)\nprint('end')"
    code, document = traced(tmp_path, "--fail-on", "pageable", program(tmp_path, text))
    out, err = capfd.readouterr()
    assert (code, out) == (1, "end\n")  # nothing is accused, but not all was seen
    assert err.splitlines()[-1].startswith("pinscope: --fail-on: not all of the program was recorded: ")
    assert any("at most 1,000 records" in note for note in document["run"]["notes"])
    assert document["observations"][0]["copies"] < 30_000


def test_where_records_cannot_be_kept_the_program_runs_on_and_ends_us_alike(library: Path, tmp_path: Path) -> None:
    text = """
import resource
resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (1 << 21, resource.RLIM_INFINITY))  # the trace's, as a full disk
for _ in range(20):
    copies(5000)
    time.sleep(0.05)
print("the program has ended")
sys.exit(7)
"""
    done = started(["--json", tmp_path / "answer.json", program(tmp_path, text)], variables(library))
    out, err = done.communicate()
    assert (done.returncode, out) == (7, "the program has ended\n"), err
    document = json.loads((tmp_path / "answer.json").read_text())
    why = "Not all was recorded: the records could not be kept (File too large)."
    assert [note for note in document["run"]["notes"] if note.startswith("Not all")] == [why]
    assert why in " ".join(err.split())
    assert document["run"]["status"] == "done"
    assert 5_000 <= document["observations"][0]["copies"] < 100_000


@pytest.mark.usefixtures("_cupti")
def test_where_nothing_could_be_kept_a_check_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tracing, "ProcessFiles", full)
    assert main(["trace", "--fail-on", "pageable", str(program(tmp_path, "time.sleep(0.3)"))]) == 1
    why = "the trace failed: nothing was recorded: the records could not be kept (No space left on device)"
    assert why in capfd.readouterr().err


@pytest.mark.usefixtures("_cupti")
def test_a_program_that_cannot_be_started_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner_program, "open_command", lambda *_: [str(tmp_path / "nowhere")])
    assert main(["trace", str(program(tmp_path, ""))]) == 1
    assert "the trace failed: unexpected FileNotFoundError" in capfd.readouterr().err


@pytest.mark.usefixtures("_cupti")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_program_that_a_signal_ends_is_kept_and_ends_us_alike(number: int, library: Path, tmp_path: Path) -> None:
    path = program(tmp_path, f"{TRAIN}time.sleep(0.3)\nos.kill(os.getpid(), {number})")
    done = started([path], variables(library))
    _, err = done.communicate()
    assert done.returncode == -number
    assert "train.py:" in err


HANDLERS = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
signal.signal(signal.SIGUSR1, lambda *_: print('saved', flush=True))
print(os.read(int(sys.argv[1]), 9).decode(), flush=True)
for _ in range(300): time.sleep(0.1)
"""
STOPS: dict[str, tuple[dict[str, str], int]] = {
    "ctrl-C, which a terminal sends to both": ({"go": "SIGINT"}, -2),
    "a scheduler's, which without a handler would end us": ({"go": "SIGUSR1", "saved": "SIGTERM"}, 7),
    "pinscope runs cancel": ({"go": ""}, 7),
}


@pytest.mark.usefixtures("_cupti")
@pytest.mark.parametrize("kind", STOPS)
def test_signals_and_inherited_files_are_the_program_s_and_what_was_recorded_is_kept(
    kind: str, library: Path, tmp_path: Path
) -> None:
    signals, code = STOPS[kind]
    reading, writing = os.pipe()
    os.write(writing, b"go")
    os.close(writing)
    path = program(tmp_path, TRAIN + HANDLERS)
    child = started([path, str(reading)], variables(library), inherits=reading, is_exec="SIGINT" in signals.values())
    os.close(reading)
    assert child.stdout is not None
    for line, name in signals.items():
        assert child.stdout.readline() == f"{line}\n"
        if name == "SIGINT":
            os.killpg(child.pid, signal.SIGINT)
        elif name:
            child.send_signal(signal.Signals[name])
        else:
            with Store() as store:
                (running,) = (run for run in store.runs(experiment="trace") if run.status == "running")
                cancel(store, running.id)
    _, err = child.communicate(timeout=20)
    assert child.returncode == code, err
    assert "320 MiB" in err


@pytest.mark.usefixtures("_cupti")
def test_a_program_that_becomes_another_one_does_not_pass_as_recorded_to_its_end(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_program, "SCAN_SECONDS", 60.0)  # nobody sees that what it became uses no CUDA
    path = program(tmp_path, f"{TRAIN}os.execv('/bin/true', ['true'])")
    done = started(["--fail-on", "pageable=1GiB", path], variables(library))
    assert "pinscope: --fail-on: " in done.communicate()[1]
    assert done.returncode == 1


def refused(capfd: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    code = main(["trace", *map(str, arguments)])
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    with Store() as store:
        assert store.runs(experiment="trace") == [run for run in store.runs(experiment="trace") if run.recording]
    return code, err


NO_DRIVER = f"pinscope: there is no NVIDIA driver here, and a trace needs a GPU{recorded_answer('trace')}\n"


def test_where_nothing_can_be_traced_one_line_says_what_to_do(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path, "print('started')")
    assert refused(capfd, path) == (3, NO_DRIVER)
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, variables(library)[name])
    for name, value, words in (
        ("FAKE_CUPTI_REFUSES", "39", "another profiler is attached"),
        ("FAKE_CUPTI_REFUSES", "35", "only root"),
        ("CUDA_INJECTION64_PATH", "/opt/nsight/x.so", "another profiler is attached (CUDA_INJECTION64_PATH is set)"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            code, line = refused(capfd, path)
        assert code == 3
        assert words in line


@pytest.mark.usefixtures("_cupti")
def test_what_is_missing_is_said_in_the_order_in_which_it_is_of_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path, "print('started')")
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsight/libToolsInjection64.so")
    monkeypatch.setenv("FAKE_CUPTI_FAILS", "7")
    code, line = refused(capfd, path)
    assert (code, line.startswith("pinscope: CUPTI does not work here (/")) == (3, True)
    assert "libcupti.so.13: error 7); " in line
    monkeypatch.setenv("FAKE_DRIVER", "11080")
    code, line = refused(capfd, path)
    assert (code, line.startswith("pinscope: a trace needs CUPTI's library (no libcupti.so for CUDA 11 ")) == (3, True)
    monkeypatch.delenv("LD_LIBRARY_PATH")
    assert refused(capfd, path) == (3, NO_DRIVER)


@pytest.mark.parametrize(
    ("cuda", "advice"),
    [
        ("13.0", f": {install_command('trace13')}"),
        ("12.4", f": {install_command('trace12')}"),
        (None, f"; it must fit the driver's CUDA version: {install_command('trace13')}, or trace12"),
    ],
)
@pytest.mark.usefixtures("_cupti")
def test_without_a_library_of_cupti_the_line_says_what_to_install(
    cuda: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DRIVER", "11080")
    with pytest.raises(NotPossible) as refusal:
        ask_cupti(cuda)
    assert str(refusal.value) == f"a trace needs CUPTI's library (no libcupti.so for CUDA 11 or older){advice}"


@pytest.mark.usefixtures("_cupti")
def test_a_program_that_ends_before_its_window_says_that_nothing_was_recorded(tmp_path: Path) -> None:
    _, document = traced(tmp_path, "--start-after", "1h", program(tmp_path, TRAIN))
    assert document["run"]["verdict"].startswith("Nothing was recorded: the program ended before")
    assert document["run"]["params"]["start_after"] == 3600
    assert (document["observations"][0]["recorded_seconds"], document["observations"][0]["copies"]) == (0, 0)


def test_what_makes_no_sense_is_refused_before_the_program_starts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path, "print('started')")
    (tmp_path / "there.json").write_text("")
    (tmp_path / "folder").mkdir()
    for arguments, words in (
        ([tmp_path / "none.py"], "there is no program"),
        ([tmp_path / "folder"], "without __main__.py"),
        (["--json", tmp_path / "there.json", path], "there.json"),
        (["-o", tmp_path / "x.zip", path], "x.zip"),
        (["-o", path, path], "train.py: a bundle's name must end in .pinscope"),
        (["--for", "soon", path], "--for: 'soon'"),
        (["--for", "0s", path], "--for: 0s"),
        (["--start-after", "400d", path], "--start-after: 400d"),
        (["--fail-on", "pageable=5%", path], "--fail-on 'pageable=5%' has no "),
        (["--fail-on", "idle=5", path], "--fail-on 'idle=5' has no "),
    ):
        code, line = refused(capfd, *arguments)
        assert code == 2
        assert words in line


def test_a_module_that_is_not_there_is_refused_at_once_and_none_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    for name, outermost in (("nope", "nope"), ("nope.module", "nope"), (".package", ".package")):
        line = f"pinscope: there is no module {outermost}; a file is traced without -m\n"
        assert refused(capfd, "-m", name) == (2, line)
    for name in ("package", "package.nope", "json.tool"):
        assert refused(capfd, "-m", name) == (3, NO_DRIVER)  # what is in a package is not looked for
    assert not (tmp_path / "imported").exists()


@pytest.mark.usefixtures("_cupti")
def test_a_line_s_text_is_that_which_ran_though_the_file_changes_meanwhile(tmp_path: Path) -> None:
    text = "copy(1 << 20, PAGEABLE, DEVICE)  # as it ran\ntime.sleep(2)\nopen(__file__, 'w').write('\\n' * 99)"
    _, document = traced(tmp_path, program(tmp_path, text))
    (site,) = rows(document, "site")
    assert site["source_line"] == "copy(1 << 20, PAGEABLE, DEVICE)  # as it ran"


@pytest.mark.usefixtures("_cupti")
def test_waits_right_after_an_asynchronous_copy_are_counted_and_ranges_of_nvtx_stand_beside_their_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """\
for n in range(12):
    copy(500 << 20, PINNED, DEVICE)
    wait(900_000)
    time.sleep(0.03); wait(1)
for name in (b'load', b'store', b'more', b'fourth'):
    push(name)
    copy(len(name) << 20, PAGEABLE, DEVICE); pop()
"""
    _, document = traced(tmp_path, program(tmp_path, text))
    waits = {row["line"]: row for row in rows(document, "synchronisation")}
    assert {line: row["count"] for line, row in waits.items()} == {FIRST_LINE + 2: 12, FIRST_LINE + 3: 12}
    assert waits[FIRST_LINE + 2]["after_async_count"] >= 4  # a busy machine may hold the program up for a whole copy
    assert waits[FIRST_LINE + 3]["after_async_count"] == 0
    ranges = {row["source"]: row.get("ranges") for row in rows(document, "site")}
    assert ranges == {"pinned": None, "pageable": "fourth, store, load, 1 more"}
    assert "in range" in capfd.readouterr().err


@pytest.mark.usefixtures("_cupti")
def test_a_limit_that_the_trace_exceeds_ends_a_program_that_ended_well_with_exit_code_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = ["--fail-on", "pageable=1MiB", "--fail-on", "idle=50%"]
    path = program(tmp_path, "copy(1 << 22, PAGEABLE, DEVICE); kernel(900_000_000)")
    assert main(["trace", *limits, str(path)]) == 1
    err = capfd.readouterr().err.splitlines()
    assert err[-1] == (
        "pinscope: --fail-on pageable=1MiB: 4 MiB were copied from or to pageable memory "
        f"(train.py:{FIRST_LINE})"
    )  # fmt: skip
    assert sum("--fail-on" in line for line in err) == 1
    pinned = program(tmp_path, "copy(1 << 22, PINNED, DEVICE)\ncopy(1 << 22, PINNED, DEVICE)\nkernel(1)")
    code, document = traced(tmp_path, "--no-stacks", *limits, pinned)
    assert (code, [(row["file"], row["count"]) for row in rows(document, "site")]) == (0, [("", 2)])


@pytest.mark.usefixtures("_cupti")
def test_a_program_that_the_recorder_did_not_come_into_is_no_trace_without_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(traced_program, "variables", lambda *_: {})
    assert main(["trace", str(program(tmp_path, "copy(4096, PAGEABLE, DEVICE); print('runs')"))]) == 0
    out, err = capfd.readouterr()
    assert out == "runs\n"
    assert "the trace failed: nothing was recorded" in err


@pytest.mark.usefixtures("_cupti")
def test_a_program_ends_with_the_pinscope_that_started_it(library: Path, tmp_path: Path) -> None:
    """Its stdout is closed when it is gone."""
    path = program(tmp_path, "print(os.getpid(), flush=True); time.sleep(60)")
    with started([path], variables(library)) as running:
        assert running.stdout is not None
        assert int(running.stdout.readline()) > 0
        running.kill()
        assert running.stdout.read() == ""


@pytest.mark.usefixtures("_cupti")
def test_a_call_that_fails_is_the_answer_with_the_line_that_made_it_fail_and_the_one_that_met_the_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = """
pinned(1, 1 << 40, 1 << 20)
register(712, 1 << 40, 4096)
for _ in range(20): copy(16 << 20, PAGEABLE, DEVICE)
def innocent(): last_error(712, 0, 0)
innocent()
"""
    code, document = traced(tmp_path, "--fail-on", "error", program(tmp_path, text))
    (row,) = rows(document, "failed_call")
    first = FIRST_LINE + 1
    lines = [row[name] for name in ("earlier_line", "line", "noticed_line")]
    assert (code, lines, row["error"], row["earlier"]) == (1, [first, first + 1, first + 3], 712, "taken")
    assert document["run"]["verdict"].startswith(f"Fix train.py:{first + 1}: cudaHostRegister returned error 712, ")
    assert document["run"]["findings"][0]["rule"] == "failed-calls"
    assert capfd.readouterr().err.splitlines()[-1] == (
        f"pinscope: --fail-on error: a call of CUDA returned an error (train.py:{first + 1}: cudaHostRegister, 712)"
    )


@pytest.mark.usefixtures("_cupti")
def test_a_program_without_an_error_passes(tmp_path: Path) -> None:
    code, document = traced(tmp_path, "--fail-on", "error", program(tmp_path, "register(0, 1 << 40, 4096)"))
    assert (code, rows(document, "program")[0]["failed_calls"]) == (0, 0)
    assert rows(document, "failed_call") == []
