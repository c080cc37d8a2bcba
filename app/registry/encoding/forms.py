"""A value in JSON to the payload that its schema says, and back. Tests: ``tests/registry/test_encoding.py``.

A payload is the part of a record's key or value behind the id of its schema (``framed``). Each type of schemas has one case in
``encode`` and one in ``decode``.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

import msgspec

from app.registry.encoding import avro
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import ParsedSchema, SchemaType
from app.registry.payloads import avro as avro_payloads
from app.registry.payloads import json_schema
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.prefix import ID_BYTES
from app.registry.payloads.reading import READABLE, STEPS_A_BYTE, STEPS_LEAST
from app.registry.refusals import TooComplex

SERVED: Final = READABLE
"""Types whose values can be encoded and decoded."""
VALUE_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of a value in JSON, and of a payload. Its model in memory may be a hundred times as large."""
MAGIC: Final = 0
_PREFIX: Final = Struct(">BI")


def framed(schema_id: int, payload: bytes) -> bytes:
    """A payload behind the id of its schema, as serializers of Confluent's registry write it."""
    return _PREFIX.pack(MAGIC, schema_id) + payload


def encode(schema: ParsedSchema, data: bytes) -> bytes:
    """The payload of a value. Raises: PayloadInvalid."""
    value = read_json_value(data)
    steps = StepBudget(STEPS_LEAST + STEPS_A_BYTE * len(data))
    try:
        match schema.kind:
            case SchemaType.AVRO:
                return avro.write_value(schema.model, value, steps)
            case SchemaType.JSON:
                json_schema.read_payload(schema.model, data, 0, steps)
                return msgspec.json.format(data, indent=-1)
    except TooComplex:
        raise PayloadInvalid("the value needs too many steps") from None
    except RecursionError:
        raise PayloadInvalid("the value has too many levels") from None
    raise PayloadInvalid(f"values of type {schema.kind} cannot be encoded")


def decode(schema: ParsedSchema, content: bytes, start: int = ID_BYTES) -> bytes:
    """The JSON of the payload that ``content`` holds from ``start`` on. Raises: PayloadInvalid."""
    if len(content) - start > VALUE_BYTES_MAX:
        raise PayloadInvalid(f"the payload has more than {VALUE_BYTES_MAX} bytes")
    steps = StepBudget(STEPS_LEAST + STEPS_A_BYTE * (len(content) - start))
    try:
        match schema.kind:
            case SchemaType.AVRO:
                return msgspec.json.encode(
                    avro_payloads.read_payload(schema.model, content, start, steps, names_branches=True)
                )
            case SchemaType.JSON:
                data = content[start:]
                read_json_value(data)
                return msgspec.json.format(data, indent=-1)
    except TooComplex:
        raise PayloadInvalid("the payload needs too many steps") from None
    except RecursionError:
        raise PayloadInvalid("the payload has too many levels") from None
    raise PayloadInvalid(f"payloads of type {schema.kind} cannot be decoded")


def read_json_value(data: bytes) -> Any:
    """A JSON text's value. Raises: PayloadInvalid."""
    if len(data) > VALUE_BYTES_MAX:
        raise PayloadInvalid(f"the value has more than {VALUE_BYTES_MAX} bytes")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        raise PayloadInvalid("the value is not JSON") from None
    except RecursionError:
        raise PayloadInvalid("the value has too many levels") from None
