"""Follows a program's calls of NVTX, as CUPTI reports them: the ranges that a thread pushes and pops.

Numbers and structures are those of NVTX 3 and of CUPTI's ``CUpti_NvtxData``; CUPTI calls when the function returns.
"""

from __future__ import annotations

import ctypes

from pinscope.tracing.bound import bind
from pinscope.tracing.ranges import Ranges

bind(globals())


PUSH_A, PUSH_W, PUSH_EX, POP = 8, 9, 10, 11
DOMAIN_PUSH_EX, DOMAIN_POP = 33, 34
REGISTER_A, REGISTER_W = 39, 40
FOLLOWED = (PUSH_A, PUSH_W, PUSH_EX, POP, DOMAIN_PUSH_EX, DOMAIN_POP, REGISTER_A, REGISTER_W)
"""Functions of which CUPTI is asked to report the calls."""
MOST_STRINGS = 10_000
"""Registered strings that are kept."""
NAMELESS = "a range without a name"
_PARAMETERS_AT, _RETURNED_AT = 8, 16
"""In ``CUpti_NvtxData``, behind the function's name."""
_MESSAGE_TYPE_AT, _MESSAGE_AT = 32, 40
"""In ``nvtxEventAttributes_t``."""
_ASCII, _UNICODE, _REGISTERED = 1, 2, 3
_pointer = ctypes.c_uint64.from_address


class NvtxCalls:
    """Keeps the open ranges as a program's calls of NVTX say.

    Args:
        ranges: where they are kept.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._strings: dict[int, str] = {}

    def note(self, number: int, data: int) -> None:
        """One call.

        Args:
            number: of the function.
            data: address of CUPTI's structure.
        """
        parameters = _pointer(data + _PARAMETERS_AT).value
        if number == POP:
            self._ranges.pop(0)
        elif number == DOMAIN_POP:
            self._ranges.pop(_pointer(parameters).value)
        elif number in {PUSH_A, PUSH_W}:
            self._ranges.push(_text(_pointer(parameters).value, number == PUSH_W), 0)
        elif number == PUSH_EX:
            self._ranges.push(self._name(_pointer(parameters).value), 0)
        elif number == DOMAIN_PUSH_EX:
            self._ranges.push(self._name(_pointer(parameters + 8).value), _pointer(parameters).value)
        elif number in {REGISTER_A, REGISTER_W}:
            self._register(_text(_pointer(parameters + 8).value, number == REGISTER_W), _pointer(data + _RETURNED_AT))

    def _register(self, text: str, returned: ctypes.c_uint64) -> None:
        """A string that is named by its handle from now on."""
        if returned.value and len(self._strings) < MOST_STRINGS:
            self._strings[_pointer(returned.value).value] = text

    def _name(self, attributes: int) -> str:
        """The message of a range's attributes."""
        if not attributes:
            return NAMELESS
        kind, message = _pointer(attributes + _MESSAGE_TYPE_AT).value & 0xFFFFFFFF, _pointer(attributes + _MESSAGE_AT)
        if kind == _REGISTERED:
            return self._strings.get(message.value, NAMELESS)
        return _text(message.value, kind == _UNICODE) if kind in {_ASCII, _UNICODE} else NAMELESS


def _text(address: int, wide: bool) -> str:
    """The string at an address."""
    if not address:
        return NAMELESS
    return ctypes.wstring_at(address) if wide else ctypes.string_at(address).decode(errors="replace")
