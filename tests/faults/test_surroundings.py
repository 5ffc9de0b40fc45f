"""Every command in surroundings that nobody expects: it works, or says in one line why not; it shows no traceback."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pinscope.store.bundle import write_bundle
from pinscope.store.recordings import recorded_observations, recorded_runs
from tests.faults.campaign import Campaign, whole_only
from tests.faults.child import TREE, Outcome, run_pinscope

COMMANDS = (
    "--help", "doctor", "doctor --json", "run --help", "run page_tables --lab host --quick --set total=4MiB",
    "runs list", "runs list --json", "runs show {recording}", "runs delete nothing",
    "report {recording} -o {out}/report.html", "export {recording} -o {out}/one.pinscope", "import {bundle}",
    "plan --pinned 1GiB --json", "live --once", "live --once --json", "record --for 0.3s --interval 0.1",
    "record --for 0.3s --interval 0.1 -o {out}/night.pinscope", "exporter --print-rules",
)  # fmt: skip


@dataclass(frozen=True)
class Surroundings:
    """What a command finds when it begins.

    Attributes:
        environment: variables that differ. ``{folder}`` is the attempt's own, ``{clock}`` the library of a wall clock
            that is off.
        harmless: everything works as it does elsewhere.
        prefix: a command that runs it.
        home: its mode.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    harmless: bool = True
    prefix: Sequence[str] = ()
    home: int = 0o700


NAMELESS = ("unshare", "--user", "--map-user=12345", "--map-group=12345")
"""A user that no file of users knows, and without any privilege."""
OWN_HOME = {"HOME": "{folder}/home", "XDG_DATA_HOME": "", "XDG_STATE_HOME": "", "PINSCOPE_DATABASE": ""}


def _in_shell(line: str) -> Sequence[str]:
    return ("sh", "-c", f'{line} exec "$@"', "sh")


def _mounted(line: str) -> Sequence[str]:
    return ("unshare", "--mount", *_in_shell(f"{line} &&"))


def _limited(what: str) -> Surroundings:
    return Surroundings(harmless=False, prefix=_in_shell(f"ulimit {what};"))


def _clock(**off: str) -> Surroundings:
    """A wall clock that is off; see tests/data/other_clock.c."""
    return Surroundings({"LD_PRELOAD": "{clock}", **off})


SURROUNDINGS: Mapping[str, Surroundings] = {
    "folder deleted": Surroundings(prefix=_in_shell("mkdir here; cd here; rmdir ../here;")),
    "home read-only": Surroundings(OWN_HOME, harmless=False, prefix=NAMELESS, home=0o500),
    "home unreadable": Surroundings(OWN_HOME, harmless=False, prefix=NAMELESS, home=0o000),
    "home is a file": Surroundings(OWN_HOME | {"HOME": "/etc/hostname"}, harmless=False),
    "nameless user": Surroundings(OWN_HOME, prefix=NAMELESS),
    "ASCII output": Surroundings({"PYTHONIOENCODING": "ascii:strict"}),
    "C locale": Surroundings({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "zone of no sense": Surroundings({"TZ": "XXX+24:59:59YYY-24:59:59,J1/0,J365/25"}),
    "clock before 1970": _clock(CLOCK_OFF="-1800000000"),
    "clock of 2250": _clock(CLOCK_OFF="7000000000"),
    "clock jumps an hour": _clock(CLOCK_JUMP="-3600"),
    "32 descriptors": Surroundings(prefix=_in_shell("ulimit -n 32;")),
    "12 descriptors": _limited("-n 12"),
    "400 MiB of addresses": _limited("-v 409600"),
    "files of 64 KiB": _limited("-f 128"),
    "no locked memory": _limited("-l 0"),
    "columns of no sense": Surroundings({"COLUMNS": "-3", "LINES": "x", "TERM": "nothing"}),
    "all closed": Surroundings(prefix=_in_shell("exec <&- >&- 2>&-;")),
    "stdout full": Surroundings(harmless=False, prefix=_in_shell("exec >/dev/full;")),
    "temporary folder unwritable": Surroundings({"TMPDIR": "/proc"}),
    "no /dev/shm": Surroundings(prefix=_mounted("umount -l /dev/shm")),
    "no /proc": Surroundings(harmless=False, prefix=_mounted("umount -l /proc")),
    "no network": Surroundings(prefix=("unshare", "--net")),
    "PATH empty": Surroundings({"PATH": ""}),
    "warnings shown": Surroundings({"PYTHONWARNINGS": "default"}),
}


@dataclass(frozen=True)
class Material:
    """What commands ask for."""

    recording: str
    bundle: Path
    clock: Path


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    """A shipped recording, a bundle of it, and a clock."""
    folder = tmp_path_factory.mktemp("material")
    recorded = next(run for run in recorded_runs() if run.experiment == "page_tables")
    bundle, clock = folder / "one.pinscope", folder / "other_clock.so"
    write_bundle(bundle, [(recorded, recorded_observations(recorded.id))])
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here, for clocks that are off")
    source = TREE / "tests" / "data" / "other_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", clock, source, "-ldl"], check=True)
    folder.chmod(0o755)
    return Material(recorded.id, bundle, clock)


@whole_only
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes them")
def test_surroundings(campaign: Campaign, tmp_path: Path, material: Material) -> None:
    """Every command in all surroundings."""
    for number, (name, command) in enumerate(itertools.product(SURROUNDINGS, COMMANDS)):
        campaign.count("surroundings")
        for line in _wrong(SURROUNDINGS[name], command, _carried_out(name, command, tmp_path / str(number), material)):
            campaign.fail(f"{name}: pinscope {command}: {line}")


def _carried_out(name: str, command: str, folder: Path, material: Material) -> Outcome:
    where = SURROUNDINGS[name]
    for part in ("out", "home"):
        (folder / part).mkdir(parents=True)
    (folder / "home").chmod(where.home)
    words = command.format(recording=material.recording, bundle=material.bundle, out=folder / "out").split()
    own = {key: text.format(folder=folder, clock=material.clock) for key, text in where.environment.items()}
    environment = {"PINSCOPE_DATABASE": f"sqlite:///{folder}/runs.sqlite", "COLUMNS": "200", **own}
    return run_pinscope(*words, environment=environment, folder=folder, prefix=where.prefix)


def _wrong(where: Surroundings, command: str, got: Outcome) -> Iterator[str]:
    """What a user could not accept, one line each."""
    said = got.stdout + got.stderr
    for sign in ("Traceback (most recent call", "Exception ignored", "Fatal Python error", "pinscope: unexpected"):
        if sign in said:
            yield f"{sign}: …{said[said.index(sign) :][-700:]!r}"
    meant = 2 if "delete nothing" in command else 0
    if got.exit_code not in (0, 1, 2, 3, 130) or (where.harmless and got.exit_code != meant):
        yield f"exit code {got.exit_code}; {said[-300:]!r}"
    lines = [line for line in got.stderr.splitlines() if line.startswith("pinscope: ")]
    if got.exit_code and not lines and "2>&-" not in str(where.prefix):
        yield f"exit code {got.exit_code} without a line that says why; {said[-300:]!r}"
