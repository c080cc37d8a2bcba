"""The client's address behind a proxy, by the header in which the proxy names it (ADR 0034, HF). Pure.

Each proxy adds the address of its own peer at the right end of the header, behind any text of the client. So the header is read
from its right end, and no further than the first address that is no trusted proxy's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from app.core.addresses import ADDRESS_CHARS_MAX, Networks, plain_address, read_address

FORWARDED: Final = "forwarded"
"""The header of RFC 7239. Any other has addresses alone, separated by commas."""
HOPS_MAX: Final = 32
"""Entries that are read. No chain of proxies has so many."""

_VALUE: Final = r'(?:[!#$%&\'*+.^_`|~0-9A-Za-z\[\]:-]*|"(?:[^"\\]|\\.)*")'
_PAIR: Final = rf"[!#$%&'*+.^_`|~0-9A-Za-z-]+={_VALUE}"
_ELEMENT: Final = re.compile(rf"[ \t]*({_PAIR}(?:[ \t]*;[ \t]*{_PAIR})*)?[ \t]*(?:,|$)")
_PAIRS: Final = re.compile(rf"({_PAIR})[ \t]*(?:;[ \t]*|$)")
_NODE: Final = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::\d{1,5})?|([0-9.]+)(?::\d{1,5})?|([0-9A-Fa-f:.]+)")


def client_address(peer: str, headers: Sequence[tuple[bytes, bytes]], trusted: Networks, header: str) -> str:
    """The address of the client of a request that came from ``peer``.

    Args:
        headers: all of the request, names in lower case.
        header: the name of the one that counts, in lower case.

    Returns: an address in its one form.
    """
    peer = plain_address(peer)
    if peer not in trusted:
        return peer
    name = header.encode()
    lines = [value.decode("latin-1") for key, value in headers if key == name]
    address = peer
    for text in islice(_from_the_right(lines, is_forwarded=header == FORWARDED), HOPS_MAX):
        found = _address_of(text)
        if found is None:
            break
        address = found
        if address not in trusted:
            break
    return address


def _from_the_right(lines: Sequence[str], *, is_forwarded: bool) -> Iterator[str]:
    """The entries of a header, the last one first. A malformed entry is an empty text."""
    for line in reversed(lines):
        entries = _elements(line) if is_forwarded else line.split(",")
        for entry in reversed(entries):
            yield entry.strip()


def _elements(line: str) -> list[str]:
    """The ``for`` parameter of each element of a line of ``Forwarded``. A line that is not well formed is one empty text: quotes
    that a client opened may hide a proxy's element."""
    found: list[str] = []
    position = 0
    while True:
        element = _ELEMENT.match(line, position)
        if element is None:
            return [""]
        named = [pair for pair in _PAIRS.findall(element[1] or "") if pair[:4].lower() == "for="]
        found.append(_unquoted(named[0][4:]) if len(named) == 1 else "")
        position = element.end()
        if not element[0].endswith(","):
            return found


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _address_of(text: str) -> str | None:
    """``ADDRESS``, ``ADDRESS:PORT`` of IPv4, ``[ADDRESS]`` or ``[ADDRESS]:PORT``; None for anything else."""
    node = _NODE.fullmatch(text) if len(text) <= ADDRESS_CHARS_MAX else None
    if node is None:
        return None
    try:
        return str(read_address(node[1] or node[2] or node[3]))
    except ValueError:
        return None
