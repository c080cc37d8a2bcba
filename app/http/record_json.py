"""One record of ``POST …/records`` and its receipt: JSON to bytes and back. Pure.

A key or value that a schema encodes is a ``SchemaPart`` first: ``app/http/registry/record_encoding.py`` makes its bytes.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from app.client.producer import Acknowledged
from app.core.errors import ProtocolError, clause
from app.core.limits import KIB, MIB
from app.core.turns import Portion, Steps, run, whole
from app.core.units import TimestampMs
from app.http.errors import RestAnswer
from app.registry.subjects import SUBJECT_CHARS_MAX

Request = TypeVar("Request", bound="RecordRequest")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_NULL: Final = b"null"
_NO_HEADERS: Final = b"[]"
LONG_BYTES: Final = 64 * KIB
"""A longer record is read in portions."""
OWN_TURN_BYTES: Final = MIB
"""The decoder takes up to 4 ns a byte, and cannot rest: a record of more bytes is decoded in a turn of its own."""
BASE64_A_STEP: Final = MIB
HEADERS_A_STEP: Final = 100
TIMES_KEPT: Final = 1_024
"""Texts of times that are kept: records that come together have few different ones."""
HEADERS_MAX: Final = 10_000
"""Headers of a record, and braces in them. Reading 100,000 headers, which Kafka allows, would hold up other requests."""


ENTRIES_MAX: Final = 1_000
"""Entries of a batch."""
EntryId = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]

# Parts of the schemas for which the types say less than the code below checks.
SCHEMA_TYPES: Final = ("AVRO", "JSONSCHEMA", "PROTOBUF")
"""Types of keys and values that have a schema."""
_TYPE: Final = {
    "enum": ["BINARY", "JSON", "STRING", *SCHEMA_TYPES, None],
    "description": "If it is left out: the type of the schema that the other members name, or JSON if they name none.",
}
_DATA: Final = "Any JSON; a string for STRING; base64 for BINARY; null for a tombstone."
_HEADERS: Final = {
    "type": ["array", "null"],
    "items": {"$ref": "#/components/schemas/RecordHeader"},
    "maxItems": HEADERS_MAX,
}


class Strategy(Enum):
    """How the subject of a key or value is named."""

    TOPIC = "TOPIC_NAME"
    RECORD = "RECORD_NAME"
    TOPIC_RECORD = "TOPIC_RECORD_NAME"


class RecordData(msgspec.Struct, forbid_unknown_fields=True):
    """A key or a value."""

    type: Annotated[str | None, msgspec.Meta(extra_json_schema=_TYPE)] = None
    """``JSON`` (the default), ``STRING``, ``BINARY`` (base64), ``AVRO``, ``JSONSCHEMA`` or ``PROTOBUF``."""
    data: Annotated[msgspec.Raw, msgspec.Meta(description=_DATA)] | msgspec.UnsetType = msgspec.UNSET
    subject: Annotated[str, msgspec.Meta(max_length=SUBJECT_CHARS_MAX)] | None = None
    """The subject of the schema, if the strategy does not name it."""
    subject_name_strategy: Strategy | None = None
    """``TOPIC_NAME`` (the default), ``RECORD_NAME`` or ``TOPIC_RECORD_NAME``."""
    schema_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    schema_version: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    """A version of the subject. Without it, ``schema_id`` and ``schema``, the newest version counts."""
    schema: str | None = None
    """The text of a schema of ``type``, which is registered if the subject does not have it."""


class RecordHeader(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    value: Annotated[str | None, msgspec.Meta(extra_json_schema={"contentEncoding": "base64"})] = None
    """Base64."""


class RecordRequest(msgspec.Struct, forbid_unknown_fields=True):
    partition_id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    headers: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_HEADERS)] | msgspec.UnsetType = msgspec.UNSET
    """A list of ``RecordHeader``, or null."""
    key: RecordData | None = None
    value: RecordData | None = None
    timestamp: str | int | None = None
    """ISO 8601, or milliseconds since 1970."""


class BatchEntry(RecordRequest, forbid_unknown_fields=True, kw_only=True):
    """A record of ``POST …/records:batch``."""

    id: EntryId
    """Chosen by the sender, unique in its batch."""


class BatchBody(msgspec.Struct):
    """The body of ``POST …/records:batch``, which is read entry by entry."""

    entries: Annotated[list[BatchEntry], msgspec.Meta(min_length=1, max_length=ENTRIES_MAX)]


class _EntryId(msgspec.Struct):
    """Of an entry that may be malformed otherwise."""

    id: EntryId


class PartSchema(NamedTuple):
    """The schema of a key or value, as its receipt names it."""

    id: int
    subject: str | None
    """None if the subject of the strategy does not have the schema."""
    version: int | None


class Part(msgspec.Struct, frozen=True):
    """Key or value as it goes into the log. ``type`` and size come back in the receipt; None is null."""

    type: str
    content: bytes | None
    schema: PartSchema | None = None


class NewRecord(msgspec.Struct, frozen=True):
    """A record as the producer takes it."""

    partition: int | None
    headers: tuple[tuple[str, bytes | None], ...]
    key: Part
    value: Part
    timestamp: TimestampMs | None


class SchemaPart(NamedTuple):
    """A key or value that is encoded by a schema of the registry. At most one of id, version and text names it."""

    type: str | None
    """One of ``SCHEMA_TYPES``; None for the type of the schema."""
    data: bytes
    """In JSON."""
    subject: str | None
    strategy: Strategy
    id: int | None
    version: int | None
    text: str | None


class SchemaRecord(NamedTuple):
    """A record of which a key, a value or both are encoded by schemas."""

    record: NewRecord
    """With null in the place of parts that are not encoded yet."""
    key: SchemaPart | None
    value: SchemaPart | None


class PartReceipt(msgspec.Struct, omit_defaults=True):
    """A key or value in a receipt: its type, its size in bytes, and its schema."""

    type: str
    size: int
    subject: str | None = None
    schema_id: int | None = None
    schema_version: int | None = None


class Receipt(msgspec.Struct, omit_defaults=True):
    error_code: int
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str
    key: PartReceipt | None = None
    value: PartReceipt | None = None


class BatchSuccess(Receipt, kw_only=True):
    """The receipt of an entry that was stored."""

    id: str


class BatchFailure(msgspec.Struct):
    """The receipt of an entry that was not stored."""

    id: str
    error_code: int
    message: str


class BatchReceipts(msgspec.Struct):
    successes: list[BatchSuccess]
    failures: list[BatchFailure]


_decoder: Final = msgspec.json.Decoder(RecordRequest, strict=False)
"""Numbers may be texts, as in other bodies."""
_entry_decoder: Final = msgspec.json.Decoder(BatchEntry, strict=False)
_id_decoder: Final = msgspec.json.Decoder(_EntryId)
_text_decoder: Final = msgspec.json.Decoder(str)
TEXT_A_STEP: Final = 1 << 20
"""Bytes of a JSON string that are read at once: some 4 ms where all are escapes."""
_WHOLE_CHARACTERS: Final = re.compile(
    rb"(?:[^\\\"]++|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u(?![dD][89abAB])....|\\[^u])*+", re.DOTALL
)
"""Bytes of a JSON string, and escapes that are whole: those of a character beyond 16 bits are two."""
_headers_decoder: Final = msgspec.json.Decoder(list[RecordHeader])
_encoder: Final = msgspec.json.Encoder()


def decode_record(data: bytes) -> NewRecord | SchemaRecord:
    """The record that a JSON object describes. Raises: ProtocolError, whose text is for the sender."""
    request = _decode(_decoder, data)
    key, value = request.key, request.value
    if request.headers is msgspec.UNSET and _is_json(key) and _is_json(value):
        is_utf8 = data.isascii()
        return NewRecord(
            request.partition_id,
            (),
            _NULL_PART if key is None else _json_part(key, "key", is_utf8),
            _NULL_PART if value is None else _json_part(value, "value", is_utf8),
            None if request.timestamp is None else read_timestamp(request.timestamp),
        )
    return whole(_request_steps(request))


async def record_of(data: bytes) -> NewRecord | SchemaRecord:
    """As ``decode_record``; a long object is read in portions."""
    return await _read(_record_steps(_decoder, data), data)


async def record_of_entry(data: bytes) -> NewRecord | SchemaRecord:
    """The record that an entry of a batch describes, as ``record_of``."""
    return await _read(_record_steps(_entry_decoder, data), data)


async def _read(steps: Steps[NewRecord | SchemaRecord], data: bytes) -> NewRecord | SchemaRecord:
    if len(data) <= LONG_BYTES:
        return whole(steps)
    portion = Portion()
    if len(data) > OWN_TURN_BYTES:
        await portion.rest()
    return await run(steps, portion)


def decode_entry_id(data: bytes) -> str:
    """The id of an entry. Its other fields are not decoded. Raises: ProtocolError."""
    try:
        return _id_decoder.decode(data).id
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The id of an entry cannot be read: {clause(error)}.") from None


def _decode(decoder: msgspec.json.Decoder[Request], data: bytes) -> Request:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The record cannot be read: {clause(error)}.") from None


def _record_steps(decoder: msgspec.json.Decoder[Request], data: bytes) -> Steps[NewRecord | SchemaRecord]:
    request = _decode(decoder, data)
    yield
    return (yield from _request_steps(request))


def _request_steps(request: RecordRequest) -> Steps[NewRecord | SchemaRecord]:
    headers = yield from _headers(request.headers)
    key = yield from _part(request.key, "key")
    value = yield from _part(request.value, "value")
    timestamp = read_timestamp(request.timestamp)
    if isinstance(key, Part) and isinstance(value, Part):
        return NewRecord(request.partition_id, headers, key, value, timestamp)
    plain_key, asked_key = (key, None) if isinstance(key, Part) else (_NULL_PART, key)
    plain_value, asked_value = (value, None) if isinstance(value, Part) else (_NULL_PART, value)
    return SchemaRecord(
        NewRecord(request.partition_id, headers, plain_key, plain_value, timestamp), asked_key, asked_value
    )


def receipt(cluster_id: str, key: PartReceipt | None, value: PartReceipt | None, stored: Acknowledged) -> bytes:
    """The receipt of a stored record: one line of JSON."""
    partition, offset, timestamp = stored
    message = Receipt(
        200,
        cluster_id,
        partition.topic,
        partition.partition,
        offset,
        format_timestamp(timestamp),
        key,
        value,
    )
    return _encoder.encode(message) + b"\n"


def batch_success(
    id: str, cluster_id: str, key: PartReceipt | None, value: PartReceipt | None, stored: Acknowledged
) -> BatchSuccess:
    """The receipt of a stored entry."""
    return BatchSuccess(
        200,
        cluster_id,
        stored.partition.topic,
        stored.partition.partition,
        stored.offset,
        format_timestamp(stored.timestamp),
        key,
        value,
        id=id,
    )


def batch_receipts(successes: list[BatchSuccess], failures: list[BatchFailure]) -> bytes:
    """The answer to a batch."""
    return _encoder.encode(BatchReceipts(successes, failures))


def error_receipt(answer: RestAnswer) -> bytes:
    """The receipt of a record that was not stored: one line of JSON."""
    return answer.body() + b"\n"


@lru_cache(TIMES_KEPT)
def format_timestamp(timestamp: TimestampMs) -> str:
    """ISO 8601 in UTC with milliseconds. A time that no calendar has is written as its number."""
    try:
        moment = _EPOCH + timestamp * _MILLISECOND
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_NULL_PART: Final = Part("JSON", None)


def _is_json(data: RecordData | None) -> bool:
    return data is None or ((data.type is None or data.type == "JSON") and not _names_schema(data))


def _names_schema(data: RecordData) -> bool:
    return not (
        data.schema_id is None
        and data.schema_version is None
        and data.schema is None
        and data.subject is None
        and data.subject_name_strategy is None
    )


def _json_part(data: RecordData, what: str, is_utf8: bool) -> Part:
    """As ``_part``, of JSON. ``is_utf8``: the whole record is."""
    if data.data is msgspec.UNSET or (raw := bytes(data.data)) == _NULL:
        return _NULL_PART
    return Part("JSON", raw if is_utf8 else checked_json(raw, what))


def _part(data: RecordData | None, what: str) -> Steps[Part | SchemaPart]:
    if data is None:
        return Part("JSON", None)
    kind = "JSON" if data.type is None else data.type.upper()
    raw = _NULL if data.data is msgspec.UNSET else bytes(data.data)
    if kind in SCHEMA_TYPES or _names_schema(data):
        asked = _schema_part(data, raw, what)
        return Part(kind, None) if raw == _NULL else asked
    if raw == _NULL:
        content = None
    elif kind == "JSON":
        content = checked_json(raw, what)
    elif kind in ("STRING", "BINARY"):
        try:
            text = yield from text_steps(raw)
        except UnicodeDecodeError:  # the record's decoder leaves raw values as they are
            raise ProtocolError(f"The {what}'s data is not valid UTF-8.") from None
        except msgspec.MsgspecError:
            raise ProtocolError(f"The {what}'s data must be a JSON string, since its type is {kind}.") from None
        yield
        content = text.encode() if kind == "STRING" else (yield from base64_steps(text, f"The {what}'s data"))
    else:
        raise ProtocolError(
            f"The {what}'s type {data.type!r} is not served: use BINARY, JSON, STRING, {', '.join(SCHEMA_TYPES)}."
        )
    return Part(kind, content)


def _schema_part(data: RecordData, raw: bytes, what: str) -> SchemaPart:
    """Raises: ProtocolError if the members do not name one schema."""
    kind = None if data.type is None else data.type.upper()
    strategy = data.subject_name_strategy or Strategy.TOPIC
    named = [one for one in ("schema_id", "schema_version", "schema") if getattr(data, one) is not None]
    if kind is not None and kind not in SCHEMA_TYPES:
        raise ProtocolError(
            f"The {what} names a schema, and its type {kind[:20]!r} has none. Send one of {', '.join(SCHEMA_TYPES)}, or no type."
        )
    if len(named) > 1:
        raise ProtocolError(f"The {what} names its schema by {' and by '.join(named)}. Send one of them.")
    if data.subject is not None and data.subject_name_strategy is not None:
        raise ProtocolError(f"The {what} has a subject and a subject_name_strategy. Send one of them.")
    if data.schema is not None and kind is None:
        raise ProtocolError(
            f"The {what} has the text of a schema without a type. Send {', '.join(SCHEMA_TYPES)} as type."
        )
    if strategy is not Strategy.TOPIC and not {"schema_id", "schema"}.intersection(named):
        raise ProtocolError(
            f"The {what} has the strategy {strategy.value}, which needs a schema. Send schema_id or schema, or a subject."
        )
    return SchemaPart(kind, raw, data.subject, strategy, data.schema_id, data.schema_version, data.schema)


def checked_json(raw: bytes, what: str) -> bytes:
    """A raw value of a decoder, if it is UTF-8. Raises: ProtocolError."""
    # The record's decoder holds raw values to JSON's grammar, but not to UTF-8.
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise ProtocolError(f"The {what}'s data is not valid UTF-8.") from None
    return raw


def _headers(raw: msgspec.Raw | msgspec.UnsetType) -> Generator[None, None, tuple[tuple[str, bytes | None], ...]]:
    if raw is msgspec.UNSET:
        return ()
    data = bytes(raw)
    if data in (_NO_HEADERS, b"null"):
        return ()
    if data.count(b"{") > HEADERS_MAX:
        raise ProtocolError(f"The record has more than {HEADERS_MAX} headers. Send fewer headers.")
    try:
        headers = _headers_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"The record's headers cannot be read: {clause(error)}.") from None
    found: list[tuple[str, bytes | None]] = []
    for header in headers:
        value = header.value
        if value is not None:
            found.append((header.name, (yield from base64_steps(value, f"The value of header {header.name!r}"))))
        else:
            found.append((header.name, None))
        if not len(found) % HEADERS_A_STEP:
            yield
    return tuple(found)


def text_steps(raw: bytes) -> Generator[None, None, str]:
    """A JSON string, by a generator that yields after every ``TEXT_A_STEP`` bytes: escapes are slow to read. Raises:
    UnicodeDecodeError, msgspec.MsgspecError."""
    pieces: list[str] = []
    begin, last = 1, len(raw) - 1
    if raw[:1] == b'"':
        while last - begin > TEXT_A_STEP:
            found = _WHOLE_CHARACTERS.match(raw, begin, begin + TEXT_A_STEP)
            end = begin if found is None else found.end()
            while end > begin and raw[end] & 0xC0 == 0x80:  # within a character of several bytes
                end -= 1
            if end == begin:
                break  # what comes next is no character: the decoder says so
            pieces.append(_text_decoder.decode(b'"%b"' % raw[begin:end]))
            begin = end
            yield
    pieces.append(_text_decoder.decode(b'"' + raw[begin:] if pieces else raw))
    return "".join(pieces)


def base64_steps(text: str, what: str) -> Generator[None, None, bytes]:
    """The decoded bytes of a text in base64. ``what`` begins the sentence of an error. Raises: ProtocolError."""
    if text.find("=", 0, max(0, len(text) - 2)) >= 0:  # padding within the text would end a piece of it
        raise ProtocolError(f"{what} is not base64.")
    pieces = []
    try:
        for start in range(0, len(text), BASE64_A_STEP):
            pieces.append(b64decode(text[start : start + BASE64_A_STEP], validate=True))
            if len(text) > BASE64_A_STEP:
                yield
    except (binascii.Error, ValueError):
        raise ProtocolError(f"{what} is not base64.") from None
    return b"".join(pieces)


def read_timestamp(text: str | int | None) -> TimestampMs | None:
    """The time in a request. Raises: ProtocolError."""
    if text is None:
        return None
    if isinstance(text, int):
        moment_ms = text
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ProtocolError(f"The timestamp {text!r} is not of the form 2024-05-06T07:08:09.123Z.") from None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment_ms = (moment - _EPOCH) // _MILLISECOND
    if not 0 <= moment_ms < 1 << 53:
        raise ProtocolError(f"The timestamp {text!r} is out of range.")
    return TimestampMs(moment_ms)


def part_receipt(part: Part) -> PartReceipt | None:
    """The type and size of ``part`` for its receipt, None for null. The content itself is not kept."""
    if part.content is None:
        return None
    if part.schema is None:
        return PartReceipt(part.type, len(part.content))
    return PartReceipt(part.type, len(part.content), part.schema.subject, part.schema.id, part.schema.version)
