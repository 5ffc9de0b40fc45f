"""Bundles: one ``.pinscope`` file that carries runs between machines.

A bundle is a zip archive with these members and no others::

    manifest.json                   {"format", "written_by": {"version", "commit"}, "created", "runs": [ids]}
    runs/ID/run.json                the run, as :class:`pinscope.records.run.Run` writes it
    runs/ID/observations.jsonl      one observation a line, in the order in which they were measured
    runs/ID/attachments/NAME/NUMBER.parquet   a part of a table that it carries

Its format is the newest one among its runs, so an older PinScope reads what it can know.
Floats are written with the shortest digits that give back the same value, so they come back bit by bit.
"""

from __future__ import annotations

import io
import json
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Annotated, Any, BinaryIO, Self, Unpack

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import pinscope
from pinscope.errors import BadBundle, BadInput, InvalidParameter
from pinscope.probes.environment import source_commit
from pinscope.records import base
from pinscope.records.base import BUNDLE_PARTS, Moment
from pinscope.records.labels import LABELS
from pinscope.records.run import FORMAT, Attachment, Run, parse_run
from pinscope.store.attachments import Parts, no_parts, read_part, too_much_attached
from pinscope.store.choice import ORDERS, Wanted, fits
from pinscope.store.documents import (
    ANY_ROW,
    RowSource,
    RunWithRows,
    StoredRow,
    checked,
    dump_json,
    first_complaint,
    storable,
)
from pinscope.store.new_file import check_new, new_file

