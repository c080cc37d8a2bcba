"""Limits of schemas of all types."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from app.registry.parsing.limits import DEPTH_MAX, SCHEMA_BYTES_MAX, StepBudget, read_json
from app.registry.parsing.schemas import SchemaType, parse
from app.registry.refusals import SchemaInvalid, TooComplex


@pytest.mark.parametrize("kind", SchemaType)
@pytest.mark.parametrize(
    "text", ["", "{", "\ud800", "[" * 300_000, '{"a":' * 70_000, "(" * 300_000, "message M {" * 20_000]
)
def test_hostile_texts_are_refused(kind: SchemaType, text: str) -> None:
    with pytest.raises(SchemaInvalid):
        parse(kind, text)


@pytest.mark.parametrize("kind", SchemaType)
def test_a_long_text_is_refused(kind: SchemaType) -> None:
    with pytest.raises(SchemaInvalid, match="longer"):
        parse(kind, " " * (SCHEMA_BYTES_MAX + 1))


def test_json_is_read_to_the_depth_that_is_allowed() -> None:
    assert read_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    with pytest.raises(SchemaInvalid, match="levels"):
        read_json("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))


def test_steps_end() -> None:
    steps = StepBudget(2)
    steps.spend(2)
    with pytest.raises(TooComplex):
        steps.spend()


def _record(name: str, *fields: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": name, "fields": fields, **more})


_ENUM: Final = {"type": "enum", "name": "E", "symbols": [f"s{n}" for n in range(20_000)]}
_FIXED: Final = [{"name": f"f{n}", "type": {"type": "fixed", "size": 1, "name": f"x{n}"}} for n in range(2_500)]
_DRAFT_4: Final = "http://json-schema.org/draft-04/schema#"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        # 2,500 names that each have a namespace of 200,000 characters: a gigabyte
        (SchemaType.AVRO, _record("R", *_FIXED, namespace="n" * 200_000)),
        # 15,000 values that are each looked for in 20,000 symbols
        (
            SchemaType.AVRO,
            _record("R", {"name": "f", "type": {"type": "array", "items": _ENUM}, "default": ["s19999"] * 15_000}),
        ),
        # an address of 100,000 characters, and 10,000 that are relative to it
        (
            SchemaType.JSON,
            json.dumps(
                {"$id": "http://a/" + "a/" * 50_000, "$defs": {str(n): {"$id": f"x{n}"} for n in range(10_000)}}
            ),
        ),
        # 30,000 values of two types, each compared with each
        (SchemaType.JSON, json.dumps({"$schema": _DRAFT_4, "enum": [n if n % 2 else str(n) for n in range(30_000)]})),
        (SchemaType.JSON, json.dumps({"pattern": "a{1,99999999999999999999}"})),
        (SchemaType.JSON, json.dumps({"pattern": "(" * 100_000 + ")" * 100_000})),
        (SchemaType.JSON, json.dumps({"$schema": {}})),
        (SchemaType.JSON, json.dumps({"$schema": 5})),
    ],
    ids=["namespace", "default", "address", "values", "repetition", "groups", "draft-object", "draft-number"],
)
def test_a_schema_that_would_cost_much_memory_or_time_is_refused(kind: SchemaType, text: str) -> None:
    with pytest.raises(SchemaInvalid):
        parse(kind, text)
