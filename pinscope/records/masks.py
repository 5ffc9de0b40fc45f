"""Secrets that people write into command lines and source code. The name beside a value decides: ``--hf-token=…``.

What is masked once stays as it is when it is masked again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

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
    if any(hint in lower for hint in _HINTS):
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
