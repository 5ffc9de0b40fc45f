"""Parts of attachments in the database: written and read one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from sqlalchemy import Connection, insert, select

from pinscope.errors import StoreFailed
from pinscope.records.attachment import Attachment
from pinscope.records.run import Run
from pinscope.store.attachments import Parts
from pinscope.store.tables import PartTable


def insert_part(connection: Connection, run_id: str, name: str, number: int, content: bytes) -> None:
    """Add one part."""
    connection.execute(insert(PartTable).values(run_id=run_id, name=name, sequence=number, content=content))


def insert_parts(connection: Connection, run: Run, parts: Parts, stored: Run | None = None) -> None:
    """Add the parts of a run that are not stored yet."""
    there = {attachment.name: attachment.parts for attachment in stored.attachments} if stored else {}
    for attachment in run.attachments:
        for number, content in enumerate(parts(run, attachment)):
            if number >= there.get(attachment.name, 0):
                insert_part(connection, run.id, attachment.name, number, content)


def stored_parts(
    reading: Callable[[], AbstractContextManager[Connection]], run: Run, attachment: Attachment
) -> Iterator[bytes]:
    """As many parts as the attachment says.

    Raises:
        StoreFailed: one is missing.
    """
    for number in range(attachment.parts):
        query = select(PartTable.content).where(
            PartTable.run_id == run.id, PartTable.name == attachment.name, PartTable.sequence == number
        )
        with reading() as connection:
            content = connection.scalar(query)
        if content is None:
            raise StoreFailed(f"part {number} of {attachment.name} of run {run.id} is missing in the database")
        yield content
