"""Which media type a response has, by the `Accept` of its request (RFC 9110, 12.5.1). Pure.

Tests: ``tests/http/test_accepting.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

ACCEPT_CHARS_MAX: Final = 8_000
_QUALITY: Final = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\Z")


def plain(text: str) -> str:
    """A media type without its parameters, in lower case."""
    return text.partition(";")[0].strip().lower()


def chosen(accept: str, offered: Sequence[str]) -> str | None:
    """The type among ``offered``, the preferred one first, that a client likes best by its ``Accept``; None if it takes none of
    them."""
    ranges = _ranges(accept[:ACCEPT_CHARS_MAX])
    if not ranges:
        return offered[0]
    best: str | None = None
    best_quality = 0.0
    for kind in offered:
        quality = _quality(kind, ranges)
        if quality > best_quality:
            best, best_quality = kind, quality
    return best


def _quality(kind: str, ranges: Sequence[tuple[str, float]]) -> float:
    """By the most specific range that matches."""
    main = kind.partition("/")[0]
    for wanted in (kind, f"{main}/*", "*/*"):
        found = [quality for name, quality in ranges if name == wanted]
        if found:
            return max(found)
    return 0.0


def _ranges(accept: str) -> list[tuple[str, float]]:
    found = []
    for part in accept.split(","):
        name, *parameters = part.split(";")
        name = name.strip().lower()
        if not name:
            continue
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip().lower() == "q":
                quality = float(value.strip()) if _QUALITY.match(value.strip()) else 0.0
        found.append((name, quality))
    return found