PARTS_FOLDER = "/attachments/"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Member times carry nothing: equal runs make equal members."""


class WrittenBy(BaseModel):
    """Which PinScope wrote a bundle."""

    version: str
    commit: str | None


class Manifest(BaseModel):
    """What a bundle says of itself."""

    model_config = ConfigDict(extra="ignore")  # additive fields keep the format

    format: Annotated[int, Field(ge=1, strict=True)]
    written_by: WrittenBy
    created: Moment
    runs: Annotated[list[str], Field(max_length=base.BUNDLE_RUNS)]
    attachments: dict[str, dict[str, Annotated[int, Field(ge=0, le=BUNDLE_PARTS)]]] = {}
    """Run → attachment → number of its parts."""


@cache
def this_version() -> WrittenBy:
    """The PinScope that runs now."""
    return WrittenBy(version=pinscope.__version__, commit=source_commit().value)


def member_info(name: str) -> zipfile.ZipInfo:
    """How a member of that name is written."""
    info = zipfile.ZipInfo(name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def run_member(run_id: str) -> str:
    """The run."""
    return f"runs/{run_id}/run.json"


def rows_member(run_id: str) -> str:
    """Its observations."""
    return f"runs/{run_id}/observations.jsonl"


def part_member(run_id: str, name: str, number: int) -> str:
    """A part of one of its attachments."""
    return f"runs/{run_id}{PARTS_FOLDER}{name}/{number:06}.parquet"


SUFFIX = ".pinscope"
_COMPRESSIONS = frozenset({zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED})
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, OverflowError, MemoryError)
"""What zipfile raises on damaged archives (RuntimeError, for one, where a flipped bit says encrypted)."""
_CHUNK_BYTES = 2**16
_TEXT_BYTES = 2**21


def check_output(path: Path) -> None:
    """Refuse a file that could not be written as a bundle at the end, before anything begins.

    Raises:
        PathExists: something of that name is there.
        BadInput: it is no name for a bundle, or there is no such folder, or it may not be written to.
    """
    if path.suffix.lower() != SUFFIX:
        raise BadInput(f"{path}: a bundle's name must end in {SUFFIX}; 'pinscope report' writes other formats")
    check_new(path)


def write_bundle(path: Path | str, items: Sequence[RunWithRows], parts: Parts = no_parts) -> None:
    """Write runs with their observations to one new file, all or nothing.

    Args:
        path: the file.
        items: the runs with their observations.
        parts: gives the parts of their attachments.

    Raises:
        PathExists: there is such a file.
        BadInput: no runs, the same run twice, more than a bundle holds, or no such folder.
        PinScopeError: the file could not be written.
    """
    with new_file(Path(path)) as file:
        _pack(file, items, parts)


def render_bundle(items: Sequence[RunWithRows], parts: Parts = no_parts) -> bytes:
    """The bundle as bytes, for a download.

    Raises:
        BadInput: no runs, the same run twice, or more than a bundle holds.
    """
    packed = io.BytesIO()
    _pack(packed, items, parts)
    return packed.getvalue()


def _pack(file: BinaryIO, items: Sequence[RunWithRows], parts: Parts) -> None:
    """Write the archive, an observation, and a part of an attachment, at a time."""
    ids = [run.id for run, _ in items]
    if not ids:
        raise BadInput("a bundle needs at least one run")
    if len(ids) > base.BUNDLE_RUNS or len(set(ids)) < len(ids):
        raise BadInput(f"a bundle holds each run once, and at most {base.BUNDLE_RUNS} of them")
    attached = [attachment for run, _ in items for attachment in run.attachments]
    if much := too_much_attached(attached):
        raise BadInput(f"these runs carry {much}, the most that one bundle holds; export fewer at once")
    if (total := sum(len(rows) for _, rows in items)) > base.BUNDLE_ROWS:
        raise BadInput(
            f"{total:,} observations are more than one bundle holds ({base.BUNDLE_ROWS:,}); "
            "export fewer runs at once, or write a report in .csv, .parquet or .json"
        )
    manifest = Manifest(
        format=max(run.format for run, _ in items),
        attachments={run.id: run.parts for run, _ in items if run.attachments},
        written_by=this_version(),
        created=datetime.now(UTC),
        runs=ids,
    )
    unpacked = 0
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member_info("manifest.json"), manifest.model_dump_json(exclude_defaults=True))
        for run, rows in items:
            stored = storable(run).model_copy(update={"recording": False, "observations": len(rows)})
            text = dump_json(stored.model_dump(mode="json"))
            archive.writestr(member_info(run_member(run.id)), text)
            unpacked += len(text)
            with archive.open(member_info(rows_member(run.id)), "w") as file_of_rows:
                for row in checked(rows):
                    unpacked += file_of_rows.write(f"{dump_json(row)}\n".encode())  # the text is ASCII
                    if unpacked > base.BUNDLE_BYTES:
                        raise BadInput(
                            f"these runs are more than one bundle holds ({base.BUNDLE_BYTES >> 20} MiB); "
                            "export fewer at once"
                        )
            for attachment in run.attachments:
                for number, content in enumerate(parts(run, attachment)):
                    archive.writestr(member_info(part_member(run.id, attachment.name, number)), content)


def read_bundle(path: Path | str) -> list[tuple[Run, list[StoredRow]]]:
    """The runs of a bundle, each with its observations, all in memory. Errors as for :func:`open_bundle`."""
    with open_bundle(path) as bundle:
        return [(run, list(rows)) for run, rows in bundle.items()]


@contextmanager
def open_bundle(path: Path | str, whole: bool = True) -> Iterator[BundleReader]:
    """The bundle, checked whole; where not, what is wrong with a part is said when that is read.

    Raises:
        BadBundle: no such file, not a bundle, damaged, of a newer format, or too large.
    """
    try:
        if not stat.S_ISREG(Path(path).stat().st_mode):  # a device or a pipe may never end
            raise BadBundle(f"{path} is not a file")
        file = Path(path).open("rb")  # noqa: SIM115 - closed below; what the caller raises is not the bundle's
    except (OSError, ValueError) as error:
        raise BadBundle(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    with file, BundleReader(file, str(path)) as bundle:
        if whole:
            bundle.check()
        yield bundle


class BundleReader:
    """An open bundle: its runs and their observations, each read when it is asked for.

    Args:
        file: the archive, seekable.
        name: used in messages only.

    Raises:
        BadBundle: whatever is wrong, in one line. Every method and iterator may raise it.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._name, self._file = name, file
        with self._damage_reported():
            file.seek(0)
            if file.read(2) != b"PK":
                raise BadBundle(f"{name} is not a PinScope bundle")
            self._archive = zipfile.ZipFile(file)
        try:
            self.manifest = self._read_manifest()
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

    def runs(self) -> Iterator[Run]:
        """The runs, in the order of the manifest."""
        return map(self._read_run, self.manifest.runs)

    def each_run(self, **wanted: Unpack[Wanted]) -> list[Run]:
        """Those that match, the newest first."""
        return sorted((run for run in self.runs() if fits(run, wanted)), key=ORDERS["newest"])

    def observations(self, run_id: str) -> BundleRows:
        """The observations of one of the bundle's runs."""
        return BundleRows(self, self._read_run(run_id))

    def items(self) -> Iterator[tuple[Run, BundleRows]]:
        """Each run with its observations; all but these is checked."""
        total, attached = 0, list[Attachment]()
        for run in self.runs():
            total += run.observations
            if total > base.BUNDLE_ROWS:
                raise self._too_much(f"it has more than {base.BUNDLE_ROWS:,} observations")
            attached += run.attachments
            if much := too_much_attached(attached):
                raise self._too_much(f"it has {much}")
            for attachment in run.attachments:
                self._check_parts(run, attachment)
            yield run, BundleRows(self, run)

    def check(self) -> None:
        """Read everything once: afterwards nothing of it is refused."""
        for _, rows in self.items():
            for _ in rows:
                pass

    def _check_parts(self, run: Run, attachment: Attachment) -> None:
        rows = size = 0
        for content in self.parts(run, attachment):
            try:
                rows += read_part(content).num_rows
            except InvalidParameter as error:
                raise self._bad(f"a part of {attachment.name} of run {run.id}: {error}") from None
            size += len(content)
        if (rows, size) != (attachment.rows, attachment.bytes):
            raise self._bad(f"{attachment.name} of run {run.id} is not as long as the run says")

    def parts(self, run: Run, attachment: Attachment) -> Iterator[bytes]:
        """The parts of an attachment of one of the bundle's runs, as they are."""
        for number in range(attachment.parts):
            yield self._read(part_member(run.id, attachment.name, number), base.PART_BYTES)

    def each_row(self, run: Run) -> Iterator[StoredRow]:
        """The observations of a run, checked."""
        name = rows_member(run.id)
        count, fields = 0, set[str]()
        try:
            for count, row in enumerate(checked(map(ANY_ROW.validate_json, self._lines(name))), start=1):
                if count > run.observations:
                    break
                fields.update(row)
                if len(fields) > base.FIELD_NAMES:
                    raise self._too_much(f"{name}: its observations have more than {base.FIELD_NAMES} different fields")
                yield row
        except ValidationError as error:
            raise self._bad(f"{name}: {first_complaint(error)}") from None
        except InvalidParameter as error:
            raise self._bad(f"{name}: {error}") from None
        if count != run.observations:
            there = f"there are {'more' if count > run.observations else count}"
            raise self._bad(f"run {run.id} should have {run.observations} observations, {there}")

    def row_lines(self, run: Run) -> Iterator[bytes]:
        """The observations of a run as JSON, unchecked, whole lines, some thousands at a time."""
        with self._damage_reported(), self._archive.open(rows_member(run.id)) as packed:
            while text := packed.read(_TEXT_BYTES):
                yield text + packed.readline(base.ROW_BYTES)

    def deflated_rows(self, run: Run) -> bytes | None:
        """The same, as it lies in the file, once it was read; ``None`` where it is not deflated."""
        member = self._archive.getinfo(rows_member(run.id))
        if member.compress_type != zipfile.ZIP_DEFLATED or member.compress_size > member.file_size:
            return None
        with self._damage_reported():
            self._file.seek(member.header_offset + 26)
            name, extra = struct.unpack("<2H", self._file.read(4))
            self._file.seek(name + extra, io.SEEK_CUR)
            return self._file.read(member.compress_size)

    def _lines(self, name: str) -> Iterator[bytes]:
        """The lines of a member."""
        with self._damage_reported(), self._archive.open(name) as packed:
            member = io.BufferedReader(packed, _CHUNK_BYTES)  # type: ignore[type-var]  # typeshed calls it IO
            while line := member.readline(base.ROW_BYTES + 1):
                if len(line) > base.ROW_BYTES and not line.endswith(b"\n"):
                    raise self._too_much(f"{name}: a line of it is longer than {base.ROW_BYTES >> 10} KiB")
                yield line.removesuffix(b"\n")

    def _read_manifest(self) -> Manifest:
        members = self._archive.infolist()
        if "manifest.json" not in self._archive.NameToInfo:
            raise BadBundle(f"{self._name} is not a PinScope bundle: it has no manifest.json")
        if any(member.compress_type not in _COMPRESSIONS for member in members):
            raise self._bad("a member is compressed in a way that bundles are not")
        parts = [member for member in members if PARTS_FOLDER in member.filename]
        others = [member for member in members if PARTS_FOLDER not in member.filename]
        for some, most in ((others, base.BUNDLE_BYTES), (parts, base.BUNDLE_PART_BYTES)):
            if sum(member.file_size for member in some) > most:
                raise self._too_much(f"it unpacks to more than {most >> 20} MiB")
        text = self._read("manifest.json", base.MANIFEST_BYTES)
        try:
            # First, because a newer format may look different everywhere but here.
            self._check_version(ANY_ROW.validate_json(text).get("format"), self._name, "bundle format")
            manifest = Manifest.model_validate_json(text)
        except ValidationError as error:
            raise self._bad(f"manifest.json: {first_complaint(error)}") from None
        expected = ["manifest.json"]
        for run_id in manifest.runs:
            expected += [run_member(run_id), rows_member(run_id)]
        named = [(run_id, *part) for run_id, parts_of in manifest.attachments.items() for part in parts_of.items()]
        if sum(count for *_, count in named) == len(parts):  # else they would be too many to name
            expected += [part_member(run_id, name, number) for run_id, name, count in named for number in range(count)]
        if len(set(expected)) < len(expected) or sorted(self._archive.namelist()) != sorted(expected):
            raise self._bad("its members are not those that the manifest names")
        return manifest

    def _check_version(self, version: Any, what: str, name: str) -> None:
        if isinstance(version, int) and version > FORMAT:
            raise BadBundle(
                f"{what} has {name} {str(version)[:20]}; PinScope {pinscope.__version__} reads formats up to {FORMAT}: "
                "update PinScope"
            )

    def _read_run(self, run_id: str) -> Run:
        name = run_member(run_id)
        try:
            fields = ANY_ROW.validate_json(self._read(name, base.RUN_BYTES))
            self._check_version(fields.get("format", 1), f"{self._name}: run {run_id}", "format")
            run = storable(parse_run(fields))
        except ValidationError as error:
            raise self._bad(f"{name}: {first_complaint(error)}") from None
        except InvalidParameter as error:
            raise self._bad(str(error)) from None
        if run.id != run_id:
            raise self._bad(f"{name} holds run {run.id}")
        if run.parts != self.manifest.attachments.get(run_id, {}):
            raise self._bad(f"run {run.id} has other attachments than the manifest says")
        return run

    def _read(self, name: str, most: int) -> bytes:
        size = self._archive.getinfo(name).file_size
        if size > most:
            raise self._too_much(f"{name[:150]} is {size >> 10:,} KiB; at most {most >> 10:,} KiB are allowed")
        with self._damage_reported(), self._archive.open(name) as member:
            # Not read(): without a number it unpacks all there is before it looks at the length that was promised.
            return member.read(size)  # checks the CRC

    @contextmanager
    def _damage_reported(self) -> Iterator[None]:
        try:
            yield
        except BadBundle:
            raise
        except _ZIP_ERRORS as error:
            why = " ".join(str(error).split())[:100]
            raise self._bad(why or type(error).__name__) from None

    def _too_much(self, why: str) -> BadBundle:
        return BadBundle(f"{self._name} exceeds what a bundle may hold: {why}")

    def _bad(self, why: str) -> BadBundle:
        return BadBundle(f"{self._name} is a damaged bundle: {why}")


