"""Media types of REST v2: ``application/vnd.kafka[.format][.v2]+json``, and plain JSON. Pure.

Tests: ``tests/http/rest_v2/test_media.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from app.http.bodies import JSON_TYPE
from app.http.consumers.settings import Format
from app.http.schemas import V2_TYPE

PLAIN_TYPES: Final = (V2_TYPE, "application/vnd.kafka+json", JSON_TYPE)
"""Types that name no embedded format, the preferred one first."""
ACCEPT_CHARS_MAX: Final = 8_000
_QUALITY: Final = re.compile(r"(?:0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\Z")


def embedded_type(form: Format) -> str:
    """The type of bodies with keys and values in a format."""
    return f"application/vnd.kafka.{form.value}.v2+json"


EMBEDDED_TYPES: Final = tuple(embedded_type(form) for form in Format)
_FORMATS: Final = {
    **{embedded_type(form): form for form in Format},
    **{f"application/vnd.kafka.{form.value}+json": form for form in Format},
}


def plain(text: str) -> str:
    """A media type without its parameters, in lower case."""
    return text.partition(";")[0].strip().lower()


def format_of(content_type: str) -> Format | None:
    """The embedded format of a body; BINARY if its type names none; None for a type of something else."""
    kind = plain(content_type)
    return Format.BINARY if kind in PLAIN_TYPES else _FORMATS.get(kind)


def is_v2(content_type: str) -> bool:
    """Whether a body of this type is one of REST v2."""
    return format_of(content_type) is not None


def chosen(accept: str, offered: Sequence[str]) -> str | None:
    """The type among ``offered``, the preferred one first, that a client likes best by its ``Accept``; None if it takes none of
    them. Source: RFC 9110, 12.5.1."""
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
