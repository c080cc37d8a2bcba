"""The allowed keys. Pure. Every adapter checks keys with these functions before it touches anything."""

from __future__ import annotations

import re
from typing import Final

from app.objectstore.api import InvalidKey

KEY_CHARS_MAX: Final = 800
"""S3 allows 1,024 bytes; the rest is left for the bucket prefix of the cluster."""

KEY_PART_CHARS_MAX: Final = 200
"""File systems allow 255 bytes a name; the rest is left for the names of temporary files."""

LIST_LIMIT_MAX: Final = 1000
"""Keys of one LIST page and of one DELETE request, as in S3."""

PART_NUMBER_MAX: Final = 10_000
"""Parts of one upload, as in S3."""

_PART = rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{KEY_PART_CHARS_MAX - 1}}}"
_KEY: Final = re.compile(rf"{_PART}(?:/{_PART})*")
_PREFIX: Final = re.compile(rf"(?:{_PART}/)*(?:{_PART})?")
_NAME: Final = re.compile(_PART)


def check_key(key: str) -> None:
    """Raises: InvalidKey."""
    if len(key) > KEY_CHARS_MAX or _KEY.fullmatch(key) is None:
        raise InvalidKey(
            f"{key[:KEY_CHARS_MAX]!r} is not an object key: parts of [A-Za-z0-9._-] joined by '/', none hidden."
        )


def check_prefix(prefix: str) -> None:
    """A prefix is the beginning of a key; it may be empty and may end anywhere. Raises: InvalidKey."""
    if len(prefix) > KEY_CHARS_MAX or _PREFIX.fullmatch(prefix) is None:
        raise InvalidKey(f"{prefix[:KEY_CHARS_MAX]!r} is not the beginning of an object key.")


def check_range(start: int, end: int) -> None:
    """Half-open byte ranges of reads; a wrong one is a bug of the caller."""
    assert 0 <= start < end, (start, end)


def is_visible_name(name: str) -> bool:
    """Whether a file or directory of that name can be part of a key."""
    return _NAME.fullmatch(name) is not None
