"""Files of Java's ``java.util.Properties``, which Kafka's brokers and tools read: text in, names and values out.

The rules are those of ``Properties.load``: a line ends with LF, CR or CRLF; blank lines and lines whose first visible character is
``#`` or ``!`` say nothing; an odd number of backslashes at the end of a line joins the next one to it, without its leading blanks;
the name ends at the first ``=``, ``:`` or blank that no backslash precedes; ``\\t``, ``\\n``, ``\\r``, ``\\f`` and ``\\uXXXX``
stand for characters, and any other character after a backslash for itself. If a name comes twice, its last value counts.

Tests: ``tests/cli/test_kafka_settings.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_BLANKS: Final = " \t\f"
_LINE_ENDS: Final = re.compile(r"\r\n|\n|\r")
_ESCAPED: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX: Final = re.compile(r"[0-9A-Fa-f]{4}")


def parse_properties(text: str) -> Mapping[str, str]:
    """The values by name. Raises: ValueError for a ``\\u`` that four hexadecimal digits do not follow."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        at = 0
        while at < len(line) and line[at] not in "=:" + _BLANKS:
            at += 2 if line[at] == "\\" else 1
        value_at = min(at, len(line))
        while value_at < len(line) and line[value_at] in _BLANKS:
            value_at += 1
        if value_at < len(line) and line[value_at] in "=:":
            value_at += 1
            while value_at < len(line) and line[value_at] in _BLANKS:
                value_at += 1
        found[_unescaped(line[:at])] = _unescaped(line[value_at:])
    return found


def _logical_lines(text: str) -> Iterator[str]:
    joined: str | None = None
    for line in _LINE_ENDS.split(text):
        line = line.lstrip(_BLANKS)
        if joined is None and (not line or line[0] in "#!"):
            continue
        joined = line if joined is None else joined + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined = joined[:-1]
            continue
        yield joined
        joined = None
    if joined:
        yield joined


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if character != "\\":
            parts.append(character)
            at += 1
            continue
        following = text[at + 1 : at + 2]
        if following == "u":
            digits = text[at + 2 : at + 6]
            if _HEX.fullmatch(digits) is None:
                raise ValueError(f"\\u{digits} is not \\u and four hexadecimal digits")
            parts.append(chr(int(digits, 16)))
            at += 6
        else:
            parts.append(_ESCAPED.get(following, following))
            at += 2
    # Two escapes may be the halves of one character beyond 16 bits.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
