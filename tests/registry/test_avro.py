"""Avro: texts in, canonical texts out, and compatibility against the resolution of another library."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.schema import to_parsing_canonical_form
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from app.registry.compatibility import avro as compatibility
from app.registry.compatibility.levels import Level, incompatibilities
from app.registry.parsing import avro
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import Named, ParsedSchema, SchemaType, parse
from app.registry.refusals import SchemaInvalid, TooComplex


def read(schema: Any, *references: Any, is_new: bool = True) -> ParsedSchema:
    named = [Named(f"r{place}", json.dumps(one)) for place, one in enumerate(references)]
    return parse(SchemaType.AVRO, schema if isinstance(schema, str) else json.dumps(schema), named, is_new=is_new)


def record(*fields: Any, name: str = "User", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


# --- texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ('{"type":"string"}', '"string"'),
        ('  "string" ', '"string"'),
        ("string", '"string"'),
        ('{"type":{"type":"int"}}', '"int"'),
        (
            '{"type":"bytes","logicalType":"decimal","precision":4}',
            '{"type":"bytes","logicalType":"decimal","precision":4}',
        ),
        (
            '{"fields": [{"type": {"type": "string"}, "name": "a", "order": "ascending", "doc": "d"}],'
            ' "namespace": "x", "name": "R", "type": "record"}',
            '{"type":"record","name":"R","namespace":"x","fields":[{"name":"a","type":"string","doc":"d"}]}',
        ),
        (
            '{"type":"record","name":"x.R","fields":[{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}},'
            '{"name":"f","type":"x.E"}]}',
            '{"type":"record","name":"R","namespace":"x","fields":[{"name":"e","type":'
            '{"type":"enum","name":"E","symbols":["A"]}},{"name":"f","type":"E"}]}',
        ),
        ('["null", {"type": "array", "items": {"type": "long"}}]', '["null",{"type":"array","items":"long"}]'),
    ],
)
def test_the_canonical_text_has_the_shortest_form(sent: str, stored: str) -> None:
    assert read(sent).canonical == stored
    assert read(stored).canonical == stored


def test_names_with_and_without_a_namespace_have_one_normalised_text() -> None:
    one = read({"type": "record", "name": "a.R", "fields": [field("f", {"type": "fixed", "name": "F", "size": 2})]})
    other = read(
        {
            "type": "record",
            "name": "R",
            "namespace": "a",
            "fields": [field("f", {"type": "fixed", "name": "a.F", "size": 2})],
        }
    )
    assert one.normalized == other.normalized


def test_a_recursive_schema_is_read() -> None:
    tree = record(field("next", ["null", "Node"], default=None), name="Node")
    assert json.loads(read(tree).canonical) == tree


def test_a_referenced_type_is_written_as_its_name() -> None:
    parsed = read(record(field("e", "x.E")), {"type": "enum", "name": "x.E", "symbols": ["A"]})
    assert json.loads(parsed.canonical)["fields"] == [{"name": "e", "type": "x.E"}]


@pytest.mark.parametrize(
    "schema",
    [
        "",
        "nonsense",
        "[" * 1_000_000,
        '{"type":' * 100_000 + '"int"' + "}" * 100_000,
        json.dumps({"type": "record", "name": "R"}),
        json.dumps(record(field("a"), field("a"))),
        json.dumps(record(field("a b"))),
        json.dumps(record(field("a", "Missing"))),
        json.dumps(record(field("a", "int", default="x"))),
        json.dumps(record(field("a", "string", default=None))),
        json.dumps({"type": "enum", "name": "E", "symbols": ["A", "A"]}),
        json.dumps({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}),
        json.dumps({"type": "fixed", "name": "F", "size": -1}),
        json.dumps({"type": "fixed", "name": "F", "size": True}),
        json.dumps([["null"]]),
        json.dumps(["int", "int"]),
        json.dumps({"type": "array"}),
        json.dumps(7),
        '"\\ud800"',
        '{"type":"record","name":"R","fields":[{"name":"\\ud800","type":"int"}]}',
    ],
)
def test_a_text_that_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(SchemaInvalid):
        read(schema)


@pytest.mark.parametrize("chars", [4_096, 4_097])
def test_names_of_fields_and_symbols_of_new_schemas_are_bounded(chars: int) -> None:
    long = "x" * chars
    for schema in (record(field(long)), {"type": "enum", "name": "E", "symbols": ["A", long]}):
        assert read(schema, is_new=False).canonical
        if chars == 4_096:
            assert read(schema).canonical
        else:
            with pytest.raises(SchemaInvalid, match="more than 4096 characters"):
                read(schema)


def test_a_stored_schema_with_a_wrong_default_is_still_read() -> None:
    assert read(record(field("a", "int", default="x")), is_new=False).canonical


def _json(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "default", "namespace"])
    words = st.sampled_from(["record", "enum", "fixed", "array", "map", "int", "string", "null", "A", "a.B"])
    return st.lists(inner | words, max_size=4) | st.dictionaries(members, inner | words, max_size=5)


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), _json, max_leaves=12))
def test_any_json_is_a_schema_or_refused(value: Any) -> None:
    try:
        parsed = read(value)
    except SchemaInvalid:
        return
    assert read(parsed.canonical).canonical == parsed.canonical


# --- compatibility ----------------------------------------------------------------------------------------------------


def reasons(reader: Any, writer: Any) -> list[str]:
    return [
        one.kind for one in compatibility.findings(read(reader, is_new=False).model, read(writer).model, StepBudget())
    ]


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("long", "int", []),
        ("int", "long", ["TYPE_MISMATCH"]),
        ("bytes", "string", []),
        ("double", "string", ["TYPE_MISMATCH"]),
        (["null", "string"], "string", []),
        ("string", ["null", "string"], ["TYPE_MISMATCH"]),
        (["null", "string"], ["null", "int"], ["MISSING_UNION_BRANCH"]),
        (["long", "null"], ["null", "int"], []),
        (record(field("a"), field("b")), record(field("a")), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
        (record(field("a"), field("b", default="")), record(field("a")), []),
        (record(field("a")), record(field("a"), field("b")), []),
        (record(field("b", aliases=["a"])), record(field("a")), []),
        (record(name="x.User"), record(name="y.User"), []),
        (record(name="Person"), record(), ["NAME_MISMATCH"]),
        (record(name="Person", aliases=["User"]), record(), []),
        (record(name="y.Person", aliases=["x.User"]), record(name="x.User"), []),
        (
            {"type": "enum", "name": "E", "symbols": ["A"]},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            ["MISSING_ENUM_SYMBOLS"],
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A"], "default": "A"},
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            [],
        ),
        ({"type": "fixed", "name": "F", "size": 1}, {"type": "fixed", "name": "F", "size": 2}, ["FIXED_SIZE_MISMATCH"]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "string"}, ["TYPE_MISMATCH"]),
        ({"type": "map", "values": "long"}, {"type": "map", "values": "int"}, []),
    ],
)
def test_a_reader_takes_the_data_that_avro_resolves(reader: Any, writer: Any, expected: list[str]) -> None:
    assert reasons(reader, writer) == expected


def test_a_finding_names_the_path_in_words() -> None:
    inner = record(field("street"), field("town"), name="Address")
    new = read(record(field("home", {"type": "array", "items": inner})))
    old = read(record(field("home", {"type": "array", "items": record(field("street"), name="Address")})))
    (sentence,) = incompatibilities(Level.BACKWARD, new, [("version 1", old)])
    assert sentence == (
        "The new schema cannot read data of version 1. At field town of record Address, in the items of the array, in field home"
        " of record User: the writer's record has no such field, and the reader's field has no default"
        " (READER_FIELD_MISSING_DEFAULT_VALUE)."
    )


def test_recursive_schemas_are_compared() -> None:
    def tree(*more: Any) -> Any:
        return record(field("next", ["null", "Node"]), *more, name="Node")

    assert reasons(tree(), tree(field("v"))) == []
    assert reasons(tree(field("v")), tree()) == ["READER_FIELD_MISSING_DEFAULT_VALUE"]


def test_schemas_whose_comparison_would_take_long_are_refused() -> None:
    def chain(length: int) -> Any:
        fields = [field("f0", record(name="R0"))]
        fields += [field(f"f{n}", record(field("a", f"R{n - 1}"), name=f"R{n}")) for n in range(1, length)]
        return record(field("last", fields[-1]["type"]), *fields[:0], name="Top"), fields

    _, fields = chain(400)
    # Each record uses the one before it, so the comparison of the first field is 400 records deep.
    kinds = [one["type"] for one in fields]
    text = json.dumps(
        {"type": "record", "name": "Top", "fields": [field(f"g{n}", kind) for n, kind in enumerate(kinds)]}
    )
    model = avro.parse(text, [], StepBudget())[0]
    assert isinstance(model, avro.Record)
    with pytest.raises(TooComplex):
        compatibility.findings(
            model.fields[-1].type, avro.parse(text, [], StepBudget())[0].fields[-1].type, StepBudget()
        )  # type: ignore[union-attr]

    wide = [{"type": "fixed", "name": f"F{n}", "size": n} for n in range(2_000)]
    with pytest.raises(TooComplex):
        reasons(wide, [{**one, "name": f"G{one['size']}"} for one in wide])


def test_the_names_of_a_path_are_shortened() -> None:
    def nested(names: str, kind: str) -> Any:
        return record(field("f" * 4_000, kind), name=names)

    found = compatibility.findings(
        avro.parse(json.dumps(nested("R", "int")), [], StepBudget())[0],
        avro.parse(json.dumps(nested("R", "string")), [], StepBudget())[0],
        StepBudget(),
    )
    assert len(found[0].path) < 200


# --- against another library ------------------------------------------------------------------------------------------

_PRIMITIVES = st.sampled_from(["null", "boolean", "int", "long", "float", "double", "string", "bytes"])


@st.composite
def types(draw: st.DrawFn, depth: int = 0) -> Any:
    choice = draw(st.integers(0, 9 if depth < 3 else 3))
    match choice:
        case 4:
            return {"type": "array", "items": draw(types(depth + 1))}
        case 5:
            return {"type": "map", "values": draw(types(depth + 1))}
        case 6 | 7:
            names = draw(st.lists(st.sampled_from("abcd"), unique=True, max_size=3))
            fields = []
            for name in names:
                kind = draw(types(depth + 1))
                default = {"default": None} if kind == "null" or (isinstance(kind, list) and "null" in kind) else {}
                if kind == "int" and draw(st.booleans()):
                    default = {"default": 7}
                fields.append(field(name, kind, **default))
            name = f"R{depth}{draw(st.integers(0, 1))}"
            return {"type": "record", "name": name, "fields": fields}
        case 8:
            return draw(st.lists(_PRIMITIVES, min_size=1, max_size=3, unique=True))
        case 9:
            symbols = draw(st.lists(st.sampled_from("ABC"), min_size=1, unique=True))
            default = {"default": symbols[0]} if draw(st.booleans()) else {}
            return {"type": "enum", "name": f"E{depth}", "symbols": symbols, **default}
    return draw(_PRIMITIVES)


def value_of(draw: st.DrawFn, kind: Any) -> Any:
    if isinstance(kind, list):
        return value_of(draw, draw(st.sampled_from(kind)))
    name = kind["type"] if isinstance(kind, dict) else kind
    match name:
        case "null":
            return None
        case "boolean":
            return draw(st.booleans())
        case "int":
            return draw(st.integers(-(2**31), 2**31 - 1))
        case "long":
            return draw(st.integers(-(2**63), 2**63 - 1))
        case "float" | "double":
            return draw(st.floats(width=32, allow_nan=False, allow_infinity=False))
        case "string":
            return draw(st.text(max_size=3))
        case "bytes":
            return draw(st.text("abc", max_size=3)).encode()
        case "array":
            return [value_of(draw, kind["items"]) for _ in range(draw(st.integers(0, 2)))]
        case "map":
            return {key: value_of(draw, kind["values"]) for key in draw(st.sets(st.sampled_from("xy")))}
        case "enum":
            return draw(st.sampled_from(kind["symbols"]))
        case _:
            return {one["name"]: value_of(draw, one["type"]) for one in kind["fields"]}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_data_of_a_compatible_schema_is_readable(data: st.DataObject) -> None:
    writer = data.draw(types())
    reader = data.draw(st.one_of(types(), st.just(writer), evolved(writer)))
    try:
        parsed_writer, parsed_reader = read(writer), read(reader)
    except SchemaInvalid:
        assume(False)
        raise
    if compatibility.findings(parsed_reader.model, parsed_writer.model, StepBudget()):
        return
    value = data.draw(st.composite(lambda draw: value_of(draw, writer))())
    written = io.BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(json.loads(parsed_writer.canonical)), value)
    written.seek(0)
    fastavro.schemaless_reader(
        written,
        fastavro.parse_schema(json.loads(parsed_writer.canonical)),
        fastavro.parse_schema(json.loads(parsed_reader.canonical)),
    )


@st.composite
def evolved(draw: st.DrawFn, schema: Any) -> Any:
    """A schema with one of its parts changed."""
    if isinstance(schema, dict) and schema["type"] == "record":
        fields = [
            {**one, "type": draw(evolved(one["type"]))} if draw(st.booleans()) else one for one in schema["fields"]
        ]
        fields = [{key: part for key, part in one.items() if key != "default"} for one in fields]
        if draw(st.booleans()):
            fields.append(field("z", ["null", "int"], default=None))
        return {**schema, "fields": fields[draw(st.integers(0, 1)) :]}
    if isinstance(schema, str) and schema != "null":
        return draw(st.sampled_from([schema, ["null", schema], "double", "long"]))
    return schema


@settings(max_examples=150, deadline=None)
@given(types())
def test_the_canonical_text_means_the_same_to_another_library(schema: Any) -> None:
    try:
        canonical = read(schema).canonical
    except SchemaInvalid:
        assume(False)
        raise
    assert to_parsing_canonical_form(json.loads(canonical)) == to_parsing_canonical_form(schema)
