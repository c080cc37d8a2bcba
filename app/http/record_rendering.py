"""Shows stored records as JSON, in the form in which ``POST …/records`` takes them. Pure.

A value is shown as JSON if it is JSON, else as a STRING if it is UTF-8, else as BINARY (base64). ``rendering=string`` never looks
for JSON, and ``rendering=binary`` shows bytes alone. A value of more than ``LOOKED_AT_BYTES_MAX`` is BINARY in every rendering,
because the decoders of JSON and of text cannot rest.
"""

from __future__ import annotations

import binascii
from enum import Enum
from typing import Final

import msgspec

from app.core.limits import MIB
from app.core.turns import Steps
from app.http.record_json import RecordHeader, format_timestamp
from app.records.record import Headers, Record

LOOKED_AT_BYTES_MAX: Final = MIB
"""Longer keys and values are shown as BINARY."""
BASE64_A_STEP: Final = 3 * MIB // 4
"""A multiple of three bytes, so that no padding stands within the text."""
HEADERS_A_STEP: Final = 1_000

_JSON_STARTS: Final = frozenset(b'{["-0123456789tfn \t\r\n')


class Rendering(Enum):
    """How keys and values are shown."""

    AUTO = "auto"
    STRING = "string"
    BINARY = "binary"


class ShownPart(msgspec.Struct):
    """A key or a value."""

    type: str
    """JSON, STRING or BINARY (base64)."""
    data: msgspec.Raw


class ShownRecord(msgspec.Struct):
    """A record that was read."""

    partition_id: int
    offset: int
    timestamp: str
    headers: list[RecordHeader]
    key: ShownPart | None
    value: ShownPart | None
    """Null for a tombstone."""


def shown_steps(record: Record, partition: int, rendering: Rendering) -> Steps[bytes]:
    """The JSON of a record, without a line break in it."""
    headers = yield from _headers(record.headers)
    key = yield from _part(record.key, rendering)
    value = yield from _part(record.value, rendering)
    shown = ShownRecord(partition, record.offset, format_timestamp(record.timestamp), headers, key, value)
    return msgspec.json.encode(shown)


def _headers(headers: Headers) -> Steps[list[RecordHeader]]:
    found = []
    for name, value in headers:
        found.append(RecordHeader(name, None if value is None else binascii.b2a_base64(value, newline=False).decode()))
        if not len(found) % HEADERS_A_STEP:
            yield
    return found


def _part(content: bytes | None, rendering: Rendering) -> Steps[ShownPart | None]:
    if content is None:
        return None
    if rendering is not Rendering.BINARY and len(content) <= LOOKED_AT_BYTES_MAX:
        try:
            text = content.decode()
        except UnicodeDecodeError:
            pass
        else:
            if rendering is Rendering.AUTO and (raw := _json(content)) is not None:
                return ShownPart("JSON", raw)
            return ShownPart("STRING", msgspec.Raw(msgspec.json.encode(text)))
    return ShownPart("BINARY", msgspec.Raw((yield from in_base64_steps(content))))


def in_base64_steps(content: bytes) -> Steps[bytes]:
    """A JSON string with some bytes in base64."""
    pieces = [b'"']
    for start in range(0, len(content), BASE64_A_STEP):
        pieces.append(binascii.b2a_base64(content[start : start + BASE64_A_STEP], newline=False))
        if len(content) > BASE64_A_STEP:
            yield
    pieces.append(b'"')
    return b"".join(pieces)


def _json(content: bytes) -> msgspec.Raw | None:
    """The content without white space between its parts, so that it stays on one line; None if it is not JSON."""
    if not content or content[0] not in _JSON_STARTS:
        return None
    try:
        return msgspec.Raw(msgspec.json.format(content, indent=-1))
    except (msgspec.DecodeError, RecursionError):
        return None
