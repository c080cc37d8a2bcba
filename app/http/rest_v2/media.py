"""Media types of REST v2: ``application/vnd.kafka[.format][.v2]+json``, and plain JSON. Pure.

Tests: ``tests/http/rest_v2/test_media.py``.
"""

from __future__ import annotations

from typing import Final

from app.http.accepting import plain
from app.http.bodies import JSON_TYPE
from app.http.consumers.settings import Format
from app.http.schemas import V2_TYPE

PLAIN_TYPES: Final = (V2_TYPE, "application/vnd.kafka+json", JSON_TYPE)
"""Types that name no embedded format, the preferred one first."""


def embedded_type(form: Format) -> str:
    """The type of bodies with keys and values in a format."""
    return f"application/vnd.kafka.{form.value}.v2+json"


EMBEDDED_TYPES: Final = tuple(embedded_type(form) for form in Format)
_FORMATS: Final = {
    **{embedded_type(form): form for form in Format},
    **{f"application/vnd.kafka.{form.value}+json": form for form in Format},
}


def format_of(content_type: str) -> Format | None:
    """The embedded format of a body; BINARY if its type names none; None for a type of something else."""
    kind = plain(content_type)
    return Format.BINARY if kind in PLAIN_TYPES else _FORMATS.get(kind)


def is_v2(content_type: str) -> bool:
    """Whether a body of this type is one of REST v2."""
    return format_of(content_type) is not None
