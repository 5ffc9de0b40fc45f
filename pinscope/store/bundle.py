"""Bundles: one ``.pinscope`` file that carries runs between machines.

A bundle is a zip archive with these members and no others::

    manifest.json                   {"format": 1, "written_by": {"version", "commit"}, "created", "runs": [ids]}
    runs/ID/run.json                the run, as :class:`pinscope.records.run.Run` writes it
    runs/ID/observations.jsonl      one observation a line, in the order in which they were measured

Floats are written with the shortest digits that give back the same value, so they come back bit by bit.
"""

from __future__ import annotations

import io
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

import pinscope
from pinscope.errors import BadBundle, BadInput, InvalidParameter
from pinscope.probes.software import source_commit
from pinscope.records.base import Moment
from pinscope.records.run import FORMAT, Run
from pinscope.store.new_file import write_new
from pinscope.store.rows import Row, RunWithRows, check_rows, check_run, dump_json, first_complaint

SUFFIX = ".pinscope"
MAX_UNPACKED_BYTES = 512 * 2**20
"""A bundle that unpacks to more is refused: it is either a zip bomb or too much to hold in memory."""
MAX_RUNS = 10_000
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Member times carry nothing: equal runs make equal members."""
_COMPRESSIONS = frozenset({zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED})
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, OverflowError, MemoryError)
"""What zipfile raises on damaged archives (RuntimeError, for one, where a flipped bit says encrypted)."""
_ANY_ROW: TypeAdapter[Row] = TypeAdapter(dict[str, Any])


class WrittenBy(BaseModel):
    """Which PinScope wrote a bundle."""

    version: str
    commit: str | None


class Manifest(BaseModel):
    """What a bundle says of itself."""

    model_config = ConfigDict(extra="ignore")  # additive fields keep the format

    format: int
    written_by: WrittenBy
    created: Moment
    runs: list[str]


def write_bundle(path: Path | str, items: Sequence[RunWithRows]) -> None:
    """Write runs with their observations to one new file, all or nothing.

    Raises:
        PathExists: there is such a file.
        BadInput: no runs, the same run twice, more than a bundle holds, or no such folder.
        PinScopeError: the file could not be written.
    """
    write_new(Path(path), render_bundle(items))


def render_bundle(items: Sequence[RunWithRows]) -> bytes:
    """The bundle as bytes, for a download.

    Raises:
        BadInput: no runs, the same run twice, or more than a bundle holds.
    """
    ids = [run.id for run, _ in items]
    if not ids:
        raise BadInput("a bundle needs at least one run")
    if len(ids) > MAX_RUNS or len(set(ids)) < len(ids):
        raise BadInput(f"a bundle holds each run once, and at most {MAX_RUNS} of them")
    manifest = Manifest(
        format=FORMAT,
        written_by=_this_version(),
        created=datetime.now(UTC),
        runs=ids,
    )
    members = {"manifest.json": manifest.model_dump_json()}
    for run, rows in items:
        check_run(run)
        stored = run.model_copy(update={"recording": False, "observations": len(rows)})
        members[_run_member(run.id)] = dump_json(stored.model_dump(mode="json"))
        members[_rows_member(run.id)] = "".join(dump_json(row) + "\n" for row in check_rows(rows))
    if sum(map(len, members.values())) > MAX_UNPACKED_BYTES:  # the text is ASCII: one byte a character
        raise BadInput(
            f"these runs are more than one bundle holds ({MAX_UNPACKED_BYTES >> 20} MiB); export fewer at once"
        )
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in members.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def read_bundle(path: Path | str) -> list[RunWithRows]:
    """The runs of a bundle, each with its observations; checked whole before anything is handed out.

    Raises:
        BadBundle: no such file, not a bundle, damaged, of a newer format, or too large.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):  # a device or a pipe may never end
            raise BadBundle(f"{path} is not a file")
        with Path(path).open("rb") as file:
            return _all_of(file, str(path))
    except OSError as error:
        raise BadBundle(f"{path}: {error.strerror or error}") from None


def parse_bundle(data: bytes, name: str) -> list[RunWithRows]:
    """The same from bytes, as an upload has them; ``name`` is used in messages only."""
    return _all_of(io.BytesIO(data), name)


def _all_of(file: IO[bytes], name: str) -> list[RunWithRows]:
    with BundleReader(file, name) as bundle:
        return [(run, bundle.rows(run)) for run in bundle.runs]


