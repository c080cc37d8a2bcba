"""Keys and values in the JSON of REST v2, by their embedded format: to the bytes of a record, and back.

Tests: ``tests/http/rest_v2/test_produce.py``, ``tests/http/rest_v2/test_consumers.py``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from app.core.errors import ProtocolError, clause
from app.core.turns import Portion, Steps, run
from app.core.units import TopicPartition
from app.http.consumers.settings import Format
from app.http.errors import RestError
from app.http.record_json import base64_steps, checked_json, text_steps
from app.http.record_rendering import in_base64_steps
from app.http.registry.record_schemas import (
    CONVERSION_FAILED,
    SCHEMA_INVALID,
    RecordSchema,
    RecordSchemas,
    SchemaUnknown,
    refusal_of,
)
from app.records.record import Record
from app.registry.parsing.schemas import SchemaType
from app.registry.payloads.faults import PayloadInvalid
from app.registry.refusals import ParserMissing, RegistryRefusal
from app.registry.subjects import Subject

KEY_SCHEMA_MISSING: Final = 42201
VALUE_SCHEMA_MISSING: Final = 42202
NULL: Final = b"null"
OWN_TURN_BYTES: Final = 1024 * 1024
"""A value of more bytes is checked in a turn of its own."""
SCHEMA_TYPES: Final = {
    Format.AVRO: SchemaType.AVRO,
    Format.JSON_SCHEMA: SchemaType.JSON,
    Format.PROTOBUF: SchemaType.PROTOBUF,
}


class SchemaAsked(NamedTuple):
    """The schema that a request names for its keys or its values."""

    side: str
    """``key`` or ``value``."""
    schema_id: int | None
    text: str | None

    @property
    def is_absent(self) -> bool:
        return self.schema_id is None and self.text is None


async def schema_of(schemas: RecordSchemas, topic: str, form: Format, asked: SchemaAsked) -> RecordSchema | None:
    """The schema that a request names; None if it names none. Raises: RestError 408, 422, 501; FirnError."""
    if asked.is_absent:
        return None
    kind = SCHEMA_TYPES[form]
    try:
        if asked.text is not None:
            found = await schemas.by_text(Subject(".", f"{topic}-{asked.side}"), kind, asked.text)
        else:
            assert asked.schema_id is not None
            found = await schemas.by_id(asked.schema_id)
    except (SchemaUnknown, ParserMissing, RegistryRefusal) as error:
        raise refusal_of(error) from None
    if found.model.kind is not kind:
        raise RestError(
            422,
            f"Schema {found.id} is of type {found.model.kind}, and the body has values of {kind}. Send the type of the schema.",
            error_code=SCHEMA_INVALID,
        )
    return found


async def content_of(
    form: Format,
    side: str,
    index: int,
    data: bytes,
    schema: RecordSchema | None,
    schemas: RecordSchemas,
    portion: Portion,
) -> bytes | None:
    """The bytes of a key or value in a request; None for null. Raises: RestError 422, which names the record."""
    if data == NULL:
        return None
    what = f"The {side} of record {index}"
    if form in SCHEMA_TYPES:
        if schema is None:
            code = KEY_SCHEMA_MISSING if side == "key" else VALUE_SCHEMA_MISSING
            raise RestError(
                422, f"{what} needs a schema. Send {side}_schema or {side}_schema_id in the body.", error_code=code
            )
        try:
            return await schemas.encode(schema, data, portion)
        except PayloadInvalid as error:
            raise RestError(
                422, f"{what} does not fit its schema: {clause(error)}.", error_code=CONVERSION_FAILED
            ) from None
    if len(data) > OWN_TURN_BYTES:
        await portion.rest()
    try:
        if form is Format.JSON:
            return checked_json(data, f"{side} of record {index}")
        return await run(_base64(data, what), portion)
    except ProtocolError as error:
        raise RestError(422, str(error), error_code=CONVERSION_FAILED) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise RestError(
            422, f"{what} must be a string in base64, since the body has binary values.", error_code=CONVERSION_FAILED
        ) from None


def _base64(data: bytes, what: str) -> Steps[bytes]:
    text = yield from text_steps(data)
    return (yield from base64_steps(text, what))


# --- records that were read -------------------------------------------------------------------------------------------


class ReadRecord(msgspec.Struct):
    """A record of a response."""

    topic: str
    key: msgspec.Raw
    value: msgspec.Raw
    partition: int
    offset: int


class RecordUnreadable(Exception):
    """A stored key or value is not of the instance's format. Its argument is a sentence."""


async def shown(
    form: Format, partition: TopicPartition, record: Record, schemas: RecordSchemas, portion: Portion
) -> bytes:
    """The JSON of a record. Raises: RecordUnreadable; RestError 501; FirnError."""
    parts = []
    for side, content in (("key", record.key), ("value", record.value)):
        try:
            parts.append(msgspec.Raw(await _shown(form, content, schemas, portion)))
        except (PayloadInvalid, SchemaUnknown) as error:
            text = str(error)
            raise RecordUnreadable(
                f"The {side} at offset {record.offset} of partition {partition} cannot be shown as {form.value}: "
                f"{(text[:1].lower() + text[1:]).rstrip('.')}. Set the position behind it."
            ) from None
        except ParserMissing as error:
            raise refusal_of(error) from None
    key, value = parts
    return msgspec.json.encode(ReadRecord(partition.topic, key, value, partition.partition, record.offset))


async def _shown(form: Format, content: bytes | None, schemas: RecordSchemas, portion: Portion) -> bytes:
    if content is None:
        return NULL
    if form in SCHEMA_TYPES:
        return await schemas.decode(content, portion)
    if len(content) > OWN_TURN_BYTES:
        await portion.rest()
    if form is Format.BINARY:
        return await run(in_base64_steps(content), portion)
    try:
        content.decode()
        msgspec.json.decode(content, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        raise PayloadInvalid("it is not JSON") from None
    return content
