"""A value in JSON to the payload that its schema says, and back. Tests: ``tests/registry/test_encoding.py``.

A payload is the part of a record's key or value behind the id of its schema (``framed``). Each type of schemas has one case in
``encode`` and one in ``decode``.
"""

from __future__ import annotations

from struct import Struct
from types import ModuleType
from typing import Any, Final, assert_never

import msgspec

from app.registry.encoding import avro
from app.registry.encoding.avro import PAYLOAD_BYTES_MAX
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import ParsedSchema, SchemaType
from app.registry.payloads import avro as avro_payloads
from app.registry.payloads import json_schema
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.prefix import ID_BYTES
from app.registry.payloads.reading import STEPS_A_BYTE, STEPS_LEAST
from app.registry.refusals import TooComplex

DATA_BYTES_MAX: Final = 256 * 1024
"""Of a value in JSON that is encoded. JSON is read in one call, which holds the lock of the interpreter."""
SHOWN_STEPS_MAX: Final = 4_000_000
"""Parts of a payload that is decoded. Each takes up to 200 bytes of memory."""
SHOWN_CHARS_LEAST: Final = 1024 * 1024
SHOWN_CHARS_A_BYTE: Final = 16
SHOWN_CHARS_MAX: Final = 8 * 1024 * 1024
"""Characters of the JSON of a payload, counted before its value is made: names and symbols of the schema come with each of its
parts. JSON is written in one call."""
MAGIC: Final = 0
_PREFIX: Final = Struct(">BI")


class StepsSpent(Exception):
    """A value needs more steps than the caller gave."""


def framed(schema_id: int, payload: bytes) -> bytes:
    """A payload behind the id of its schema, as serializers of Confluent's registry write it."""
    return _PREFIX.pack(MAGIC, schema_id) + payload


def encode(schema: ParsedSchema, data: bytes, steps_max: int | None = None) -> bytes:
    """The payload of a value.

    Args:
        steps_max: fewer steps than its bytes may need. Then the caller tries again without this limit.

    Raises: PayloadInvalid; StepsSpent, if ``steps_max`` is given.
    """
    value = read_json_value(data)
    whole = STEPS_LEAST + STEPS_A_BYTE * len(data)
    steps = StepBudget(whole if steps_max is None else min(steps_max, whole))
    try:
        match schema.kind:
            case SchemaType.AVRO:
                return avro.write_value(schema.model, value, steps)
            case SchemaType.JSON:
                json_schema.read_payload(schema.model, data, 0, steps)
                return msgspec.json.format(data, indent=-1)
            case SchemaType.PROTOBUF:
                made: bytes = _protobuf().write_value(schema.model, value, steps)
                return made
            case _:
                assert_never(schema.kind)
    except TooComplex:
        if steps_max is not None:
            raise StepsSpent from None
        raise PayloadInvalid("the value needs too many steps") from None
    except RecursionError:
        raise PayloadInvalid("the value has too many levels") from None


def decode(schema: ParsedSchema, content: bytes, start: int = ID_BYTES, *, steps_max: int | None = None) -> bytes:
    """The JSON of the payload that ``content`` holds from ``start`` on. ``steps_max`` and raises: as ``encode``."""
    size = len(content) - start
    if size > PAYLOAD_BYTES_MAX:
        raise PayloadInvalid(f"the payload has more than {PAYLOAD_BYTES_MAX} bytes")
    whole = min(STEPS_LEAST + STEPS_A_BYTE * size, SHOWN_STEPS_MAX)
    steps = StepBudget(whole if steps_max is None else min(steps_max, whole))
    chars_max = min(SHOWN_CHARS_LEAST + SHOWN_CHARS_A_BYTE * size, SHOWN_CHARS_MAX)
    try:
        match schema.kind:
            case SchemaType.AVRO:
                value = avro_payloads.read_payload(schema.model, content, start, steps, shown_chars_max=chars_max)
                return msgspec.json.encode(value)
            case SchemaType.JSON:
                return _compact(content[start:])
            case SchemaType.PROTOBUF:
                return msgspec.json.encode(_protobuf().read_value(schema.model, content, start, steps, chars_max))
            case _:
                assert_never(schema.kind)
    except TooComplex:
        if steps_max is not None:
            raise StepsSpent from None
        raise PayloadInvalid("the payload needs too many steps") from None
    except RecursionError:
        raise PayloadInvalid("the payload has too many levels") from None


def _protobuf() -> ModuleType:
    """The module that needs the package `protobuf`, which a schema of this type has loaded already."""
    from app.registry.encoding import protobuf

    return protobuf


def _compact(data: bytes) -> bytes:
    """A JSON text without spaces. No value is made of it: that would hold the lock of the interpreter. Raises: PayloadInvalid."""
    try:
        data.decode()
        msgspec.json.decode(data, type=msgspec.Raw)
        return msgspec.json.format(data, indent=-1)
    except (msgspec.DecodeError, UnicodeError):
        raise PayloadInvalid("the value is not JSON") from None


def read_json_value(data: bytes) -> Any:
    """A JSON text's value. Raises: PayloadInvalid."""
    if len(data) > DATA_BYTES_MAX:
        raise PayloadInvalid(f"the value has more than {DATA_BYTES_MAX} bytes of JSON")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        raise PayloadInvalid("the value is not JSON") from None
    except RecursionError:
        raise PayloadInvalid("the value has too many levels") from None
