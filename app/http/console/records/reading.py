"""Records for a page: those that pass a filter, up to a number. The beginning of each value is kept.

A page reads ``SCANNED_BYTES_MAX`` at most, for ``SCAN_MS_MAX`` and ``SCAN_PORTIONS_MAX`` at most. The page then says where the
search stopped. A record keeps ``PREVIEW_BYTES`` of its value, so a page of 200 records of any size has a bounded length.

Tests: ``tests/http/console/test_messages.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Final, NamedTuple

import msgspec

from app.core.limits import KIB, MIB
from app.core.turns import Portion, Steps, Stepwise, run, slices
from app.core.units import Offset, TopicPartition
from app.http.console.records.decoding import Decoded, Decoding
from app.http.console.records.masks import Mask, masked
from app.http.console.texts.formats import readable
from app.http.gateway import Gateway
from app.http.pages import FETCH_WAIT_MS_MAX, batch_records, reader
from app.records.record import Record

SCANNED_BYTES_MAX: Final = 64 * MIB
SCAN_MS_MAX: Final = 8_000
PREVIEW_BYTES: Final = 400
KEY_BYTES: Final = 120
HEADERS_MAX: Final = 8
WHOLE_BYTES_MAX: Final = 256 * KIB
"""Of a value on the page of one record."""
FORMATTED_BYTES_MAX: Final = MIB
"""Of JSON with line breaks. JSON that would be longer is shown as it is: lists within 900 lists indent each element by 1,800."""
INDENT: Final = 2
WHOLE_HEADERS_MAX: Final = 200
HEX_BYTES: Final = 48
FILTERED_HEADERS_MAX: Final = 5_000
"""Headers of a record that a filter looks at: about 1 ms."""
MANY_HEADERS: Final = 100
SCAN_PORTIONS_MAX: Final = 200
"""Portions of a page: 2 s of CPU time."""


class Text(NamedTuple):
    """A key, a value or a header's value, as a page shows it."""

    text: str
    kind: str
    """``text``, ``json``, ``binary`` or ``null``."""
    bytes: int
    cut: bool
    schema: str = ""
    """The schema that it names, in words."""
    why: str = ""
    """Why it could not be decoded by its schema, as a sentence."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A record of a page."""

    offset: int
    timestamp: int
    key: Text
    value: Text
    headers: tuple[tuple[str, Text], ...]
    headers_left: int


class Header(NamedTuple):
    """A header that a filter asks for."""

    name: str
    part: bytes
    """Of its value; empty for any value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Browse:
    """The records that a page asks for."""

    partition: TopicPartition
    offset: int
    count: int
    key: bytes | None = None
    """Only records with this key."""
    contains: bytes | None = None
    """Only records whose value has these bytes."""
    header: Header | None = None
    """Only records with this header."""
    read_committed: bool = True
    mask: Mask | None = None
    """Fields that are hidden before anything is searched or shown."""
    whole: bool = False
    """Whether values are kept up to ``WHOLE_BYTES_MAX``."""


@dataclass(slots=True)
class Browsed:
    """The records that were found, and how far the search came."""

    records: list[Shown] = field(default_factory=list)
    next_offset: int = 0
    scanned: int = 0
    at_end: bool = False
    raw: Record | None = None
    """The last record as it is stored, of a page that shows it whole."""


_NOT_BREAKS: Final = bytes(set(range(256)) - set(b"[]{},"))
_DEEPER: Final = tuple({"[": 1, "{": 1, "]": -1, "}": -1}.get(chr(code), 0) for code in range(256))
_BREAKS_AT_ONCE: Final = 32 * KIB
"""Line breaks that are measured within a step: about 2 ms."""


@Stepwise
def stays_small(data: bytes) -> Steps[bool]:
    """Whether JSON with line breaks would have ``FORMATTED_BYTES_MAX`` at most. It holds for data that is no JSON, too: what comes
    before its fault stays as small."""
    outside = b"".join(
        data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2]
    )  # a bracket in a string breaks no line
    yield
    size, depth = len(data) + outside.count(b":"), 0
    for piece in slices(outside.translate(None, _NOT_BREAKS), _BREAKS_AT_ONCE):
        depths = list(accumulate(map(_DEEPER.__getitem__, piece), initial=depth))
        if min(depths) < 0:
            return False
        depth = depths[-1]
        size += len(piece) + INDENT * sum(depths)
        if size > FORMATTED_BYTES_MAX:
            return False
        yield
    return True


@Stepwise
def text_of(data: bytes | None, limit: int, *, pretty: bool = False) -> Steps[Text]:
    """Bytes as text if they are UTF-8, else in hexadecimal. ``pretty``: JSON with line breaks."""
    if data is None:
        return Text("null", "null", 0, False)
    cut = len(data) > limit
    part = data[:limit]
    try:
        text = part.decode()
    except UnicodeDecodeError as error:
        if not cut or error.start < len(part) - 3:  # not just a character that the cut has split
            return Text(part[:HEX_BYTES].hex(" "), "binary", len(data), len(data) > HEX_BYTES)
        text = part[: error.start].decode()
    is_json = text[:1] in ("{", "[") and not cut
    if is_json:
        pretty = pretty and (yield from stays_small.steps(part))
        yield
        try:
            formatted = msgspec.json.format(part, indent=INDENT if pretty else -1)
        except (msgspec.MsgspecError, RecursionError):
            is_json = False
        else:
            text = formatted.decode() if pretty else text
        yield
    shown = yield from readable.steps(text)
    return Text(shown, "json" if is_json else "text", len(data), cut)


def _decoded_text(data: bytes | None, limit: int, decoded: Decoded | None, *, pretty: bool) -> Steps[Text]:
    """A key or a value, by its schema if it names one."""
    if decoded is None or data is None:
        return (yield from text_of.steps(data, limit, pretty=pretty))
    if decoded.json is None:
        shown = Text(data[:HEX_BYTES].hex(" "), "binary", len(data), len(data) > HEX_BYTES)
        return shown._replace(schema=decoded.schema, why=decoded.why)
    shown = yield from text_of.steps(decoded.json, limit, pretty=pretty)
    return shown._replace(bytes=len(data), schema=decoded.schema)


@Stepwise
def shown_of(
    record: Record, *, whole: bool, key_by_schema: Decoded | None = None, value_by_schema: Decoded | None = None
) -> Steps[Shown]:
    """A record for a page."""
    headers_max = WHOLE_HEADERS_MAX if whole else HEADERS_MAX
    headers = tuple(
        (readable(name[:KEY_BYTES]), text_of(value, KEY_BYTES)) for name, value in islice(record.headers, headers_max)
    )
    if whole:
        yield
    key_max, value_max = (WHOLE_BYTES_MAX, WHOLE_BYTES_MAX) if whole else (KEY_BYTES, PREVIEW_BYTES)
    key = yield from _decoded_text(record.key, key_max, key_by_schema, pretty=False)
    if whole:
        yield
    value = yield from _decoded_text(record.value, value_max, value_by_schema, pretty=whole)
    return Shown(record.offset, record.timestamp, key, value, headers, len(record.headers) - len(headers))


def masked_by_schema(mask: Mask, decoded: Decoded | None, *, hidden: bool) -> Steps[Decoded | None]:
    """A decoded key or value with its fields hidden. None if it is hidden as a whole, or could not be decoded: an error may have
    its content. A mask of fields hides Avro and Protobuf as a whole: their JSON has names of union branches in between, and other
    forms of a field's name."""
    if decoded is None or hidden:
        return None
    if not mask.paths:
        return decoded
    if decoded.json is None or not decoded.is_stored_json:
        return None
    return decoded._replace(json=(yield from mask.part(decoded.json)))


