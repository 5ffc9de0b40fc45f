"""Names that a program gives to files and functions, as a trace keeps them: they can be stored, whatever they are."""

from pinscope.text import encodable

FILE_CHARACTERS = 1000
"""Of a file's name: with a stack and the rest of a row it is less than an observation may hold."""


def file_label(file: str) -> str:
    """The name by which a file is shown, and its lines compared: the process that redirects copies and the reader of
    the spool make it alike. Paths of usual length stay as they are."""
    return label(file, FILE_CHARACTERS)


def label(text: str, most: int) -> str:
    """``text`` as it can be stored. Of more characters than ``most`` the middle is left out."""
    text = encodable(text)
    if len(text) <= most:
        return text
    half = most // 2 - 2
    return f"{text[:half]} … {text[-half:]}"
