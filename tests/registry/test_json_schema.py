"""JSON Schema: texts, references and compatibility."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.registry.compatibility import json_schema as compatibility
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import Named, ParsedSchema, SchemaType, parse
from app.registry.refusals import SchemaInvalid, TooComplex


def read(schema: Any, **references: Any) -> ParsedSchema:
    named = [Named(name, json.dumps(other)) for name, other in references.items()]
    return parse(SchemaType.JSON, schema if isinstance(schema, str) else json.dumps(schema), named)


def reasons(reader: Any, writer: Any) -> list[str]:
    found = compatibility.findings(read(reader).model, read(writer).model, StepBudget())
    return [one.kind for one in found]


def test_the_canonical_text_keeps_the_order_and_the_normalised_one_sorts() -> None:
    parsed = read('{ "type": "object",  "properties": {"b": {"type": "string"}, "a": true} }')
    assert parsed.canonical == '{"type":"object","properties":{"b":{"type":"string"},"a":true}}'
    assert parsed.normalized == '{"properties":{"a":true,"b":{"type":"string"}},"type":"object"}'


@pytest.mark.parametrize(
    "schema",
    [
        "7",
        "[]",
        "{",
        '{"type":"strange"}',
        '{"type":7}',
        '{"properties":[]}',
        '{"pattern":"("}',
        '{"$ref":"#/definitions/absent"}',
        '{"$ref":"http://127.0.0.1:1/schema"}',
        '{"$ref":"file:///etc/passwd"}',
        '{"$ref":"http://[broken"}',
        '{"items":{"$ref":"other.json"}}',
        '{"$ref":"#/0"}',
    ],
)
def test_a_text_that_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(SchemaInvalid):
        read(schema)


def test_references_lead_to_parts_to_other_schemas_and_to_ids() -> None:
    assert read({"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}})
    assert read({"$ref": "other.json#/a"}, **{"other.json": {"a": True}})
    assert read({"$id": "http://x/y.json", "items": {"$ref": "z.json"}, "definitions": {"z": {"$id": "z.json"}}})
    assert reasons({"$ref": "#/definitions/a", "definitions": {"a": {"type": "string"}}}, {"type": "string"}) == []


def obj(*required: str, additional: Any = True, **properties: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        made["required"] = list(required)
    if additional is not True:
        made["additionalProperties"] = additional
    return made


S = {"type": "string"}
I = {"type": "integer"}  # noqa: E741
N = {"type": "number"}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        (True, S, []),
        ({}, S, []),
        (S, {}, ["TYPE_NARROWED"]),
        (N, I, []),
        (I, N, ["TYPE_NARROWED"]),
        ({"type": ["string", "null"]}, S, []),
        (S, {"type": ["string", "null"]}, ["TYPE_NARROWED"]),
        (obj(a=S), obj(a=S), []),
        (obj(a=I), obj(a=S), ["TYPE_NARROWED"]),
        (obj(a=S, b=S), obj(a=S), ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
        (obj(a=S, b={}), obj(a=S), []),
        (obj(additional=False, a=S, b=S), obj(additional=False, a=S), []),
        (obj("b", additional=False, a=S, b=S), obj(additional=False, a=S), ["REQUIRED_ATTRIBUTE_ADDED"]),
        (obj("b", additional=False, b={**S, "default": "x"}), obj(additional=False), []),
        (obj(a=S), obj(a=S, b=S), []),
        (obj(additional=False, a=S), obj(additional=False, a=S, b=S), ["PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL"]),
        (obj(additional=False, a=S), obj(a=S), ["ADDITIONAL_PROPERTIES_REMOVED"]),
        (obj(additional=S, a=S), obj(additional=S, a=S, b=S), []),
        (obj(additional=S, a=S), obj(additional=S, a=S, b=I), ["TYPE_NARROWED"]),
        (obj(additional=S, a=S, b=S), obj(additional=S, a=S), []),
        (obj(a=S), obj("a", a=S), []),
        (obj("a", a=S), obj(a=S), ["REQUIRED_ATTRIBUTE_ADDED"]),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, []),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, ["ENUM_ARRAY_NARROWED"]),
        ({"enum": ["a"]}, S, ["ENUM_ARRAY_NARROWED"]),
        ({"const": 1}, {"const": True}, ["TYPE_NARROWED"]),
        (S, {"enum": ["a"]}, []),
        ({**S, "maxLength": 5}, {**S, "maxLength": 4}, []),
        ({**S, "maxLength": 4}, {**S, "maxLength": 5}, ["MAX_LENGTH_DECREASED"]),
        ({**S, "maxLength": 4}, S, ["MAX_LENGTH_DECREASED"]),
        ({**I, "minimum": 1}, {**I, "minimum": 0}, ["MINIMUM_INCREASED"]),
        ({**I, "multipleOf": 2}, {**I, "multipleOf": 4}, []),
        ({**I, "multipleOf": 4}, {**I, "multipleOf": 2}, ["MULTIPLE_OF_CHANGED"]),
        ({**S, "pattern": "a"}, {**S, "pattern": "b"}, ["PATTERN_CHANGED"]),
        ({"type": "array", "items": N}, {"type": "array", "items": I}, []),
        ({"type": "array", "items": I}, {"type": "array", "items": N}, ["TYPE_NARROWED"]),
        ({"oneOf": [S, I]}, S, []),
        ({"oneOf": [S, I]}, {"oneOf": [S]}, []),
        ({"oneOf": [S]}, {"oneOf": [S, I]}, ["SUM_TYPE_NARROWED"]),
        ({"anyOf": [obj("a", a=S)]}, {"anyOf": [obj("a", a=S), obj("b", b=S)]}, ["SUM_TYPE_NARROWED"]),
        ({"allOf": [obj("a", a=S)]}, {"allOf": [obj("a", a=S), obj("b", b=S)]}, []),
        ({"allOf": [obj("a", a=S), obj("b", b=S)]}, {"allOf": [obj("a", a=S)]}, ["PRODUCT_TYPE_EXTENDED"]),
        ({"not": S}, {"not": S}, []),
        ({"not": S}, {"not": {"type": ["string", "null"]}}, []),
        ({"not": {"type": ["string", "null"]}}, {"not": S}, ["NOT_TYPE_NARROWED"]),
        ({"not": S}, I, ["NOT_TYPE_NARROWED"]),
    ],
)
def test_a_reader_takes_the_data_that_the_writer_may_write(reader: Any, writer: Any, expected: list[str]) -> None:
    assert reasons(reader, writer) == expected


def test_a_finding_names_the_path_in_words() -> None:
    def outer(inner: Any) -> Any:
        return obj(list={"type": "array", "items": obj(x=inner)})

    (found,) = compatibility.findings(read(outer(S)).model, read(outer(I)).model, StepBudget())
    assert found.path == "property x, in the items, in property list"


def test_recursive_schemas_are_compared() -> None:
    def tree(**more: Any) -> Any:
        return {"$ref": "#/definitions/n", "definitions": {"n": obj(next={"$ref": "#/definitions/n"}, **more)}}

    assert reasons(tree(), tree(v=S)) == []
    assert reasons(tree(v=S), tree(v=I)) == ["TYPE_NARROWED"]


def test_recursive_schemas_with_branches_are_compared() -> None:
    def tree(**more: Any) -> Any:
        node = obj(next={"oneOf": [{"type": "null"}, {"$ref": "#/definitions/n", "title": "next"}]}, **more)
        return {"$ref": "#/definitions/n", "definitions": {"n": node}}

    assert reasons(tree(), tree(v=S)) == []
    assert reasons(tree(v=S), tree(v=I)) == ["TYPE_NARROWED"]


def test_a_reference_to_itself_and_a_wide_comparison_are_refused() -> None:
    circle = {"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}}
    with pytest.raises(TooComplex):
        reasons(circle, circle)
    wide = [{"type": "object", "required": [str(n)], "properties": {str(n): S}} for n in range(500)]
    with pytest.raises(TooComplex):
        reasons({"oneOf": wide}, {"anyOf": [{**one, "required": []} for one in wide]})


def test_a_circle_of_negations_is_refused() -> None:
    def circle(**more: Any) -> Any:
        return {"$ref": "#/$defs/a", "$defs": {"a": {"not": {"$ref": "#/$defs/a"}, **more}}}

    with pytest.raises(TooComplex):
        reasons(circle(), circle(minLength=2))


def test_large_values_that_are_compared_again_and_again_are_refused() -> None:
    def schema(**more: Any) -> Any:
        parts = {f"p{n}": {"$ref": "#/$defs/x", **more} for n in range(3_000)}
        return {"$defs": {"x": {"if": {"enum": list(range(20_000))}}}, "properties": parts}

    with pytest.raises(TooComplex):
        reasons(schema(), schema(minLength=1))


def test_branches_that_repeat_many_properties_are_refused() -> None:
    def schema(name: str) -> Any:
        branches = [{"properties": {name: {}}} for _ in range(6_000)]
        return {"properties": {f"a{n}": {} for n in range(5_000)}, "anyOf": branches}

    with pytest.raises(TooComplex):
        reasons(schema("b"), schema("c"))


def test_a_writer_without_data_is_read_by_all() -> None:
    assert reasons(S, {"allOf": [False, {"type": "array", "minItems": 1}]}) == []


def test_a_type_that_is_no_name_does_not_end_a_comparison() -> None:
    stored = parse(SchemaType.JSON, '{"type":[{"type":"string"},"integer"]}', is_new=False)
    assert [one.kind for one in compatibility.findings(read(I).model, stored.model, StepBudget())] == []


def test_the_names_of_a_path_are_shortened() -> None:
    name = "p" * 10_000
    found = compatibility.findings(read(obj(**{name: S})).model, read(obj(**{name: I})).model, StepBudget())
    assert len(found[0].path) < 200


_SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([True, S, I, N, {"enum": ["a", 1]}, {**S, "maxLength": 2}, {**I, "minimum": 1}, {"type": "null"}]),
    lambda inner: st.one_of(
        st.builds(lambda a, extra: obj(additional=extra, a=a), inner, st.booleans()),
        st.builds(lambda a, b: obj("a", a=a, b=b), inner, inner),
        st.builds(lambda items: {"type": "array", "items": items}, inner),
        st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner),
        st.builds(lambda a, b: {"allOf": [a, b]}, inner, inner),
    ),
    max_leaves=4,
)
_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["", "a", "long", 0, 1, 1.5, None, True]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(_SCHEMAS, _SCHEMAS, _VALUES)
def test_data_of_a_compatible_schema_is_valid(reader: Any, writer: Any, value: Any) -> None:
    if reasons(reader, writer):
        return
    if jsonschema.Draft7Validator(writer).is_valid(value):
        assert jsonschema.Draft7Validator(reader).is_valid(value), (reader, writer, value)
