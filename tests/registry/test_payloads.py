"""Payloads by their schemas: Avro's encoding, JSON by JSON Schema, and the id before them."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any
from uuid import UUID

import fastavro
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.registry.parsing.schemas import Named, SchemaType, parse
from app.registry.payloads import json_schema
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.prefix import Prefix, Side, read_prefix
from app.registry.payloads.reading import read_payload

AVRO = {
    "type": "record",
    "name": "r",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": "long"},
        {"name": "f", "type": "float"},
        {"name": "d", "type": "double"},
        {"name": "b", "type": "boolean"},
        {"name": "s", "type": "string"},
        {"name": "raw", "type": "bytes"},
        {"name": "u", "type": ["null", "string", "long"]},
        {"name": "e", "type": {"type": "enum", "name": "e1", "symbols": ["A", "B"]}},
        {"name": "x", "type": {"type": "fixed", "name": "x1", "size": 2}},
        {"name": "many", "type": {"type": "array", "items": "long"}},
        {"name": "by", "type": {"type": "map", "values": "string"}},
    ],
}
VALUES = st.fixed_dictionaries(
    {
        "i": st.integers(-(2**31), 2**31 - 1),
        "l": st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(width=32, allow_nan=False),
        "d": st.floats(allow_nan=False),
        "b": st.booleans(),
        "s": st.text(),
        "raw": st.binary(max_size=20).map(lambda data: data),
        "u": st.one_of(st.none(), st.text(), st.integers(-(2**63), 2**63 - 1)),
        "e": st.sampled_from(["A", "B"]),
        "x": st.binary(min_size=2, max_size=2),
        "many": st.lists(st.integers(-(2**63), 2**63 - 1)),
        "by": st.dictionaries(st.text(), st.text()),
    }
)


def avro(schema: Any, data: bytes) -> Any:
    return read_payload(parse(SchemaType.AVRO, json.dumps(schema)), data, 0)


def encoded(schema: Any, value: Any) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    return written.getvalue()


@given(VALUES)
def test_a_value_that_another_library_encodes_is_read(value: dict[str, Any]) -> None:
    shown = {name: str(one, "latin-1") if isinstance(one, bytes) else one for name, one in value.items()}
    assert avro(AVRO, encoded(AVRO, value)) == shown


@given(st.binary(max_size=60))
def test_bytes_that_are_no_value_raise_one_error(data: bytes) -> None:
    with suppress(PayloadInvalid):
        avro(AVRO, data)


@given(VALUES, st.integers(0, 200), st.integers(1, 255))
def test_a_changed_byte_gives_another_value_or_one_error(value: dict[str, Any], place: int, change: int) -> None:
    data = bytearray(encoded(AVRO, value))
    data[place % len(data)] ^= change
    with suppress(PayloadInvalid):
        avro(AVRO, bytes(data))


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        ("string", b"\x04a", "2 bytes are named where 1 are left"),
        ("string", b"\x02\xff", "a string is not UTF-8"),
        ("long", b"\x02\x00", "1 bytes follow the value"),
        ("long", b"\x80", "the payload ends early"),
        ("long", b"\x80" * 11, "a number is too long"),
        ("int", b"\x80\x80\x80\x80\x20", "4294967296 is no int"),
        ("boolean", b"\x02", "the byte 2 is no boolean"),
        (["null", "long"], b"\x04", "the union has no place 2"),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, b"\x02", "the enum e has no place 1"),
        # An array says that it has 2^40 nulls, which take no byte.
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x80\x01", "the payload needs too many steps"),
    ],
)
def test_a_payload_of_another_form_is_refused_with_the_reason(schema: Any, data: bytes, why: str) -> None:
    with pytest.raises(PayloadInvalid, match=why):
        avro(schema, data)


def test_a_value_of_too_many_levels_is_refused() -> None:
    link = {"type": "record", "name": "n", "fields": [{"name": "next", "type": ["null", "n"]}]}
    assert avro(link, b"\x02\x02\x00") == {"next": {"next": {"next": None}}}
    with pytest.raises(PayloadInvalid, match="more than 150 levels"):
        avro(link, b"\x02" * 5_000 + b"\x00")


# --- JSON -----------------------------------------------------------------------------------------------------------------

TREE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "exclusiveMaximum": 10, "multipleOf": 2},
        "s": {"type": ["string", "null"], "minLength": 1, "maxLength": 3},
        "kind": {"enum": ["a", 1, None]},
        "one": {"const": True},
        "list": {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3, "uniqueItems": True},
        "pair": {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False},
        "child": {"$ref": "#"},
        "any": {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]},
        "xor": {"oneOf": [{"type": "integer"}, {"minimum": 5}]},
        "not": {"not": {"type": "string"}},
        "has": {"contains": {"const": 1}},
        "cond": {"if": {"type": "integer"}, "then": {"minimum": 5}, "else": {"type": "string"}},
        "named": {"propertyNames": {"maxLength": 2}, "minProperties": 1, "maxProperties": 2},
        "deps": {"dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
        "text": {"pattern": "^a.?c"},
        "open": {
            "patternProperties": {"^a": {"type": "integer"}, "c$": {"minimum": 2}},
            "properties": {"d": {"type": "string"}},
            "additionalProperties": {"type": "null"},
        },
    },
    "additionalProperties": False,
}
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 12),
    st.sampled_from([0.5, 2.0, 7.5]),
    st.sampled_from(["", "a", "abc", "abcd"]),
)
JSON_VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(["a", "b", "c", "d", "abc"]), inner, max_size=3),
        st.dictionaries(st.sampled_from([*TREE["properties"], "other"]), inner, max_size=4),  # type: ignore[misc]
    ),
    max_leaves=12,
)


def fault(schema: Any, value: Any, *named: Named) -> str | None:
    try:
        read_payload(parse(SchemaType.JSON, json.dumps(schema), named), json.dumps(value).encode(), 0)
    except PayloadInvalid as error:
        return str(error)
    return None


@given(JSON_VALUES)
def test_a_value_is_refused_if_and_only_if_another_library_refuses_it(value: Any) -> None:
    expected = jsonschema.Draft7Validator(TREE).is_valid(value)
    assert (fault(TREE, value) is None) == expected


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"n": 11}, "at /n: 11 is too great"),
        ({"child": {"child": {"n": 1}}}, "at /child/child/n: 1 is no multiple of 2"),
        ({"x": 1}, "the property 'x' is not allowed"),
        ({"list": [1, 1.0]}, "at /list: an item comes twice"),
    ],
)
def test_a_fault_names_the_place_in_the_value(value: Any, why: str) -> None:
    assert fault(TREE, value) == why


def test_bytes_that_are_not_json_are_refused() -> None:
    schema = parse(SchemaType.JSON, "{}")
    with pytest.raises(PayloadInvalid, match="the payload is not JSON"):
        read_payload(schema, b"{", 0)
    assert read_payload(schema, b'\x00\x00\x00\x00\x01{"a":1}', 5) == {"a": 1}


def test_a_reference_to_another_schema_is_followed() -> None:
    named = Named("other.json", '{"type": "integer"}')
    assert fault({"$ref": "other.json"}, 1, named) is None
    assert fault({"$ref": "other.json"}, "a", named) == "the value is of type string, not integer"


def test_a_regular_expression_that_others_repeat_for_hours_ends_soon() -> None:
    hostile = {"pattern": "^(a+)+$", "patternProperties": {"^(a+)+$": False}, "additionalProperties": False}
    assert fault(hostile, "a" * 50_000 + "b") == "the text does not match the pattern '^(a+)+$'"
    assert fault(hostile, {"a" * 50 + "b": 1}) == f"the property {'a' * 50 + 'b'!r} is not allowed"
    assert fault(hostile, {"aaa": 1}) == "at /aaa: no value is allowed"


def test_a_pattern_that_cannot_be_checked_refuses_no_value_and_leaves_open_which_properties_it_names() -> None:
    behind = {"pattern": "(?<=a)b", "patternProperties": {"(?=a)": {"type": "null"}}, "additionalProperties": False}
    assert fault(behind, "c") is None
    assert fault(behind, {"c": 1}) is None


def test_a_text_that_is_too_long_for_a_pattern_is_refused_also_inside_of_not() -> None:
    large = {"pattern": "(?:a{1,40}b?){1,20}c"}
    for schema in (large, {"not": large}, {"anyOf": [large, {}]}):
        why = fault(schema, "a" * 200_000)
        assert why is not None
        assert "is too long for the pattern" in why


def test_a_format_is_checked_by_its_form() -> None:
    schema = {"properties": {"at": {"format": "date-time"}, "n": {"format": "date"}, "x": {"format": "of mine"}}}
    assert fault(schema, {"at": "2024-05-06T07:08:09Z", "n": 7, "x": "y"}) is None
    assert fault(schema, {"at": "soon"}) == "at /at: the text has not the format 'date-time'"


def test_a_schema_that_doubles_the_work_with_each_level_is_refused_after_bounded_steps() -> None:
    doubling = {
        "definitions": {
            f"d{n}": {"allOf": [{"$ref": f"#/definitions/d{n + 1}"}, {"$ref": f"#/definitions/d{n + 1}"}]}
            for n in range(40)
        }
        | {"d40": {}},
        "$ref": "#/definitions/d0",
    }
    assert fault(doubling, 1) == "the payload needs too many steps to be checked"


def test_a_schema_that_refers_to_itself_for_the_same_value_is_refused() -> None:
    assert fault({"$ref": "#"}, 1) == "the value has more than 150 levels"


@pytest.mark.parametrize(
    ("hostile", "value", "why"),
    [
        ({"dependentRequired": {"a": [[]]}}, {"a": 1}, "the property 'a' needs that a value of type array names"),
        ({"required": [{}]}, {}, "the property that a value of type object names is missing"),
        ({"type": [{}, []]}, 1, "the value is of type integer, not unknown, unknown"),
        ({"enum": {}, "items": 1, "minItems": "a", "allOf": {}, "multipleOf": [], "$id": 7}, [1], None),
        ({"$ref": "http://[#x"}, 1, "the check failed with ValueError"),
        ({"$ref": "#/default/enum/\u00b2", "enum": [1]}, 1, "the check failed with ValueError"),
    ],
)
def test_a_part_that_only_a_reference_makes_a_schema_raises_one_error(
    hostile: Any, value: Any, why: str | None
) -> None:
    assert fault({"$ref": "#/default", "default": hostile}, value) == why


def test_values_whose_hashes_a_caller_chose_have_other_hashes_where_they_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[Any] = []
    real = json_schema._Checking.frozen

    def kept(checking: Any, value: Any, depth: int) -> Any:
        made = real(checking, value, depth)
        frozen.append(made)
        return made

    monkeypatch.setattr(json_schema._Checking, "frozen", kept)
    numbers = [1 + place * (2**61 - 1) for place in range(200)]
    assert len(set(map(hash, numbers))) == 1, "Python's own hashes of them are equal"
    assert fault({"uniqueItems": True}, numbers) is None
    assert len(set(map(hash, frozen))) == len(frozen) == 200


@pytest.mark.parametrize(
    ("items", "twice"),
    [
        ([1, True, "1", "number", None, 0, False, 1.5], False),
        ([1, 1.0], True),
        ([0, -0.0], True),
        ([10**20, 1e20], True),
        ([2**64 + 1, float(2**64)], False),
        ([[1.5], [1.50]], True),
        ([{"a": 10**300}, {"a": 10**300 + 1}], False),
        ([{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], True),
    ],
)
def test_numbers_are_equal_by_their_values_and_are_no_booleans_or_texts(items: list[Any], twice: bool) -> None:
    assert fault({"uniqueItems": True}, items) == ("an item comes twice" if twice else None)


def test_a_long_list_of_types_costs_steps() -> None:
    dear = {"definitions": {"t": {"default": {"type": ["x"] * 16_000 + ["integer"]}}}}
    dear["allOf"] = [{"$ref": "#/definitions/t/default"}] * 50  # type: ignore[assignment]
    assert fault(dear, 1) == "the payload needs too many steps to be checked"


# --- ids ------------------------------------------------------------------------------------------------------------------


def test_an_id_or_a_guid_is_read_where_bytes_begin_with_one() -> None:
    guid = UUID("01234567-89ab-cdef-0123-456789abcdef")
    assert read_prefix(b"\x00\x00\x00\x01\x02rest") == Prefix(258, 5)
    assert read_prefix(b"\x01" + guid.bytes + b"rest") == Prefix(str(guid), 17)
    assert read_prefix(b"xx\x00\x00\x00\x00\x07", 2) == Prefix(7, 5)
    assert read_prefix(b"\x00\x00\x00\x00\x07", 0, 4) is None
    assert read_prefix(b"\x00\x00\x00\x00") is None
    assert read_prefix(b"\x01" + guid.bytes[:-1]) is None
    assert read_prefix(b"\x02\x00\x00\x00\x07") is None
    assert read_prefix(b"") is None
    assert (Side.KEY.header, Side.VALUE.header) == ("__key_schema_id", "__value_schema_id")