class BundleRows:
    """The observations of a run in an open bundle: read from its file each time."""

    def __init__(self, bundle: BundleReader, run: Run) -> None:
        self._bundle = bundle
        self._run = run

    def __len__(self) -> int:
        return self._run.observations

    def __iter__(self) -> Iterator[StoredRow]:
        return self._bundle.each_row(self._run)

    def lines(self) -> Iterator[bytes]:
        """Their JSON, unchecked, whole lines, some thousands at a time."""
        return self._bundle.row_lines(self._run)

    def deflated(self) -> bytes | None:
        """All these lines as the bundle has them compressed; ``None`` where they are not."""
        return self._bundle.deflated_rows(self._run)


_ORIGIN = frozenset({"kind", "id", "experiment", "lab", "device", "quick", "params", "created_at"})
"""Fields that tell one run from another: set when it starts, never changed."""


def as_imported(run: Run, rows: RowSource) -> Run:
    """A run from elsewhere: nothing here works on it any more."""
    changes: dict[str, Any] = {"recording": False, "observations": len(rows)}
    if run.status == "running":
        note = "It was still running when it was exported."
        changes |= {"status": "interrupted", "process": None, "notes": (*run.notes, note)}
    return run.model_copy(update=changes)


def knows_all(stored: Run, here: RowSource, incoming: Run, rows: RowSource, has_ended: bool) -> bool:
    """Whether a run that is here already has nothing to learn from the bundle."""
    if _facts(stored) == _facts(incoming) or (stored.status == "cancelled" and _is_same_run(stored, incoming)):
        return len(here) == len(rows) and _begin_alike(here, rows, len(rows))
    # The bundle was exported while the run went on.
    return not has_ended and _is_same_run(stored, incoming) and _begin_alike(here, rows, len(rows))


def is_completed_by(stored: Run, here: RowSource, incoming: Run, rows: RowSource) -> bool:
    """Whether the bundle knows how a run went on that is here already."""
    is_open = not stored.recording and stored.status in ("interrupted", "cancelled")
    return is_open and _is_same_run(stored, incoming) and _begin_alike(here, rows, len(here))


def _is_same_run(stored: Run, incoming: Run) -> bool:
    return _facts(stored, only=_ORIGIN) == _facts(incoming, only=_ORIGIN)


def _facts(run: Run, only: frozenset[str] | None = None) -> str:
    """What a run says of itself, comparable as text. Its verdict depends on the version that read it, its labels on its
    user."""
    derived = {"recording", "verdict", "figure", "figures", *LABELS}
    return dump_json(run.model_dump(mode="json", include=only, exclude=derived))  # type: ignore[arg-type]


def _begin_alike(here: RowSource, rows: RowSource, count: int) -> bool:
    """Whether both have so many observations at least, and the first so many are the same."""
    if min(len(here), len(rows)) < count:
        return False
    pairs = zip(islice(here, count), islice(rows, count), strict=True)
    return all(own == other or _canonical(own) == _canonical(other) for own, other in pairs)


def _canonical(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)
