"""Stored runs without who and where: users, the host, folders and command lines have pseudonyms or are left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from pinscope.analysis.attached import Attached
from pinscope.records.run import Attachment, Run, TimelineRun, TraceRun, parse_run
from pinscope.store.attachments import AttachedTable, encode_part, read_part
from pinscope.store.pseudonyms import Pseudonyms, users_in
from pinscope.store.rows import Row
from pinscope.store.store import Store
from pinscope.store.tables import RUN_ID_LENGTH

if TYPE_CHECKING:  # most commands need none of it, and it takes a fifth of a second to import
    import pyarrow as pa

SUFFIX = "-anonymous"
"""Of the id of such a run: a database may hold it beside the run itself."""
ANONYMOUS = (
    "Leave out who and where: users, host, machine and GPUs have pseudonyms; folders, containers and the arguments of "
    "commands go."
)
"""What people choose."""


class AnonymousStore:
    """Reads runs as the store does, and gives them without names. One that is without names already stays as it is.

    Args:
        store: where they are kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sources: dict[str, tuple[Run, Pseudonyms | None]] = {}
        """Id of a run that was given → the run itself."""

    def run(self, run_id: str) -> Run:
        """The run of that id, or of the only id that begins so. Errors as of the store."""
        source = self._store.run(run_id)
        if source.id.endswith(SUFFIX):
            self._sources[source.id] = source, None
            return source
        names = Pseudonyms(source.environment, self._users(source))
        fields = names.value(source.model_dump(mode="json", exclude={"process", "attachments"}))
        run = parse_run({**fields, "id": source.id[: RUN_ID_LENGTH - len(SUFFIX)] + SUFFIX})
        self._sources[run.id] = source, names
        attachments = tuple(self._sized(run, attachment) for attachment in source.attachments)
        return run.model_copy(update={"attachments": attachments})

    def observations(self, run_id: str) -> Sequence[Row]:
        """The rows of a run that :meth:`run` gave, in the order in which they were measured."""
        source, names = self._sources[run_id]
        rows = self._store.observations(source.id)
        return rows if names is None else AnonymousRows(rows, names)

    def parts(self, run: Run, attachment: Attachment) -> Iterator[bytes]:
        """The parts of an attachment of such a run."""
        source, names = self._sources[run.id]
        for content in self._store.parts(source, attachment):
            yield content if names is None else _without_names(content, names)

    def attached(self, run: Run) -> Attached:
        """All attachments of such a run, as readings and charts take them."""
        tables = {
            attachment.name: AttachedTable(attachment.rows, partial(self.parts, run, attachment))
            for attachment in run.attachments
        }
        rows = {name: len(table) for name, table in tables.items()}
        return Attached(rows, lambda name, wanted: tables[name].tables(wanted))

    def _users(self, run: Run) -> set[str]:
        """Names of users that the texts of a run may repeat."""
        users = users_in(run.model_dump_json())
        if isinstance(run, TimelineRun | TraceRun):  # observations of others have neither users nor files
            for row in self._store.observations(run.id):
                users |= {str(row["user"])} if row.get("user") else users_in(str(row.get("file", "")))
        return users

    def _sized(self, run: Run, attachment: Attachment) -> Attachment:
        """With as many bytes as its parts have without names."""
        return attachment.model_copy(update={"bytes": sum(map(len, self.parts(run, attachment)))})


class AnonymousRows(Sequence[Row]):
    """Observations without names, each made when it is asked for."""

    def __init__(self, rows: Sequence[Row], names: Pseudonyms) -> None:
        self._rows = rows
        self._names = names

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return map(self._names.value, self._rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        if isinstance(place, slice):
            return AnonymousRows(self._rows[place], self._names)
        row: Row = self._names.value(self._rows[place])
        return row


def _without_names(content: bytes, names: Pseudonyms) -> bytes:
    """A part of an attachment; the same bytes where its text holds no name."""
    import pyarrow as pa  # noqa: PLC0415

    table, is_changed = read_part(content), False
    for place, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        pieces = [_renamed(piece, field.name, names) for piece in table.column(place).chunks]
        if pieces != table.column(place).chunks:
            table = table.set_column(place, field.name, pa.chunked_array(pieces, field.type))
            is_changed = True
    return encode_part(table) if is_changed else content


def _renamed(column: Any, key: str, names: Pseudonyms) -> pa.DictionaryArray:
    """A column of text, whose words are a few."""
    import pyarrow as pa  # noqa: PLC0415

    words = [word and names.value(word, key) for word in column.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(column.indices, pa.array(words, column.dictionary.type))
