"""Runbooks as blocks of text, from the part of Markdown that ``docs/runbooks`` uses. Pure.

A page has headings, paragraphs and lists; its text has code and links. Templates make HTML of the blocks, so nothing of a page is
HTML by itself. Tests: ``tests/http/console/test_runbooks.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple

PAGES: Final = "/console/runbooks/"
_PIECES: Final = re.compile(r"`(?P<code>[^`]+)`|\[(?P<text>[^\]]+)\]\((?P<to>[^)]+)\)")
_PAGE: Final = re.compile(r"([a-z-]+)\.md")
_ITEM: Final = re.compile(r"(?:(?P<dot>- )|\d+\. )(?P<text>.*)")
_ALERT: Final = "Alert"


class Piece(NamedTuple):
    """A part of a line of text."""

    text: str
    code: bool = False
    url: str = ""
    """Of the runbook that it leads to; empty for plain text."""


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, a paragraph or a list."""

    kind: str
    """``h2``, ``p``, ``ul`` or ``ol``."""
    items: list[list[Piece]]


@dataclass(frozen=True, slots=True)
class Runbook:
    """A page about an alert."""

    name: str
    title: str
    alert: str
    """The names of its alerts."""
    blocks: list[Block] = field(default_factory=list)


def pieces_of(text: str) -> list[Piece]:
    """The parts of a text. A link to a page that the console does not have is plain text."""
    found = []
    at = 0
    for match in _PIECES.finditer(text):
        if match.start() > at:
            found.append(Piece(text[at : match.start()]))
        at = match.end()
        if match["code"]:
            found.append(Piece(match["code"], code=True))
        else:
            page = _PAGE.fullmatch(match["to"])
            found.append(Piece(match["text"], url=PAGES + page[1] if page else ""))
    if at < len(text):
        found.append(Piece(text[at:]))
    return found


def runbook_of(name: str, text: str) -> Runbook:
    """A page, from its Markdown."""
    title, alert = name, ""
    blocks: list[Block] = []
    for part in re.split(r"\n\s*\n", text.strip()):
        lines = part.splitlines()
        if part.startswith("# "):
            title = part[2:]
        elif part.startswith("## "):
            blocks.append(Block("h2", [pieces_of(part[3:])]))
        elif part.startswith(_ALERT):
            alert = part.partition(": ")[2].replace("`", "")
        elif match := _ITEM.match(lines[0]):
            blocks.append(Block("ul" if match["dot"] else "ol", [pieces_of(item) for item in _items(lines)]))
        else:
            blocks.append(Block("p", [pieces_of(" ".join(lines))]))
    return Runbook(name, title, alert, blocks)


def _items(lines: list[str]) -> list[str]:
    """The items of a list. A line without a mark goes on with the item before."""
    found: list[str] = []
    for line in lines:
        if match := _ITEM.match(line):
            found.append(match["text"])
        else:
            found[-1] += f" {line.strip()}"
    return found
