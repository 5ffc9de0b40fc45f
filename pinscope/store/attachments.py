"""Attachments: tables of many events that a run carries beside its observations, a part of a few megabytes at a time.

Each part is a whole Parquet file, and a row of the database. So a part is there or not, whatever happens to the
process that writes it; deleting, exporting, reading where nothing may be written, and PostgreSQL work as they do for
observations; and no file lies beside the database that could be lost, or outlive its run.

A part from elsewhere must not take more memory than ours. So its pages are not compressed (a bundle compresses the
whole part, and the database's own compression may), its columns are flat, and text is read as a dictionary: each
value stands in memory once, as it does in the part. Then what is decoded is bounded by :data:`PART_ROWS`,
:data:`PART_COLUMNS` and :data:`PART_BYTES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

from pinscope.analysis.read_rows import Attached, EachPart
from pinscope.errors import InvalidParameter
from pinscope.records import base
from pinscope.records.run import Attachment, Run

if TYPE_CHECKING:  # most commands need none of it, and it takes a fifth of a second to import
    import pyarrow as pa
    import pyarrow.parquet as pq

Parts = Callable[[Run, Attachment], Iterator[bytes]]
"""Gives the parts of an attachment of a run, in order; as many as the attachment says."""
_CONTAINER_ITEMS = 10_000
"""Of a list in a part's description: its columns and their pages are fewer."""
_MOST_GROUPS = 16
"""Row groups in a part; PinScope writes one."""
_PHYSICAL = frozenset({"BOOLEAN", "INT32", "INT64", "FLOAT", "DOUBLE", "BYTE_ARRAY"})


def too_much_attached(attachments: Sequence[Attachment]) -> str | None:
    """What these are more than, if they are more than one bundle holds."""
    allowed = {"parts": base.BUNDLE_PARTS, "rows": base.BUNDLE_PART_ROWS, "bytes": base.BUNDLE_PART_BYTES}
    for unit, most in allowed.items():
        if sum(getattr(attachment, unit) for attachment in attachments) > most:
            return f"more than {most:,} {unit} of attachments"
    return None


def no_parts(run: Run, attachment: Attachment) -> Iterator[bytes]:
    """For runs that have no attachments.

    Raises:
        ValueError: this one has.
    """
    raise ValueError(f"the parts of {attachment.name} of run {run.id} were not given")


def with_part(run: Run, name: str, rows: int, size: int) -> Run:
    """The run with one more part of an attachment."""
    had = run.attachment(name) or Attachment(name=name, rows=0, parts=0, bytes=0)
    has = Attachment(name=name, rows=had.rows + rows, parts=had.parts + 1, bytes=had.bytes + size)
    known = {attachment.name: attachment for attachment in (*run.attachments, has)}
    return run.model_copy(update={"attachments": tuple(known.values())})


class AttachmentWriter:
    """Writes one table of a run, batch by batch; what makes a whole part is stored at once.

    Leaving its ``with`` block stores the rest. No more than one part is in memory.

    Args:
        put: stores a part: its number, its content, its rows.
        schema: of the table: flat columns of numbers, times and text.
    """

    def __init__(self, put: Callable[[int, bytes, int], None], schema: pa.Schema) -> None:
        self._put = put
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._parts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Take more rows. Errors as of the store."""
        while batch.num_rows:
            piece = batch.slice(0, base.PART_ROWS - self._rows)
            batch = batch.slice(piece.num_rows)
            self._waiting.append(piece)
            self._rows += piece.num_rows
            if self._rows == base.PART_ROWS:
                self.flush()

    def flush(self) -> None:
        """Store what waits, as a part."""
        if not self._rows:
            return
        import pyarrow as pa  # noqa: PLC0415

        waiting, self._waiting, self._rows = self._waiting, [], 0
        self._store(pa.Table.from_batches(waiting, self._schema))

    def close(self) -> None:
        """Store the rest. A table without rows has one part without rows, which says its columns."""
        self.flush()
        if not self._parts:
            self._store(self._schema.empty_table())

    def _store(self, table: pa.Table) -> None:
        self._put(self._parts, encode_part(table), table.num_rows)
        self._parts += 1


def attached_by(run: Run, parts: Parts) -> Attached:
    """All attachments of a run, as readings and charts take them. Parts that are not wanted are not decoded.

    Args:
        run: the run.
        parts: gives the parts of its attachments.
    """

    def read(name: str, wanted: EachPart) -> Iterator[pa.Table]:
        attachment = run.attachment(name)
        contents = parts(run, attachment) if attachment else ()
        return (read_part(content) for number, content in enumerate(contents) if wanted(number))

    return Attached({attachment.name: attachment.rows for attachment in run.attachments}, read)


def read_part(content: bytes) -> pa.Table:
    """The rows of a part.

    Raises:
        InvalidParameter: it is no Parquet file as this module writes them; it was not decoded, or not whole.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    if len(content) > base.PART_BYTES:
        raise InvalidParameter(f"a part has {len(content):,} bytes; at most {base.PART_BYTES:,} are allowed")
    bounds = {"thrift_string_size_limit": base.PART_BYTES, "thrift_container_size_limit": _CONTAINER_ITEMS}
    try:
        described = pq.ParquetFile(pa.BufferReader(content), **bounds)
        for wrong in _complaints(described, len(content)):
            raise InvalidParameter(wrong)
        text = [field.name for field in described.schema_arrow if not _is_number(field.type)]
        whole = pq.ParquetFile(
            pa.BufferReader(content), metadata=described.metadata, read_dictionary=text, pre_buffer=False, **bounds
        )
        table = whole.read(use_threads=False)
        table.validate(full=True)
    except InvalidParameter:
        raise
    except (pa.ArrowException, OSError, ValueError, TypeError, OverflowError, MemoryError) as error:
        why = " ".join(str(error).split())[:100]
        raise InvalidParameter(f"it cannot be read as Parquet: {why or type(error).__name__}") from None
    return table


