"""Masks: fields of messages that the console's pages do not show (``firn.console.mask``). Pure.

A rule names topics and a field: ``orders-*:customer.email`` hides that field of JSON values and JSON keys, in each element of a
list, too. ``*`` stands for any field. ``@key`` hides whole keys, and ``@headers`` the values of headers.

A value of a masked topic that is no JSON object or list, or that is long, is hidden as a whole: the field may be anywhere in it.
Values of an Avro or Protobuf schema are hidden as a whole, too, and so are keys whose schema a header names.

Tests: ``tests/http/console/test_masks.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final

import msgspec

from app.core.limits import KIB
from app.core.turns import Steps, Stepwise
from app.records.record import Record
from app.registry.payloads.prefix import Side

MASK: Final = "•••"
HIDDEN: Final = MASK.encode()
MASKED_BYTES_MAX: Final = 128 * KIB
"""Longer keys and values are hidden as a whole: the decoder of JSON cannot rest."""
ELEMENTS_A_STEP: Final = 5_000
SCHEMA_HEADERS_MAX: Final = 1_000
"""A key with more headers is hidden as a whole."""
_KEY: Final = "@key"
_HEADERS: Final = "@headers"
_ANY: Final = "*"
_TOPICS: Final = re.compile(r"[A-Za-z0-9._*?-]+")
_ANOTHER: Final = re.compile(r"[;\s|].*:")
"""A second mask behind something else than a comma."""

_decoder: Final = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))
"""It keeps the digits of numbers."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The fields of a topic that are hidden."""

    paths: tuple[tuple[str, ...], ...]
    hides_key: bool = False
    hides_headers: bool = False

    def steps(self, record: Record) -> Steps[Record]:
        """As ``masked``."""
        key = record.key
        if key is not None and self.hides_key:
            key = HIDDEN
        elif key is not None and self.paths:
            key = HIDDEN if _has_key_schema(record) else (yield from self.part(key, is_key=True))
        value = record.value
        if value is not None and self.paths:
            value = yield from self.part(value)
        headers = record.headers
        if self.hides_headers:
            headers = tuple((name, None if one is None else HIDDEN) for name, one in headers)
        return record._replace(key=key, value=value, headers=headers)

    def part(self, data: bytes, *, is_key: bool = False) -> Steps[bytes]:
        """A value, in steps; a key if ``is_key``. A key that is text stays."""
        if not self.paths:
            return data
        if data.lstrip()[:1] not in (b"{", b"["):
            return data if is_key and _is_plain(data) else HIDDEN
        if len(data) > MASKED_BYTES_MAX:
            return HIDDEN
        try:
            root = _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return HIDDEN
        yield
        for path in self.paths:
            yield from _hide(root, path)
        yield
        try:
            return msgspec.json.encode(root)
        except RecursionError:
            return HIDDEN


@Stepwise
def masked(mask: Mask, record: Record) -> Steps[Record]:
    """A record as pages may show it, search it and export it."""
    return (yield from mask.steps(record))


def _has_key_schema(record: Record) -> bool:
    """Whether a header names the schema of the key, or may. Such a key of Avro may look like text: a length and a field."""
    headers = record.headers
    return len(headers) > SCHEMA_HEADERS_MAX or any(name == Side.KEY.header for name, _ in headers)


def _is_plain(key: bytes) -> bool:
    """Whether a key is text. A key by a schema begins with a zero, and may have the field."""
    try:
        return key.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _hide(root: Any, path: tuple[str, ...]) -> Steps[None]:
    """Replace the fields at ``path`` within decoded JSON."""
    places: list[tuple[Any, int]] = [(root, 0)]
    count = 0
    while places:
        place, depth = places.pop()
        count += 1
        if not count % ELEMENTS_A_STEP:
            yield
        if isinstance(place, list):
            places += [(one, depth) for one in place if isinstance(one, (dict, list))]
        elif isinstance(place, dict):
            name = path[depth]
            for field in tuple(place) if name == _ANY else (name,) if name in place else ():
                if depth + 1 == len(path):
                    place[field] = MASK
                elif isinstance(place[field], (dict, list)):
                    places.append((place[field], depth + 1))


class Masks:
    """All rules of a process."""

    def __init__(self, rules: Iterable[tuple[str, str]] = ()) -> None:
        """``rules``: of topics and a field, as ``parse_masks`` returns them."""
        self._rules = tuple((re.compile(translate(topics)), field) for topics, field in rules)

    def of(self, topic: str) -> Mask | None:
        """The mask of a topic; None if all of it may be shown."""
        fields = [field for topics, field in self._rules if topics.fullmatch(topic)]
        if not fields:
            return None
        paths = tuple(tuple(field.split(".")) for field in fields if not field.startswith("@"))
        return Mask(paths, hides_key=_KEY in fields, hides_headers=_HEADERS in fields)


def parse_masks(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """The rules of ``firn.console.mask``, each ``TOPICS:FIELD``. Raises: ValueError."""
    rules = []
    for text in sorted(filter(None, map(str.strip, texts))):
        topics, colon, field = text.partition(":")
        is_known = field in (_KEY, _HEADERS) or (not field.startswith("@") and all(field.split(".")))
        if not colon or _TOPICS.fullmatch(topics) is None or not field or not is_known:
            raise ValueError(f"{text!r} is not a mask; write TOPICS:FIELD.FIELD, TOPICS:@key or TOPICS:@headers")
        if _ANOTHER.search(field):  # it would hide a field of that long name, which no message has
            raise ValueError(f"{text!r} has more than one mask; write a comma between two of them")
        rules.append((topics, field))
    return tuple(rules)
