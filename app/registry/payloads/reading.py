"""Reads a payload by its schema, of any type. Tests: ``tests/registry/test_payloads.py``."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import ParsedSchema, SchemaType
from app.registry.payloads import avro, json_schema
from app.registry.payloads.faults import PayloadInvalid
from app.registry.refusals import TooComplex

READABLE: Final = (SchemaType.AVRO, SchemaType.JSON)
"""Types whose payloads are read without another package."""
STEPS_LEAST: Final = 10_000
STEPS_A_BYTE: Final = 8
"""Steps that a payload may need: parts of the schema for each part of the value."""


def read_payload(schema: ParsedSchema, data: bytes, start: int, indexes: bytes | None = None) -> Any:
    """The value of a payload, as JSON can say it.

    Args:
        start: where the payload begins, after the schema's id.
        indexes: the bytes that follow the id in a header, which name the message of a Protobuf file; None if the id is in the
            payload.

    Raises: PayloadInvalid.
    """
    if schema.kind is SchemaType.PROTOBUF:
        return _protobuf().read_payload(schema.model, data, start, indexes)
    steps = StepBudget(STEPS_LEAST + STEPS_A_BYTE * (len(data) - start))
    try:
        if schema.kind is SchemaType.AVRO:
            return avro.read_payload(schema.model, data, start, steps)
        return json_schema.read_payload(schema.model, data, start, steps)
    except TooComplex:
        raise PayloadInvalid("the payload needs too many steps to be checked") from None


def check_payload(schema: ParsedSchema, data: bytes, start: int, indexes: bytes | None = None) -> None:
    """As ``read_payload``, without the value. Raises: PayloadInvalid."""
    if schema.kind is SchemaType.PROTOBUF:
        _protobuf().check_payload(schema.model, data, start, indexes)
    else:
        read_payload(schema, data, start)


def _protobuf() -> ModuleType:
    """The module that needs the package `protobuf`, which a schema of this type has loaded already."""
    from app.registry.payloads import protobuf

    return protobuf
