"""Every error PinScope raises on purpose, and the exit code each one ends with.

::

    PinScopeError                 exit 1   the run or the operation failed
    ├── BadInput                  exit 2   what was asked for makes no sense; nothing was changed
    │   ├── UnknownName                    no experiment, run, column … of that name
    │   ├── InvalidParameter               a parameter is out of its range
    │   ├── PathExists                     the file to be written is already there
    │   └── BadBundle                      not a bundle, truncated, or of a newer format
    ├── NotPossible               exit 3   right question, wrong machine (says why and what to do)
    │   ├── NotEnoughMemory                the budget exceeds what is safe here
    │   └── NoDevice                       no GPU, no driver, or no such device
    ├── MeasurementFailed         exit 1   the experiment broke off
    ├── StoreFailed               exit 1   the database could not be read or written
    └── Cancelled                 exit 130 somebody stopped it

The command line prints ``str(error)`` as one line; no traceback of these reaches a user.
"""

# ruff: noqa: N818 - a name such as Cancelled says by itself that it is an error
from __future__ import annotations


class PinScopeError(Exception):
    """Base of all errors raised on purpose. ``str(error)`` is one plain line for the user."""

    exit_code = 1


class BadInput(PinScopeError):
    """The request itself is wrong; nothing was changed."""

    exit_code = 2


class UnknownName(BadInput):
    """A name that PinScope does not know, with the names it does know."""


class InvalidParameter(BadInput):
    """A parameter is missing, malformed or outside its range."""


class PathExists(BadInput):
    """The output file exists already; PinScope never overwrites silently."""


class BadBundle(BadInput):
    """The file is not a PinScope bundle, is damaged, or has a newer format."""


class NotPossible(PinScopeError):
    """The request is sound but this machine cannot do it."""

    exit_code = 3


class NotEnoughMemory(NotPossible):
    """The run needs more memory than is safe to take here."""


class NoDevice(NotPossible):
    """There is no usable GPU, driver or CuPy here."""


class MeasurementFailed(PinScopeError):
    """An experiment broke off while it measured."""


class StoreFailed(PinScopeError):
    """The database could not be opened, read or written."""


class Cancelled(PinScopeError):
    """The run was stopped on request."""

    exit_code = 130
