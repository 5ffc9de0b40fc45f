"""Stored runs without who and where: users, the host, folders and command lines have pseudonyms or are left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, overload

from pinscope.analysis.read_rows import Attached
from pinscope.records.environment import Environment
from pinscope.records.labels import LABELS
from pinscope.records.run import Attachment, Run, TimelineRun, TraceRun, parse_run
from pinscope.store.attachments import attached_by, encode_part, read_part
from pinscope.store.documents import RUN_ID_LENGTH, StoredRow
from pinscope.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

_DIGITS = 12
_CONSTANT = b"pinscope anonymous"
LEFT_OUT = "…"
"""Stands for arguments and folders."""
_PUBLIC_USERS = frozenset({"root", "nobody"})
"""They are nobody's name, and findings speak of root."""
_SAYS_SOMETHING = re.compile(r"(?=.*[^\W\d]).{3,}", re.DOTALL)
"""A name that may be looked for in texts: a number, such as that of a user without a name, may be anything there."""
_LABEL = re.compile(r"[a-z0-9_+-]*")
"""A word of PinScope's own, such as ``pinned`` or ``h2d``: no text, whatever a user or a host is called."""
_FRAME = re.compile(r"(.*?) \((.*):(\d+)\)")
_GPU = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}")
_HOME = re.compile(r"(?:/(?:home|Users)/|(?<![\w/~])~)(?P<user>[A-Za-z_][^/\s'\":]*)")
_KERNELS = r"(?!proc/|sys/(?!fs/cgroup/)|dev/(?!shm/))"
"""Paths that are the same on every host."""
_IN_A_FOLDER = r"[^\s/'\"<>|,;()\[\]{}]++"
_FOLDERS = re.compile(
    rf"(?:(?<![\w./~])(?:~[\w.-]*+)?|(?<=//))/{_KERNELS}(?:{_IN_A_FOLDER}(?: (?!~){_IN_A_FOLDER}){{0,2}}+/)++"
)
"""Of an absolute path. A name in it may have blanks; an address such as ``https://…`` is none."""
_QUOTED_FOLDERS = re.compile(rf"(?<=['\"])(?:~[\w.-]*+)?/{_KERNELS}[^'\"\n]*/(?=[^'\"/\n]*['\"])")


def users_in(text: str) -> set[str]:
    """Users whose home folders a text names."""
    return {home["user"] for home in _HOME.finditer(text)}


class Pseudonyms:
    """A name on one machine always gets the same pseudonym, in every file.

    They are hashes, with the machine's id as their key: who does not have that cannot find a name by guessing.

    Args:
        environment: of the run.
        users: names of users that its observations hold.
    """

    def __init__(self, environment: Environment, users: Iterable[str]) -> None:
        self._key = environment.machine_id.encode()[:64]
        self.machine_id = blake2b(self._key, key=_CONSTANT, digest_size=8).hexdigest()
        self.host = f"machine-{self.machine_id[:8]}"
        known = {environment.machine_id: self.machine_id}
        known |= dict.fromkeys((environment.host, environment.host.partition(".")[0]), self.host)
        known |= {user: self.user(user) for user in users if user not in _PUBLIC_USERS}
        self._known = {name: word for name, word in known.items() if _SAYS_SOMETHING.fullmatch(name)}
        longest_first = sorted(map(re.escape, self._known), key=len, reverse=True)
        self._names = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)") if longest_first else None

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value of a run or an observation without names; ``key``: of the field whose value it is."""
        if isinstance(value, Mapping):
            return {name: self.value(held, name) for name, held in value.items()}
        if key == "program" and isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return self.command(value)
        if isinstance(value, list | tuple):
            return [self.value(item, key) for item in value]
        if not isinstance(value, str) or not value:
            return value
        if rule := _RULES.get(key):
            return rule(self, value)
        return value if _LABEL.fullmatch(value) and key not in _FREE else self.text(value)

    def text(self, text: str) -> str:
        """Of paths the last names stay, of the names that are known none."""
        text = _GPU.sub(lambda gpu: self.gpu(gpu[0]), text)
        text = _HOME.sub(lambda home: home[0].removesuffix(home["user"]) + self.user(home["user"]), text)
        for folders in (_QUOTED_FOLDERS, _FOLDERS):
            text = folders.sub(f"{LEFT_OUT}/", text)
        return self._names.sub(lambda name: self._known[name[0]], text) if self._names else text

    def user(self, name: str) -> str:
        """Of a user, who is another one on another machine."""
        return name if name in _PUBLIC_USERS else f"user-{self._hash(name)[:6]}"

    def gpu(self, uuid: str) -> str:
        """Of a GPU."""
        return f"GPU-{self._hash(uuid)}"

    def container(self, name: str) -> str:
        """The engine stays."""
        engine, separator, name = name.partition(" ")
        return f"{engine} {self._hash(name)}" if separator else self._hash(engine)

    def file(self, path: str) -> str:
        """The last name stays; files of the same name in different folders stay different."""
        folder, separator, last = path.rpartition("/")
        return f"{self._hash(folder)[:6]}/{last}" if separator else path

    def stack(self, frames: str) -> str:
        """``FUNCTION (FILE:LINE)``, one a line."""
        return "\n".join(
            f"{frame[1]} ({self.file(frame[2])}:{frame[3]})" if (frame := _FRAME.fullmatch(line)) else self.text(line)
            for line in frames.split("\n")
        )

    def file_and_line(self, place: str) -> str:
        """``FILE:LINE``."""
        file, _, line = place.rpartition(":")
        return f"{self.file(file)}:{line}" if line.isdigit() else self.text(place)

    def command(self, words: Iterable[str]) -> list[str]:
        """The program's last name stays, of ``-m MODULE`` that of the module."""
        first, *rest = words
        if first == "-m" and rest:
            named, rest = [first, rest[0].rpartition(".")[2]], rest[1:]
        else:
            named = [] if first.startswith("-") else [PurePath(first).name]
            rest = rest if named else [first, *rest]
        return [*named, *([LEFT_OUT] if rest else [])]

    def _hash(self, text: str) -> str:
        return blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=_DIGITS // 2).hexdigest()


