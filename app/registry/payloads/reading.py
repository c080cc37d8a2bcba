"""Reads a payload by its schema, of any type. Tests: ``tests/registry/test_payloads.py``."""

from __future__ import annotations

from typing import Any, Final

from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import ParsedSchema, SchemaType
from app.registry.payloads import avro, json_schema
from app.registry.payloads.faults import PayloadInvalid
from app.registry.refusals import TooComplex

READABLE: Final = (SchemaType.AVRO, SchemaType.JSON)
"""Types whose payloads can be read."""
STEPS_LEAST: Final = 10_000
STEPS_A_BYTE: Final = 8
"""Steps that a payload may need: parts of the schema for each part of the value."""


def read_payload(schema: ParsedSchema, data: bytes, start: int) -> Any:
    """The value of a payload, as JSON can say it. ``start``: where the payload begins, after the schema's id.

    Raises: PayloadInvalid.
    """
    steps = StepBudget(STEPS_LEAST + STEPS_A_BYTE * (len(data) - start))
    try:
        match schema.kind:
            case SchemaType.AVRO:
                return avro.read_payload(schema.model, data, start, steps)
            case SchemaType.JSON:
                return json_schema.read_payload(schema.model, data, start, steps)
    except TooComplex:
        raise PayloadInvalid("the payload needs too many steps to be checked") from None
    raise PayloadInvalid(f"payloads of type {schema.kind} cannot be read")
