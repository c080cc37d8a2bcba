"""Secrets taken out of texts that leave the machine. Pure.

The time is linear in the length of the text: keywords are searched first, and each is widened to its name once. Each value that
follows a name is consumed, so that no part of the text is read again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

GONE: Final = "(redacted)"

_KEYWORD: Final = re.compile(
    r"(?i)passw(?:or)?d|passphrase|pwd|secret|token|credential|jaas|(?:private|access|account|shared|api)[._\-]?key|keystore[._\-]key"
    r"|hmac|signature|(?<![a-z0-9])sig(?![a-z0-9])|authorization|cookie"
)
"""A part of each name of a setting, field, header or query parameter whose value is secret."""
_NAME_REST: Final = re.compile(r"[\w.\-]*+")
_NAME_MARKS: Final = frozenset("_.-")

_PEM: Final = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.S)
_PEM_END: Final = re.compile(r"-----END [A-Z0-9 ]*PRIVATE KEY-----")
_PEM_LINE: Final = re.compile(r"[ \t]*(?:[A-Za-z0-9+/=]*|(?:Proc-Type|DEK-Info):.*)[ \t\\\r]*")
_JAAS: Final = re.compile(
    r"(?i)(?P<name>LoginModule\s+)(?:required|requisite|sufficient|optional)\b"
    r"""(?:\\"(?:[^"\\]|\\{3}"|\\(?!"))*+\\"|"(?:[^"\\]|\\.)*+"|[^;"])*+[^;]*+;?"""
)
"""A semicolon in quotes does not end it. The quotes have a backslash each where the login is a string of JSON."""
_USER_INFO: Final = re.compile(r'(?<=://)[^/\s"<>]+@')
_BEARER: Final = re.compile(r"(?i)\b(?P<name>Bearer|Basic) [\w.~+/=\-]{8,}")
_AWS_KEY: Final = re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")
_TOKEN: Final = re.compile(r"(?<![\w\-])eyJ[\w\-]{5,}\.[\w\-]{5,}\.[\w\-]*")
"""A JSON web token."""

_SEPARATOR: Final = re.compile(r"""(?P<quote>\\{0,7}["'])?\s*+[:=][ \t]*+""")
_FLAG: Final = re.compile(r"""[ \t]++(?!-)|=|["'][ \t]*+,\s*+(?=["'])""")
"""Between ``--password`` and its value, in a command or in a list of arguments."""
_VALUE_LINE: Final = re.compile(r"""["']?[ \t]*+\r?\n[ \t]*+["']?value["']?[ \t]*+:[ \t]*+""")
"""Between a name and its value in a list of YAML, whose entries have both as values."""
_BLOCK: Final = re.compile(r"(?:(?:[!&]\S*[ \t]+)*[|>][-+\d]{0,2}[ \t]*(?:#[^\n]*)?)?\r?(?=\n|\Z)")
"""The rest of a line whose value stands in the lines after it."""
_BLANKS: Final = re.compile(r"\s*+")
_LINE_START: Final = re.compile(r"""[ \t]*(?:-[ \t]+)*["']?""")
_INDENT: Final = re.compile(r"[ \t]*+")
_TRIPLE: Final = {
    '"': re.compile(r'"""(?:\\.|(?!""").)*+"{0,5}', re.S),
    "'": re.compile(r"'''(?:(?!''').)*+'{0,5}", re.S),
}
_QUOTED: Final = {
    '"': re.compile(r'"(?:\\.|""|[^"\\\n])*+"'),
    "'": re.compile(r"'(?:\\.|''|[^'\\\n])*+'"),
}
_LIST_PART: Final = re.compile(r""""(?:\\.|[^"\\])*+(?:"|\Z)|'(?:\\.|[^'\\\n])*+'?|[\[\]]""", re.S)
_PARAMETER: Final = re.compile(r"""[^&\s"']*+""")
_WORD: Final = re.compile(r"\S*+")
_LINE: Final = re.compile(r"(?:[^\n\\]|\\\r?\n|\\)*+")
"""The rest of a line, and of lines that continue it."""
_SCALAR: Final = re.compile(r"[^\s,}\]]*+")
_PUBLIC_SCALARS: Final = frozenset(("null", "true", "false", "None", "True", "False", ""))

_PAIR: Final = re.compile(r"""(?i)["'](?:name|key)["']\s*:\s*["']""")
_PAIR_PARTS: Final = {
    quote: re.compile(
        rf"(?P<string>{quote}(?:\\.|[^{quote}\\\n])*+{quote}?)(?P<colon>\s*+:\s*+)?|(?P<open>[{{\[])|(?P<close>[}}\]])"
    )
    for quote in "\"'"
}


def redacted(text: str) -> str:
    """The text with ``(redacted)`` in place of passwords, keys, tokens and logins.

    It goes by names (``…password…``, ``…secret…``), and by forms that only secrets have: private keys, JAAS logins, users in
    URLs, JSON web tokens, ids of AWS keys. A secret without a name in a line of a log stays.
    """
    text = _PEM.sub(GONE, text)
    text = _without(text, _ends_of_keys(text))
    text = _JAAS.sub(rf"\g<name>{GONE}", text)
    text = _USER_INFO.sub(f"{GONE}@", text)
    text = _BEARER.sub(rf"\g<name> {GONE}", text)
    if _PAIR.search(text):
        for quote in _PAIR_PARTS:
            text = _without(text, _values_of_pairs(text, quote))
    text = _without(text, _named_values(text))
    text = _AWS_KEY.sub(GONE, text)
    return _TOKEN.sub(GONE, text)


class _Cut(NamedTuple):
    """A part of a text, and the words that take its place."""

    start: int
    end: int
    words: str


def _without(text: str, cuts: Iterator[_Cut]) -> str:
    """``cuts``: in order, and apart."""
    kept: list[str] = []
    place = 0
    for cut in cuts:
        kept += (text[place : cut.start], cut.words)
        place = cut.end
    kept.append(text[place:])
    return "".join(kept)


# --- keys -------------------------------------------------------------------------------------------------------------


def _ends_of_keys(text: str) -> Iterator[_Cut]:
    """Private keys whose begin was cut off: lines of Base64 before the line that ends the key."""
    floor = 0
    for end in _PEM_END.finditer(text):
        start = text.rfind("\n", floor, end.start()) + 1 or floor
        while start > floor:
            before = text.rfind("\n", floor, start - 1) + 1 or floor
            if not _PEM_LINE.fullmatch(text, before, start - 1):
                break
            start = before
        yield _Cut(start, end.end(), GONE)
        floor = end.end()


# --- pairs ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Object:
    """An object or a list of JSON that is open."""

    value_start: int | None
    """Where it starts, if it is the value of a pair."""
    secret: bool = False
    """It has the name of a secret."""
    values: list[_Cut] = field(default_factory=list)


def _values_of_pairs(text: str, quote: str) -> Iterator[_Cut]:
    """Values of ``{"name": "sasl.password", "value": "…"}``. A string ends with its line at the latest."""
    cuts: list[_Cut] = []
    opened = [_Object(None)]
    key = ""
    after_key = -1
    for part in _PAIR_PARTS[quote].finditer(text):
        follows = after_key == part.start()
        if part["open"]:
            opened.append(_Object(part.start() if follows and key == "value" else None))
        elif part["close"]:
            if len(opened) > 1:
                done = opened.pop()
                cuts += done.values if done.secret else ()
                if done.value_start is not None:
                    opened[-1].values.append(_Cut(done.value_start, part.end(), f"{quote}{GONE}{quote}"))
        elif part["colon"] is not None:
            key = part["string"].strip(quote).lower()
            after_key = part.end()
            if key == "value" and text[after_key : after_key + 1] not in (quote, "{", "["):
                scalar = _SCALAR.match(text, after_key)
                assert scalar is not None
                if scalar[0] not in _PUBLIC_SCALARS:
                    opened[-1].values.append(_Cut(after_key, scalar.end(), f"{quote}{GONE}{quote}"))
        elif follows and key == "value":
            opened[-1].values.append(_Cut(part.start("string"), part.end("string"), f"{quote}{GONE}{quote}"))
        elif follows and key in ("name", "key") and _KEYWORD.search(part["string"]):
            opened[-1].secret = True
    for one in opened:
        cuts += one.values if one.secret else ()
    end = 0
    for cut in sorted(cuts):
        if cut.start >= end:  # else it is inside one that is gone
            yield cut
            end = cut.end


# --- names ------------------------------------------------------------------------------------------------------------


def _named_values(text: str) -> Iterator[_Cut]:
    place = 0
    while (found := _KEYWORD.search(text, place)) is not None:
        start = found.start()
        while start > place and (text[start - 1].isalnum() or text[start - 1] in _NAME_MARKS):
            start -= 1
        end = _end(_NAME_REST, text, found.end())
        cut = _value_of(text, start, end)
        place = end if cut is None else cut.end
        if cut is not None:
            yield cut


def _value_of(text: str, start: int, end: int) -> _Cut | None:
    """The value that follows the name from ``start`` to ``end``; None if none follows."""
    if text.startswith("--", start) and (between := _FLAG.match(text, end)):
        value = between.end()
        return _string(text, value) or _plain(text, value, _end(_WORD, text, value))
    separator = _SEPARATOR.match(text, end)
    if separator is None:
        between = _VALUE_LINE.match(text, end)
        if between is None:
            return None
        value = between.end()
        return _string(text, value) or _plain(text, value, _end(_LINE, text, value))
    value = separator.end()
    quote = separator["quote"]
    if quote is not None:
        value = _end(_BLANKS, text, value)
    if (string := _string(text, value)) is not None:
        return string
    if text.startswith("[", value):
        return _Cut(value, _list_end(text, value), f'["{GONE}"]')
    if quote is not None:
        scalar = _end(_SCALAR, text, value)
        if text.startswith("{", value) or text[value:scalar] in _PUBLIC_SCALARS:
            return None
        if not quote.startswith("\\"):
            return _plain(text, value, scalar, f'"{GONE}"')
    if start and text[start - 1] in "?&" and separator[0] == "=":
        return _plain(text, value, _end(_PARAMETER, text, value))
    block = _BLOCK.match(text, value)
    if block is not None:
        lines = _block_end(text, start, block.end())
        return _Cut(value, lines, GONE) if lines > block.end() else None
    line = _end(_LINE, text, value)
    if text[value : value + 1] in ('"', "'"):  # a string that its line does not end
        line = _block_end(text, start, line)
    return _plain(text, value, line)


def _plain(text: str, start: int, end: int, words: str = GONE) -> _Cut | None:
    return _Cut(start, end, words) if end > start else None


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Where a match of a pattern that matches everywhere ends."""
    found = pattern.match(text, start)
    assert found is not None
    return found.end()


@cache
def _escaped(opening: str) -> re.Pattern[str]:
    """A string in a string: its quotes have backslashes before them."""
    mark = re.escape(opening)
    return re.compile(rf"{mark}(?:(?!(?<!\\){mark})[^\n])*+(?:{mark})?")


_OPENING: Final = re.compile(r"""\\{1,7}["']""")


def _string(text: str, start: int) -> _Cut | None:
    """The string in quotes that starts here; None if none does, or if its line does not end it."""
    quote = text[start : start + 1]
    if quote == "\\" and (opening := _OPENING.match(text, start)):
        return _Cut(start, _end(_escaped(opening[0]), text, start), f"{opening[0]}{GONE}{opening[0]}")
    if quote not in _QUOTED:
        return None
    found = _TRIPLE[quote].match(text, start) or _QUOTED[quote].match(text, start)
    return found and _Cut(start, found.end(), f"{quote}{GONE}{quote}")


def _list_end(text: str, start: int) -> int:
    """Where the list that starts here ends. One that does not end takes the rest of the text."""
    depth = 0
    for part in _LIST_PART.finditer(text, start):
        depth += (part[0] == "[") - (part[0] == "]")
        if not depth:
            return part.end()
    return len(text)


def _block_end(text: str, name: int, line_end: int) -> int:
    """The end of the lines after ``line_end`` that belong to the name at ``name``: they are indented more, or are entries of a
    list."""
    line = text.rfind("\n", 0, name) + 1
    head = _LINE_START.match(text, line, name)
    assert head is not None
    indent = len(head[0].rstrip("\"'")) if head.end() == name else _end(_INDENT, text, line) - line
    end = line_end
    while text.startswith("\n", end):
        first = _end(_INDENT, text, end + 1)
        next_end = text.find("\n", first)
        next_end = len(text) if next_end < 0 else next_end
        deep = first - end - 1
        blank = not text[first:next_end].strip()
        if not blank and deep <= indent and not (deep == indent and text.startswith("- ", first)):
            break
        end = next_end
    return end
