"""Which files are the program's own code: the recorder's process and the reader of its spool decide alike."""

import os
from collections.abc import Sequence

from pinscope.tracing.bound import bind

bind(globals())


OURS = os.path.dirname(__file__)  # noqa: PTH120 - pathlib would be one import more in the program
"""Code of PinScope that runs inside the program."""
INSTALLED = ("/site-packages/", "/dist-packages/")
"""In the path of what is installed, wherever Python is."""


def is_own(file: str, libraries: Sequence[str]) -> bool:
    """Neither of an installed package, of Python itself nor of PinScope.

    Args:
        file: as a code object names it.
        libraries: other folders of libraries, each with a slash at its end.
    """
    if file.startswith(("<", OURS)):
        return False
    return not any(each in file for each in INSTALLED) and not file.startswith(tuple(libraries))
