"""Shows stored records as JSON, in the form in which ``POST …/records`` takes them. Pure.

A value is shown as JSON if it is JSON, else as a STRING if it is UTF-8, else as BINARY (base64). ``rendering=string`` never looks
for JSON, and ``rendering=binary`` shows bytes alone. A value of more than ``LOOKED_AT_BYTES_MAX`` is BINARY in every rendering,
because the decoders of JSON and of text cannot rest.
"""

from __future__ import annotations

import binascii
from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from app.core.limits import MIB
from app.core.turns import Steps, whole
from app.core.units import TimestampMs
from app.http.record_json import TIMES_KEPT, RecordHeader, format_timestamp
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


class ShortRecords:
    """Shows short records of a partition at once, each as ``shown_steps`` does, with less work for a record."""

    def __init__(self, partition: int, rendering: Rendering) -> None:
        self._partition = partition
        self._rendering = rendering
        self._is_auto = rendering is Rendering.AUTO
        self._begin = b'{"partition_id":%d,"offset":' % partition

    def shown(self, record: Record) -> bytes:
        """The JSON of a record without a line break in it. ``record`` is so short that it is shown in less than 0.1 ms."""
        offset, timestamp, key, value, headers = record
        if headers:
            return whole(shown_steps(record, self._partition, self._rendering))
        return b'%b%d%b%b,"value":%b}' % (
            self._begin,
            offset,
            _middle(timestamp),
            b"null" if key is None else self._part(key),
            b"null" if value is None else self._part(value),
        )

    def _part(self, content: bytes) -> bytes:
        if self._is_auto and content.isascii() and content and content[0] in _JSON_STARTS:
            try:
                return b'{"type":"JSON","data":%b}' % msgspec.json.format(content, indent=-1)
            except (msgspec.DecodeError, RecursionError):
                pass
        return msgspec.json.encode(whole(_part(content, self._rendering)))


@lru_cache(TIMES_KEPT)
def _middle(timestamp: TimestampMs) -> bytes:
    """The members between the offset and the content of the key of a record without headers."""
    return b',"timestamp":%b,"headers":[],"key":' % msgspec.json.encode(format_timestamp(timestamp))


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
            if rendering is Rendering.AUTO and (raw := _compact(content)) is not None:
                return ShownPart("JSON", msgspec.Raw(raw))
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


def _compact(content: bytes) -> bytes | None:
    """The content without white space between its parts, so that it stays on one line; None if it is not JSON. It must be UTF-8."""
    if not content or content[0] not in _JSON_STARTS:
        return None
    try:
        return msgspec.json.format(content, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return None