def fits(record: Record, wanted: Browse) -> bool:
    """Whether a filter lets a record through."""
    if wanted.key is not None and record.key != wanted.key:
        return False
    if wanted.header is not None:
        name, part = wanted.header
        headers = record.headers[:FILTERED_HEADERS_MAX]
        if not any(own == name and part in (value or b"") for own, value in headers):
            return False
    return wanted.contains is None or (record.value is not None and wanted.contains in record.value)


async def shown_if_fits(raw: Record, wanted: Browse, decoding: Decoding | None, portion: Portion) -> Shown | None:
    """A stored record for a page, with its fields hidden; None if the filter does not let it through. Raises: as ``browse``."""
    mask = wanted.mask
    record = raw if mask is None else await run(masked.steps(mask, raw), portion)
    if not fits(record, wanted):
        return None
    key, value = (None, None) if decoding is None else await decoding.decoded(raw, portion)
    if mask is not None:
        key = await run(masked_by_schema(mask, key, hidden=mask.hides_key), portion)
        value = await run(masked_by_schema(mask, value, hidden=False), portion)
    steps = shown_of.steps(record, whole=wanted.whole, key_by_schema=key, value_by_schema=value)
    shown = await run(steps, portion)
    return shown if mask is None else replace(shown, value=shown.value._replace(bytes=len(raw.value or b"")))


async def browse(gateway: Gateway, wanted: Browse, decoding: Decoding | None = None) -> Browsed:
    """The records of a page. ``decoding``: by their schemas.

    Raises: RequestRejected (OFFSET_OUT_OF_RANGE, TOPIC_AUTHORIZATION_FAILED…), BrokerUnavailable, CorruptionError, RestError 429.
    """
    found = Browsed(next_offset=wanted.offset)
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + SCAN_MS_MAX / 1000
    async with reader(gateway, read_committed=wanted.read_committed) as consumer:
        consumer.assign({wanted.partition: Offset(wanted.offset)})
        portion = Portion()
        wait_ms = 0
        while True:
            for batch in await consumer.fetch_once(wanted.partition, max_wait_ms=wait_ms):
                records: Iterator[Record] = await batch_records(batch, portion)
                for raw in records:
                    if len(found.records) >= wanted.count:
                        return found
                    size = len(raw.value or b"")
                    found.scanned += size + len(raw.key or b"")
                    shown = await shown_if_fits(raw, wanted, decoding, portion)
                    if shown is not None:
                        if wanted.whole:
                            found.raw = raw
                        found.records.append(shown)
                    found.next_offset = raw.offset + 1
                    is_spent = portion.rests >= SCAN_PORTIONS_MAX or loop.time() >= ends_s
                    if is_spent or found.scanned >= SCANNED_BYTES_MAX:
                        return found
                    is_long = size > KIB or len(raw.headers) > MANY_HEADERS
                    if portion.spent_by() or (is_long and portion.spent()):
                        await portion.rest()
                found.next_offset = max(found.next_offset, int(batch.header.end_offset))
            found.next_offset = max(found.next_offset, int(consumer.position(wanted.partition)))
            end = consumer.visible_end(wanted.partition)
            found.at_end = end is not None and consumer.position(wanted.partition) >= end
            full = len(found.records) >= wanted.count or found.scanned >= SCANNED_BYTES_MAX
            if found.at_end or full or loop.time() >= ends_s:
                return found
            wait_ms = FETCH_WAIT_MS_MAX
