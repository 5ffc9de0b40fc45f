"""Secrets that people write into command lines and source code. The name beside a value decides: ``--hf-token=…``.

What is masked once stays as it is when it is masked again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
_OF_KEYS = frozenset({"api", "access", "private", "signing", "encryption", "account", "auth", "license"})
"""Words before ``key`` that make it secret. What is called ``key`` alone is mostly a place in a dictionary."""
_AT_THE_END = re.compile(r"\w*token|o?auth|bearer")
"""A word that means a secret only as the last of a name: ``token_type_ids`` and ``auth-mode`` are none."""
_COUNTED = frozenset({
    "max", "min", "num", "n", "per", "to", "by", "first", "last", "next", "prev", "previous", "bos", "eos", "pad",
    "unk", "mask", "sep", "cls", "start", "end", "stop", "begin", "newline", "special", "image", "audio", "video",
})  # fmt: skip
"""Words before ``token`` in the names of what language models count or mark."""
_ABOUT = frozenset({
    "file", "path", "dir", "folder", "name", "type", "length", "len", "size", "count", "limit", "bits", "timeout",
    "policy", "mode", "method", "provider", "endpoint", "url", "uri", "helper", "stdin", "prompt",
})  # fmt: skip
"""Words at the end that say something about a secret and not the secret itself."""

_HINT = re.compile(r"token|secret|passw|passphrase|pwd|key|credential|auth|bearer|://", re.IGNORECASE)
_NAME = r"(?<![\w.])(?<![\w.]-)(?P<name>[A-Za-z_][\w.-]*+)"
_QUOTE = r"\\?[\"']"
_QUOTED = re.compile(
    rf"{_NAME}"
    rf"(?:(?:{_QUOTE})?\s*+\]?\s*+(?:={{1,2}}|:)|\s*+:\s*+\w++\s*+=|{_QUOTE}\s*+,)"
    rf"\s*+[rbfRBF]{{0,2}}(?P<quote>\\?(?:\"{{3}}|'{{3}}|[\"']))(?P<value>(?:(?!(?P=quote))(?:\\.|.))++)",
    re.DOTALL,
)
"""``name="…"``, ``name: str = "…"``, ``["name"] = "…"``, ``"name": "…"`` and ``"name", "…"``."""
_PLAIN = re.compile(rf"{_NAME}=(?![rbfRBF]{{0,2}}{_QUOTE})(?P<value>[^\s\"'&]++)")
_OPTION = re.compile(r"(?<!\S)--?(?P<name>[A-Za-z_][\w.-]*+)\s++(?!-)(?P<value>\"[^\"]*+\"?|'[^']*+'?|\S*[^\s\"')])")
_HEADER = re.compile(
    r"(?<![\w-])(?P<name>(?:proxy-)?authorization|x-[a-z-]++):\s*+(?:(?:bearer|basic|token)\s++)?"
    r"(?P<value>[^\s\"']++)",
    re.IGNORECASE,
)
_IN_ADDRESS = re.compile(r"(?<![\w+.-])[A-Za-z][\w+.-]*+://[^\s/@:\"']*+:(?P<value>[^\s/\"']+)(?=@)")
_WHOLE_WORD = re.compile(r"\A[-+~]{0,2}(?P<name>[A-Za-z_][\w.-]*+)=(?P<value>.+)", re.DOTALL)
_OPTION_ALONE = re.compile(r"--?(?P<name>[A-Za-z_][\w.-]*+)")


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether what is called so is a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[0] in ("no", "without") or words[-1] in _ABOUT:
        return False
    if any(_SECRET.fullmatch(word) for word in words):
        return True
    if any(after == "key" and before in _OF_KEYS for before, after in pairwise(words)):
        return True
    return _AT_THE_END.fullmatch(words[-1]) is not None and _COUNTED.isdisjoint(words)


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
        return {key: MASK if _is_named_secret(key, each) else mask_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        if all(isinstance(each, str) for each in value):
            return type(value)(mask_words(value))
        return type(value)(mask_value(each) for each in value)
    return value


def _is_named_secret(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, str) and value != "" and is_secret_name(name)


def _masked(text: str, patterns: Sequence[re.Pattern[str]]) -> str:
    if not _HINT.search(text):
        return text
    for pattern in patterns:
        text = _with_masks(text, pattern)
    return text


def _with_masks(text: str, pattern: re.Pattern[str]) -> str:
    """The text with a mask for each value whose name is that of a secret; another value may hold names itself."""
    pieces, copied, place = list[str](), 0, 0
    while found := pattern.search(text, place):
        if _is_secret(found):
            pieces += text[copied : found.start("value")], MASK
            copied = place = found.end("value")
        else:
            place = found.end("name")
    return "".join([*pieces, text[copied:]])


def _is_secret(found: re.Match[str]) -> bool:
    """Whether a value that was found is secret; in an address it is, whatever the user's name."""
    if (name := found.groupdict().get("name")) is None:
        return True
    is_folder = name.lower() == "pwd" and found["value"].startswith("/")
    return is_secret_name(name) and not is_folder