_RULES: Mapping[str, Callable[[Pseudonyms, str], str]] = {
    "host": lambda names, _: names.host,
    "machine_id": lambda names, _: names.machine_id,
    "uuid": Pseudonyms.gpu,
    "user": Pseudonyms.user,
    "container": Pseudonyms.container,
    "file": Pseudonyms.file,
    "copy_file": Pseudonyms.file,
    "stack": Pseudonyms.stack,
    "what_if": Pseudonyms.file_and_line,
    "waits": Pseudonyms.file_and_line,
    "python": lambda _, path: path.rpartition("/")[2],
    "cupti": lambda _, path: path.rpartition("/")[2],
}
"""Field → what stands for its value, or for each of a list of them."""
_FREE = frozenset({"name", "function", "ranges", "part", "reason", "error", "output"})
"""Fields whose value may be one word that somebody else chose."""


SUFFIX = "-anonymous"
"""Of the id of such a run: a database may hold it beside the run itself."""
ANONYMOUS = (
    "Leave out who and where: users, host, machine and GPUs have pseudonyms; folders, containers, the arguments of "
    "commands, and the run's name, tags and note go."
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
        fields = names.value(source.model_dump(mode="json", exclude={"process", "attachments", *LABELS}))
        run = parse_run({**fields, "id": source.id[: RUN_ID_LENGTH - len(SUFFIX)] + SUFFIX})
        self._sources[run.id] = source, names
        attachments = tuple(
            attachment.model_copy(update={"bytes": sum(map(len, self.parts(run, attachment)))})  # without names
            for attachment in source.attachments
        )
        return run.model_copy(update={"attachments": attachments})

    def observations(self, run_id: str) -> Sequence[StoredRow]:
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
        return attached_by(run, self.parts)

    def _users(self, run: Run) -> set[str]:
        """Names of users that the texts of a run may repeat."""
        users = users_in(run.model_dump_json())
        if isinstance(run, TimelineRun | TraceRun):  # observations of others have neither users nor files
            for row in self._store.observations(run.id):
                users |= {str(row["user"])} if row.get("user") else users_in(str(row.get("file", "")))
        return users


class AnonymousRows(Sequence[StoredRow]):
    """Observations without names, each made when it is asked for."""

    def __init__(self, rows: Sequence[StoredRow], names: Pseudonyms) -> None:
        self._rows = rows
        self._names = names

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[StoredRow]:
        return map(self._names.value, self._rows)

    @overload
    def __getitem__(self, place: int) -> StoredRow: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StoredRow]: ...
    def __getitem__(self, place: int | slice) -> StoredRow | Sequence[StoredRow]:
        if isinstance(place, slice):
            return AnonymousRows(self._rows[place], self._names)
        row: StoredRow = self._names.value(self._rows[place])
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
