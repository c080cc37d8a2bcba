"""Tokens of a Protobuf text, each with the comments before it.

A comment that begins in the line of a token's end belongs to that token (``trailing``). Tests: ``tests/registry/test_protobuf.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from app.registry.parsing.limits import StepBudget
from app.registry.refusals import SchemaInvalid

_TOKEN: Final = re.compile(
    r"""(?P<space>[\s\ufeff]+)
    |(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<number>0[xX][0-9A-Fa-f]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*"|'(?:[^'\\\n]|\\[^\n])*')
    |(?P<symbol>[{}\[\]()<>;:,=.+-])""",
    re.VERBOSE | re.DOTALL,
)
_STAR: Final = re.compile(r"^\s*\*? ?", re.MULTILINE)
_ESCAPE: Final = re.compile(
    r"""\\(?:([abfnrtv\\'"?])|([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))""", re.DOTALL
)
_ESCAPED: Final = dict(zip("abfnrtv", b"\a\b\f\n\r\t\v", strict=True))
END: Final = "end"


class Token(NamedTuple):
    kind: str
    """``name``, ``number``, ``string``, ``symbol``, or ``end``."""
    text: str
    line: int
    leading: str
    """The comments before it, a line for each line of theirs."""
    trailing: str
    """The comment behind it in its line."""


def tokens(text: str, steps: StepBudget) -> Iterator[Token]:
    """The tokens of a text, and the end. Raises: SchemaInvalid."""
    at, line = 0, 1
    before: list[str] = []
    last: tuple[str, str, int, str] | None = None
    trailing = ""
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise SchemaInvalid(f"line {line} has no token at {text[at : at + 20]!r}")
        at = found.end()
        kind, shown = str(found.lastgroup), found.group()
        match kind:
            case "space":
                line += shown.count("\n")
                continue
            case "comment":
                steps.spend()
                words = _words(shown)
                if last is not None and last[2] == line and not before and not trailing:
                    trailing = words
                else:
                    before.append(words)
                line += shown.count("\n")
                continue
        steps.spend()
        if last is not None:
            yield Token(*last, trailing)
        last, trailing = (kind, shown, line, "\n".join(before)), ""
        before.clear()
    if last is not None:
        yield Token(*last, trailing)
    yield Token(END, "the end", line, "\n".join(before), "")


def _words(comment: str) -> str:
    """A comment without its marks."""
    if comment.startswith("//"):
        return comment[2:].strip()
    return _STAR.sub("", comment[2:-2]).strip()


def unescaped(text: str) -> bytes:
    """The bytes of a string's text between its quotes. Raises: ValueError."""
    made = bytearray()
    at = 0
    for found in _ESCAPE.finditer(text):
        made += text[at : found.start()].encode()
        at = found.end()
        sign, octal, hexadecimal, short, long, unknown = found.groups()
        if unknown is not None:
            raise ValueError(unknown)
        if sign is not None:
            made.append(_ESCAPED.get(sign, ord(sign)))
        elif octal is not None:
            made.append(int(octal, 8) & 0xFF)
        elif hexadecimal is not None:
            made.append(int(hexadecimal, 16))
        else:
            made += chr(int(short or long, 16)).encode()
    return bytes(made + text[at:].encode())
