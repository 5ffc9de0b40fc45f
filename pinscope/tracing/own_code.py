"""Which files are the program's own code: the recorder's process and the reader of its spool decide alike."""

import os
from collections.abc import Sequence

OURS = os.path.dirname(__file__)  # noqa: PTH120 - pathlib would be one import more in the program
"""Code of PinScope that runs inside the program."""
LIBRARIES = ("/site-packages/", "/dist-packages/")


def is_own(file: str, standard: Sequence[str]) -> bool:
    """Neither of an installed package, of Python itself nor of PinScope.

    Args:
        file: as a code object names it.
        standard: folders of Python's own library, each with a slash at its end.
    """
    if file.startswith(("<", OURS)):
        return False
    return not any(each in file for each in LIBRARIES) and not file.startswith(tuple(standard))
