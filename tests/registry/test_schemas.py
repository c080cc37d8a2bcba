"""Limits of schemas of all types."""

from __future__ import annotations

import pytest

from app.registry.parsing.limits import DEPTH_MAX, SCHEMA_BYTES_MAX, Steps, read_json
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
    steps = Steps(2)
    steps.spend(2)
    with pytest.raises(TooComplex):
        steps.spend()