def _complaints(file: pq.ParquetFile, length: int) -> Iterator[str]:
    """Why a file of so many bytes is not decoded."""
    described = file.metadata
    if described.num_rows > base.PART_ROWS:
        yield f"{described.num_rows:,} rows; a part has at most {base.PART_ROWS:,}"
    if described.num_columns > base.PART_COLUMNS:
        yield f"{described.num_columns:,} columns; an attachment has at most {base.PART_COLUMNS}"
    if described.num_row_groups > _MOST_GROUPS or b"ARROW:schema" in (described.metadata or {}):
        yield "it is not a part as PinScope writes them"
    groups = [described.row_group(number) for number in range(described.num_row_groups)]
    if any(group.num_rows < 0 for group in groups) or sum(group.num_rows for group in groups) != described.num_rows:
        yield "its row groups have other numbers of rows than it says"
    columns = [(group, group.column(place)) for group in groups for place in range(described.num_columns)]
    for group, column in columns:
        if column.compression != "UNCOMPRESSED":
            yield f"a column is compressed ({column.compression}); those of an attachment are not"
        if column.num_values != group.num_rows or column.total_compressed_size < 0:
            yield "its columns have different numbers of rows"
    if sum(column.total_compressed_size for _, column in columns) > length:  # they share bytes, and each is decoded
        yield "its columns are larger than the file"
    yield from _schema_complaints(file)


def _schema_complaints(file: pq.ParquetFile) -> Iterator[str]:
    for column in map(file.schema.column, range(len(file.schema))):
        if column.max_repetition_level or column.max_definition_level > 1 or column.physical_type not in _PHYSICAL:
            yield f"a column of type {column.physical_type} that is not flat"
    for field in file.schema_arrow:
        if not _is_kept(field.type):
            yield f"a column of type {str(field.type)[:60]}"
    if len({field.name for field in file.schema_arrow}) < file.metadata.num_columns:
        yield "two columns have the same name"


def _is_number(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
    return bool(number or types.is_boolean(kind) or types.is_timestamp(kind))


def _is_kept(kind: pa.DataType) -> bool:
    from pyarrow import types  # noqa: PLC0415

    return _is_number(kind) or bool(types.is_string(kind))


def encode_part(table: pa.Table) -> bytes:
    """A part. Whole numbers are stored as differences, all else as dictionaries where that is shorter."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415
    from pyarrow import types  # noqa: PLC0415

    plain = [
        pa.field(field.name, field.type.value_type if types.is_dictionary(field.type) else field.type)
        for field in table.schema
    ]
    whole = [field.name for field in plain if types.is_integer(field.type) or types.is_timestamp(field.type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table.cast(pa.schema(plain)),
        sink,
        compression="none",
        use_dictionary=[field.name for field in plain if field.name not in whole],
        column_encoding=dict.fromkeys(whole, "DELTA_BINARY_PACKED"),
        store_schema=False,
        row_group_size=base.PART_ROWS,
    )
    return bytes(sink.getvalue().to_pybytes())


def parts_alike(here: Run, those: Parts, incoming: Run, these: Parts, only: Sequence[Attachment]) -> bool:
    """Whether two runs have these attachments, as far as they go, and the same in them."""
    for attachment in only:
        if min(run.parts.get(attachment.name, -1) for run in (here, incoming)) < attachment.parts:
            return False
        both = zip(those(here, attachment), these(incoming, attachment), strict=True)
        if any(own != theirs for own, theirs in both):
            return False
    return True
