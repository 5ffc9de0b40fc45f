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
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

from pydantic import TypeAdapter, ValidationError

import pinscope
from pinscope.errors import BadBundle, BadInput, InvalidParameter
from pinscope.records import limits
from pinscope.records.run import FORMAT, Attachment, Run, parse_run
from pinscope.store.attachments import Parts, no_parts, read_part, too_much_attached
from pinscope.store.bundle_layout import (
    PARTS_FOLDER,
    Manifest,
    member_info,
    part_member,
    rows_member,
    run_member,
    this_version,
)
from pinscope.store.new_file import AS_UMASK_SAYS, new_file
from pinscope.store.rows import Row, RunWithRows, checked, dump_json, first_complaint, storable

SUFFIX = ".pinscope"
_COMPRESSIONS = frozenset({zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED})
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, OverflowError, MemoryError)
"""What zipfile raises on damaged archives (RuntimeError, for one, where a flipped bit says encrypted)."""
_CHUNK_BYTES = 2**16
_ANY_ROW: TypeAdapter[Row] = TypeAdapter(dict[str, Any])


def write_bundle(
    path: Path | str, items: Sequence[RunWithRows], parts: Parts = no_parts, mode: int = AS_UMASK_SAYS
) -> None:
    """Write runs with their observations to one new file, all or nothing.

    Args:
        path: the file.
        items: the runs with their observations.
        parts: gives the parts of their attachments.
        mode: what may be done with the file, less what the umask takes away.

    Raises:
        PathExists: there is such a file.
        BadInput: no runs, the same run twice, more than a bundle holds, or no such folder.
        PinScopeError: the file could not be written.
    """
    with new_file(Path(path), mode) as file:
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
    if len(ids) > limits.BUNDLE_RUNS or len(set(ids)) < len(ids):
        raise BadInput(f"a bundle holds each run once, and at most {limits.BUNDLE_RUNS} of them")
    attached = [attachment for run, _ in items for attachment in run.attachments]
    if much := too_much_attached(attached):
        raise BadInput(f"these runs carry {much}, the most that one bundle holds; export fewer at once")
    if (total := sum(len(rows) for _, rows in items)) > limits.BUNDLE_ROWS:
        raise BadInput(
            f"{total:,} observations are more than one bundle holds ({limits.BUNDLE_ROWS:,}); "
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
                    if unpacked > limits.BUNDLE_BYTES:
                        raise BadInput(
                            f"these runs are more than one bundle holds ({limits.BUNDLE_BYTES >> 20} MiB); "
                            "export fewer at once"
                        )
            for attachment in run.attachments:
                for number, content in enumerate(parts(run, attachment)):
                    archive.writestr(member_info(part_member(run.id, attachment.name, number)), content)


def read_bundle(path: Path | str) -> list[tuple[Run, list[Row]]]:
    """The runs of a bundle, each with its observations, all in memory. Errors as for :func:`open_bundle`."""
    with open_bundle(path) as bundle:
        return [(run, list(rows)) for run, rows in bundle.items()]


@contextmanager
def open_bundle(path: Path | str) -> Iterator[BundleReader]:
    """The bundle, checked whole.

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
        bundle.check()
        yield bundle


class _BoundedFile(io.BufferedIOBase):
    """A file of which no more than the directory of the largest bundle is read at once.

    zipfile reads the directory of an archive whole, however large the archive says that it is.
    """

    MOST = 4 * 2**20

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int | None = -1) -> bytes:
        """As of a file."""
        content = self._file.read(self.MOST + 1 if size is None or size < 0 else min(size, self.MOST + 1))
        if len(content) > self.MOST:
            raise zipfile.BadZipFile("its directory is larger than that of any bundle")
        return content

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of a file."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """As of a file."""
        return self._file.tell()

    def seekable(self) -> bool:
        """As of a file."""
        return True


class BundleReader:
    """An open bundle: its runs and their observations, each read when it is asked for.

    Args:
        file: the archive, seekable.
        name: used in messages only.

    Raises:
        BadBundle: whatever is wrong, in one line. Every method and iterator may raise it.
    """

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._name = name
        with self._damage_reported():
            file.seek(0)
            if file.read(2) != b"PK":
                raise BadBundle(f"{name} is not a PinScope bundle")
            self._archive = zipfile.ZipFile(_BoundedFile(file))
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

    def rows(self, run: Run) -> BundleRows:
        """The observations of one of the bundle's runs."""
        return BundleRows(self, run)

    def items(self) -> Iterator[tuple[Run, BundleRows]]:
        """Each run with its observations."""
        return ((run, self.rows(run)) for run in self.runs())

    def check(self) -> None:
        """Read everything once: afterwards nothing of it is refused."""
        total, attached = 0, list[Attachment]()
        for run, rows in self.items():
            total += run.observations
            if total > limits.BUNDLE_ROWS:
                raise self._too_much(f"it has more than {limits.BUNDLE_ROWS:,} observations")
            for _ in rows:
                pass
            attached += run.attachments
            if much := too_much_attached(attached):
                raise self._too_much(f"it has {much}")
            for attachment in run.attachments:
                self._check_parts(run, attachment)

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
            yield self._read(part_member(run.id, attachment.name, number), limits.PART_BYTES)

    def each_row(self, run: Run) -> Iterator[Row]:
        """The observations of a run, checked."""
        name = rows_member(run.id)
        count, fields = 0, set[str]()
        try:
            for count, row in enumerate(checked(map(_ANY_ROW.validate_json, self._lines(name))), start=1):
                if count > run.observations:
                    break
                fields.update(row)
                if len(fields) > limits.FIELD_NAMES:
                    raise self._too_much(
                        f"{name}: its observations have more than {limits.FIELD_NAMES} different fields"
                    )
                yield row
        except ValidationError as error:
            raise self._bad(f"{name}: {first_complaint(error)}") from None
        except InvalidParameter as error:
            raise self._bad(f"{name}: {error}") from None
        if count != run.observations:
            there = f"there are {'more' if count > run.observations else count}"
            raise self._bad(f"run {run.id} should have {run.observations} observations, {there}")

    def _lines(self, name: str) -> Iterator[bytes]:
        """The lines of a member."""
        with self._damage_reported(), self._archive.open(name) as packed:
            member = io.BufferedReader(packed, _CHUNK_BYTES)  # type: ignore[type-var]  # typeshed calls it IO
            while line := member.readline(limits.ROW_BYTES + 1):
                if len(line) > limits.ROW_BYTES and not line.endswith(b"\n"):
                    raise self._too_much(f"{name}: a line of it is longer than {limits.ROW_BYTES >> 10} KiB")
                yield line.removesuffix(b"\n")

    def _read_manifest(self) -> Manifest:
        members = self._archive.infolist()
        if "manifest.json" not in self._archive.NameToInfo:
            raise BadBundle(f"{self._name} is not a PinScope bundle: it has no manifest.json")
        if any(member.compress_type not in _COMPRESSIONS for member in members):
            raise self._bad("a member is compressed in a way that bundles are not")
        parts = [member for member in members if PARTS_FOLDER in member.filename]
        others = [member for member in members if PARTS_FOLDER not in member.filename]
        for some, most in ((others, limits.BUNDLE_BYTES), (parts, limits.BUNDLE_PART_BYTES)):
            if sum(member.file_size for member in some) > most:
                raise self._too_much(f"it unpacks to more than {most >> 20} MiB")
        for member in others:
            if member.file_size > max(limits.SMALL_MEMBER_BYTES, limits.BUNDLE_RATIO * member.compress_size):
                raise self._too_much(f"a member unpacks to more than {limits.BUNDLE_RATIO} times its size")
        text = self._read("manifest.json", limits.MANIFEST_BYTES)
        self._check_format(text)
        try:
            manifest = Manifest.model_validate_json(text)
        except ValidationError as error:
            raise self._bad(f"manifest.json: {first_complaint(error)}") from None
        expected = ["manifest.json"]
        for run_id in manifest.runs:
            expected += [run_member(run_id), rows_member(run_id)]
        named = [(run_id, *each) for run_id, parts_of in manifest.attachments.items() for each in parts_of.items()]
        if sum(count for *_, count in named) == len(parts):  # else they would be too many to name
            expected += [part_member(run_id, name, number) for run_id, name, count in named for number in range(count)]
        if len(set(expected)) < len(expected) or sorted(self._archive.namelist()) != sorted(expected):
            raise self._bad("its members are not those that the manifest names")
        return manifest

    def _check_format(self, manifest: bytes) -> None:
        """Before anything else, because a newer format may look different everywhere but here."""
        try:
            found = _ANY_ROW.validate_json(manifest)
        except ValidationError:
            raise self._bad("manifest.json is not JSON") from None
        version, runs = found.get("format"), found.get("runs")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self._bad("manifest.json has no format number")
        self._check_version(version, self._name, "bundle format")
        if isinstance(runs, list) and len(runs) > limits.BUNDLE_RUNS:
            raise self._too_much(f"it names {len(runs):,} runs; a bundle holds at most {limits.BUNDLE_RUNS:,}")

    def _check_version(self, version: Any, what: str, name: str) -> None:
        if isinstance(version, int) and version > FORMAT:
            raise BadBundle(
                f"{what} has {name} {str(version)[:20]}; PinScope {pinscope.__version__} reads formats up to {FORMAT}: "
                "update PinScope"
            )

    def _read_run(self, run_id: str) -> Run:
        name = run_member(run_id)
        try:
            fields = _ANY_ROW.validate_json(self._read(name, limits.RUN_BYTES))
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
        if run.observations > limits.BUNDLE_ROWS:
            raise self._too_much(
                f"run {run.id} has {run.observations:,} observations; a bundle holds at most {limits.BUNDLE_ROWS:,}"
            )
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

    def __iter__(self) -> Iterator[Row]:
        return self._bundle.each_row(self._run)
