"""Text that PinScope did not write (names of processes and files, parameters, other programs' errors) made fit to show
or to keep.

Everything of the kind passes one of these functions on its way to a terminal, a page or a report. Secrets that people
write into command lines and source code are masked before they are stored: the name beside a value decides
(``--hf-token=…``), and what is masked once stays as it is when it is masked again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

MOST_QUOTED = 60
"""Characters of a refused value that a message repeats."""
MOST_IN_A_LINE = 600
"""Characters of one line of error."""
MOST_OF_ANOTHER = 200
"""Characters of another library's error, which repeats values whole."""
_LONG_WORD = re.compile(r"(\S{100})\S{50,}")
"""No name or path that somebody would read."""
_INVISIBLE = re.compile(
    "["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters steer a terminal; tab and line feed are kept
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # order of writing (UAX 9): what is read is not what is there
    r"\u2028\u2029"  # break a line
    r"\ud800-\udfff"  # halves of a character: bytes that were no text
    # The rest takes no room (Default_Ignorable_Code_Point of DerivedCoreProperties.txt, Unicode 16; annotations).
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


def visible(text: str) -> str:
    """``text`` without signs that steer a terminal, turn the order of what follows, or cannot be seen."""
    return _INVISIBLE.sub("", text)


def encodable(text: str) -> str:
    """``text`` with a question mark for each part that UTF-8 cannot carry: a byte of a file name that is no text."""
    return text.encode("utf-8", "replace").decode()


def escaped(text: str) -> str:
    r"""JSON text in which those signs stand as ``\uXXXX``: it means the same, and is safe to look at."""
    return _INVISIBLE.sub(_escape, text)


def _escape(sign: re.Match[str]) -> str:
    units = sign[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def one_line(text: str) -> str:
    """``text`` on one line, and only what is visible of it."""
    return " ".join(visible(text).split())


def shortened(text: str, most: int | None) -> str:
    """The text in so many characters, where there is a limit: what was cut off is three dots."""
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def first_of(names: Sequence[str], most: int = 3) -> str:
    """The first of these names, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def sentence(text: str) -> str:
    """``text`` as a sentence of its own: a capital first, a full stop last."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def error_line(text: str, most: int = MOST_IN_A_LINE) -> str:
    """``text`` as one line of error: of a longer one the beginning and the end, where it says what is allowed."""
    line = _LONG_WORD.sub(r"\1…", one_line(text))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-most // 3 :]}"


def quoted(value: object) -> str:
    """A refused value as a message repeats it: in quotes if it is text, strange signs as escapes, cut where long."""
    if isinstance(value, int) and value.bit_length() > 4 * MOST_QUOTED:  # Python writes at most 4,300 digits
        return "a number of very many digits"
    whole = repr(value[: MOST_QUOTED + 1] if isinstance(value, str) else value)
    if len(whole) <= MOST_QUOTED + 2 and not (isinstance(value, str) and len(value) > MOST_QUOTED):
        return whole
    length = f" ({len(value):,} characters)" if isinstance(value, str) else ""
    return f"{whole[: MOST_QUOTED + 1]}…{whole[0] if length else ''}{length}"


MASK = "***"
"""Stands for the value."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""Of a name: ``hf-token``, ``HF_TOKEN`` and ``hfToken`` have two."""
_SECRET = re.compile(
    r"\w*(?:passwords?|passwd|passphrase|secrets?|credentials?|authorization|(?:api|access|private|secret)key)|pwd"
)
"""A word that means a secret wherever it stands in a name."""
_OF_KEYS = re.compile("api|access|private|signing|encryption|account|auth|license")
"""Words before ``key`` that make it secret. What is called ``key`` alone is mostly a place in a dictionary."""
_AT_THE_END = re.compile(r"\w*token|o?auth|bearer")
"""A word that means a secret only as the last of a name: ``token_type_ids`` and ``auth-mode`` are none."""
_COUNTED = re.compile(
    "max|min|num|n|per|to|by|first|last|next|prev|previous|bos|eos|pad|unk|mask|sep|cls|start|end|stop|begin|newline|"
    "special|image|audio|video"
)
"""Words before ``token`` in the names of what language models count or mark."""
_ABOUT = re.compile(
    "file|path|dir|folder|name|type|length|len|size|count|limit|bits|timeout|policy|mode|method|provider|endpoint|url|"
    "uri|helper|stdin|prompt"
)
"""Words at the end that say something about a secret and not the secret itself."""

_HINTS = ("token", "secret", "passw", "passphrase", "pwd", "key", "credential", "auth", "bearer", "://")
"""Without one of these in it a text has nothing to mask."""


@dataclass(frozen=True)
class _Form:
    """How a name and its value are written.

    Attributes:
        before: all up to the value, with the name; of an address, whose value has none, the user.
        value: the value that follows; ``None``: text, up to the quote that it began with.
    """

    before: re.Pattern[str]
    value: re.Pattern[str] | None


_NAME = r"(?<![\w.])(?<![\w.]-)(?P<name>[A-Za-z_][\w.-]*+)"
_QUOTE = r"\\?[\"']"
_QUOTED = _Form(
    re.compile(
        rf"{_NAME}(?:(?:{_QUOTE})?\s*+\]?\s*+(?:={{1,2}}|:)|\s*+:\s*+\w++\s*+=|{_QUOTE}\s*+,)"
        r"\s*+[rbfRBF]{0,2}(?P<quote>\\?(?:\"{3}|'{3}|[\"']))"
    ),
    None,
)
"""``name="…"``, ``name: str = "…"``, ``["name"] = "…"``, ``"name": "…"`` and ``"name", "…"``."""
_PLAIN = _Form(re.compile(rf"{_NAME}=(?![rbfRBF]{{0,2}}{_QUOTE})"), re.compile(r"[^\s\"'&]++"))
_OPTION = _Form(
    re.compile(r"(?<!\S)--?(?P<name>[A-Za-z_][\w.-]*+)\s++(?!-)"), re.compile(r"\"[^\"]*+\"?|'[^']*+'?|\S*[^\s\"')]")
)
_HEADER = _Form(
    re.compile(
        r"(?<![\w-])(?P<name>(?:proxy-)?authorization|x-[a-z-]++):\s*+(?:(?:bearer|basic|token)\s++)?", re.IGNORECASE
    ),
    re.compile(r"[^\s\"']++"),
)
_IN_ADDRESS = _Form(
    re.compile(r"(?<![\w+.-])(?P<user>[A-Za-z][\w+.-]*+://[^\s/@:\"']*+:)"), re.compile(r"[^\s/\"']+(?=@)")
)
_WHOLE_WORD = _Form(re.compile(r"\A[-+~]{0,2}(?P<name>[A-Za-z_][\w.-]*+)="), re.compile(r".+", re.DOTALL))
_OPTION_ALONE = re.compile(r"--?(?P<name>[A-Za-z_][\w.-]*+)")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether what is called so is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[0] in ("no", "without") or _ABOUT.fullmatch(words[-1]):
        return False
    if any(_SECRET.fullmatch(word) for word in words):
        return True
    if any(after == "key" and _OF_KEYS.fullmatch(before) for before, after in pairwise(words)):
        return True
    return _AT_THE_END.fullmatch(words[-1]) is not None and not any(map(_COUNTED.fullmatch, words))


def mask_text(text: str) -> str:
    """A text that may hold a command or its options: ``--token abc``, ``HF_TOKEN=abc``, ``https://me:abc@host``."""
    return _masked(text, (_QUOTED, _PLAIN, _OPTION, _HEADER, _IN_ADDRESS))


def mask_code(line: str) -> str:
    """A line of source code: text in quotes is masked; in ``token=token`` there is no secret."""
    return _masked(line, (_QUOTED, _OPTION, _IN_ADDRESS))


def mask_words(words: Sequence[str]) -> tuple[str, ...]:
    """A command line, a word each: the value may be a word of its own."""
    masked, follows_its_name = [], False
    for word in words:
        if follows_its_name and word and not word.startswith("-"):
            masked.append(MASK)
        else:
            masked.append(mask_text(_with_masks(word, _WHOLE_WORD)))
        option = _OPTION_ALONE.fullmatch(word)
        follows_its_name = option is not None and is_secret_name(option["name"])
    return tuple(masked)


def mask_value(value: Any) -> Any:
    """A JSON value, with the commands and texts in it masked."""
    if isinstance(value, str):
        return mask_text(value)
    if isinstance(value, Mapping):
        return {
            key: MASK if held and isinstance(held, str) and is_secret_name(str(key)) else mask_value(held)
            for key, held in value.items()
        }
    if isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return type(value)(mask_words(value))
        return type(value)(mask_value(item) for item in value)
    return value


def _masked(text: str, forms: Sequence[_Form]) -> str:
    lower = text.lower()
    if any(map(lower.__contains__, _HINTS)):
        for form in forms:
            text = _with_masks(text, form)
    return text


def _with_masks(text: str, form: _Form) -> str:
    """The text with a mask for each value whose name is that of a secret; another value may hold names itself."""
    pieces, copied, place = list[str](), 0, 0
    while named := form.before.search(text, place):
        place = named.end(1)
        if named.lastgroup == "user" or is_secret_name(named["name"]):
            value = (form.value or _up_to(named["quote"])).match(text, named.end())
            if value and not (named[1].lower() == "pwd" and value[0].startswith("/")):  # that is the working folder
                pieces += text[copied : value.start()], MASK
                copied = place = value.end()
    return "".join([*pieces, text[copied:]])


@lru_cache(maxsize=16)
def _up_to(quote: str) -> re.Pattern[str]:
    """Text in such quotes; it may be cut before they end."""
    return re.compile(rf"(?:(?!{re.escape(quote)})(?:\\.|.))++", re.DOTALL)