class BundleReader:
    """An open bundle: its runs at once, the observations of each when asked for.

    Args:
        file: the archive, seekable.
        name: used in messages only.

    Raises:
        BadBundle: whatever is wrong, in one line.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._name = name
        with self._damage_reported():
            if file.read(2) != b"PK":
                raise BadBundle(f"{name} is not a PinScope bundle")
            self._archive = zipfile.ZipFile(file)
        try:
            self.manifest = self._read_manifest()
            self.runs = [self._read_run(run_id) for run_id in self.manifest.runs]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the archive."""
        self._archive.close()

    def rows(self, run: Run) -> list[Row]:
        """The observations of one of the bundle's runs."""
        name = _rows_member(run.id)
        lines = self._read(name).splitlines()
        try:
            rows = check_rows(_ANY_ROW.validate_json(line) for line in lines)
        except ValidationError as error:
            raise self._bad(f"{name}: {first_complaint(error)}") from None
        except InvalidParameter as error:
            raise self._bad(f"{name}: {error}") from None
        if len(rows) != run.observations:
            raise self._bad(f"run {run.id} should have {run.observations} observations, there are {len(rows)}")
        return rows

    def _read_manifest(self) -> Manifest:
        if "manifest.json" not in self._archive.namelist():
            raise BadBundle(f"{self._name} is not a PinScope bundle: it has no manifest.json")
        if any(member.compress_type not in _COMPRESSIONS for member in self._archive.infolist()):
            raise self._bad("a member is compressed in a way that bundles are not")
        if sum(member.file_size for member in self._archive.infolist()) > MAX_UNPACKED_BYTES:
            raise self._bad(f"it unpacks to more than {MAX_UNPACKED_BYTES >> 20} MiB")
        text = self._read("manifest.json")
        self._check_format(text)
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError as error:
            raise self._bad(f"manifest.json: {first_complaint(error)}") from None
        expected = ["manifest.json"]
        for run_id in manifest.runs[: MAX_RUNS + 1]:
            expected += [_run_member(run_id), _rows_member(run_id)]
        if len(manifest.runs) > MAX_RUNS or sorted(self._archive.namelist()) != sorted(expected):
            raise self._bad("its members are not those that the manifest names")
        return manifest

    def _check_format(self, manifest: bytes) -> None:
        """Before anything else, because a newer format may look different everywhere but here."""
        try:
            version = _ANY_ROW.validate_json(manifest).get("format")
        except ValidationError:
            raise self._bad("manifest.json is not JSON") from None
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self._bad("manifest.json has no format number")
        if version > FORMAT:
            raise BadBundle(
                f"{self._name} has bundle format {version}; PinScope {pinscope.__version__} reads formats up to "
                f"{FORMAT}: update PinScope"
            )

    def _read_run(self, run_id: str) -> Run:
        name = _run_member(run_id)
        try:
            run = Run.model_validate_json(self._read(name))
            check_run(run)
        except ValidationError as error:
            raise self._bad(f"{name}: {first_complaint(error)}") from None
        except InvalidParameter as error:
            raise self._bad(str(error)) from None
        if run.id != run_id:
            raise self._bad(f"{name} holds run {run.id}")
        if run.format > FORMAT:
            raise BadBundle(f"{self._name}: run {run.id} has format {run.format}; this PinScope reads up to {FORMAT}")
        return run

    def _read(self, name: str) -> bytes:
        with self._damage_reported(), self._archive.open(name) as member:
            # Not read(): without a number it unpacks all there is before it looks at the length that was promised.
            return member.read(self._archive.getinfo(name).file_size)  # checks the CRC

    @contextmanager
    def _damage_reported(self) -> Iterator[None]:
        try:
            yield
        except BadBundle:
            raise
        except _ZIP_ERRORS as error:
            why = " ".join(str(error).split())[:100]
            raise self._bad(why or type(error).__name__) from None

    def _bad(self, why: str) -> BadBundle:
        return BadBundle(f"{self._name} is a damaged bundle: {why}")


@cache
def _this_version() -> WrittenBy:
    return WrittenBy(version=pinscope.__version__, commit=source_commit().value)


def _run_member(run_id: str) -> str:
    return f"runs/{run_id}/run.json"


def _rows_member(run_id: str) -> str:
    return f"runs/{run_id}/observations.jsonl"
