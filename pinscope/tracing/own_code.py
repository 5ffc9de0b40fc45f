"""Which files are the program's own code: the recorder's process and the reader of its spool decide alike."""

from collections.abc import Sequence

LIBRARIES = ("/site-packages/", "/dist-packages/")


def is_own(file: str, standard: Sequence[str]) -> bool:
    """Neither of an installed package nor of Python itself.

    Args:
        file: as a code object names it.
        standard: folders of Python's own library, each with a slash at its end.
    """
    if file.startswith("<"):
        return False
    return not any(each in file for each in LIBRARIES) and not file.startswith(tuple(standard))
