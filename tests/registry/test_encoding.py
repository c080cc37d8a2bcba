"""Values in JSON to the bytes of their schema and back, beside fastavro."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.registry.encoding import forms
from app.registry.encoding.avro import write_value
from app.registry.parsing.avro import Array, Enum, Fixed, Type, Union
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.protobuf import building
from app.registry.parsing.schemas import ParsedSchema, SchemaType, parse
from app.registry.payloads import avro as avro_payloads
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.prefix import read_prefix

RECORD = {
    "type": "record",
    "name": "R",
    "namespace": "a.b",
    "fields": [
        {"name": "i", "type": "int"},
        {"name": "l", "type": "long"},
        {"name": "d", "type": "double"},
        {"name": "b", "type": "boolean"},
        {"name": "s", "type": "string"},
        {"name": "y", "type": "bytes"},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}},
        {"name": "a", "type": {"type": "array", "items": "long"}},
        {"name": "m", "type": {"type": "map", "values": ["null", "string"]}},
        {"name": "u", "type": ["null", "R", "E", "double"]},
    ],
}


def avro(schema: Any) -> ParsedSchema:
    return parse(SchemaType.AVRO, json.dumps(schema))


SCHEMA = avro(RECORD)
PARSED = fastavro.parse_schema(RECORD)


def latin(size: int | None = None) -> st.SearchStrategy[str]:
    characters = st.characters(max_codepoint=255)
    return st.text(characters, max_size=8) if size is None else st.text(characters, min_size=size, max_size=size)


def records(inner: st.SearchStrategy[Any] | None = None) -> st.SearchStrategy[dict[str, Any]]:
    """Values of the record. Those within it have no union of named types, which fastavro does not read in a recursive type."""
    union: st.SearchStrategy[Any] = st.none()
    if inner is not None:
        union |= st.builds(lambda one: {"a.b.E": one}, st.sampled_from("AB"))
        union |= st.builds(lambda one: {"double": one}, st.floats(allow_nan=False, allow_infinity=False))
        union |= st.builds(lambda one: {"a.b.R": one}, inner)
    return st.fixed_dictionaries(
        {
            "i": st.integers(-(2**31), 2**31 - 1),
            "l": st.integers(-(2**63), 2**63 - 1),
            "d": st.floats(allow_nan=False, allow_infinity=False),
            "b": st.booleans(),
            "s": st.text(max_size=8),
            "y": latin(),
            "f": latin(3),
            "e": st.sampled_from("AB"),
            "a": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
            "m": st.dictionaries(
                st.text(max_size=3), st.none() | st.builds(lambda one: {"string": one}, st.text(max_size=3)), max_size=3
            ),
            "u": union,
        }
    )


@given(value=records(records()))
def test_a_value_of_avro_is_written_as_fastavro_writes_it_and_read_back(value: dict[str, Any]) -> None:
    (datum,) = fastavro.json_reader(io.StringIO(json.dumps(value)), PARSED)
    wanted = io.BytesIO()
    fastavro.schemaless_writer(wanted, PARSED, datum)
    payload = forms.encode(SCHEMA, json.dumps(value).encode())
    assert payload == wanted.getvalue()
    assert json.loads(forms.decode(SCHEMA, forms.framed(7, payload))) == value


@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    try:
        shown = forms.decode(SCHEMA, data, 0)
    except PayloadInvalid:
        return
    assert isinstance(json.loads(shown), dict)


def test_a_payload_of_a_billion_items_without_bytes_is_refused_soon() -> None:
    nulls = avro({"type": "array", "items": "null"})
    billion = forms.encode(avro("long"), b"1000000000")
    with pytest.raises(PayloadInvalid, match="too many steps"):
        forms.decode(nulls, billion + b"\0", 0)


def test_a_short_payload_that_long_names_or_symbols_make_too_long_to_show_is_refused() -> None:
    long = "x" * 100_000
    thousand = forms.encode(avro("long"), b"1000")
    nulls = {"type": "record", "name": "R", "fields": [{"name": long, "type": "null"}]}
    symbols = {"type": "enum", "name": "E", "symbols": [long]}
    for items, content in ((nulls, b""), (symbols, b"\0" * 1_000)):
        old = parse(SchemaType.AVRO, json.dumps({"type": "array", "items": items}), is_new=False)
        with pytest.raises(PayloadInvalid, match="its JSON has more than"):
            forms.decode(old, thousand + content + b"\0", 0)
        few = forms.encode(avro("long"), b"3") + content[:3] + b"\0"
        assert 300_000 < len(forms.decode(old, few, 0)) < 301_000


def test_characters_are_counted_before_the_values_that_bring_them_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A value of a million parts is given up long before its end."""
    fields = [{"name": "n" * 4_000, "type": "null"}]
    schema = avro({"type": "array", "items": {"type": "record", "name": "R", "fields": fields}})
    payload = forms.encode(avro("long"), b"1000000") + b"\0"
    read: list[int] = []
    original = avro_payloads._Reading.value

    def counted(self: Any, kind: Type, depth: int) -> Any:
        read.append(depth)
        return original(self, kind, depth)

    monkeypatch.setattr(avro_payloads._Reading, "value", counted)
    with pytest.raises(PayloadInvalid, match="its JSON has more than"):
        avro_payloads.read_payload(schema.model, payload, 0, StepBudget(4_000_000), shown_chars_max=400_000)
    assert len(read) < 400


def test_a_payload_may_be_shown_as_a_text_of_many_times_its_bytes() -> None:
    schema = avro(
        {
            "type": "array",
            "items": {"type": "record", "name": "R", "fields": [{"name": "is_small", "type": "boolean"}]},
        }
    )
    value = [{"is_small": True}] * 50_000
    content = forms.encode(avro("long"), b"50000") + b"\1" * 50_000 + b"\0"
    assert json.loads(forms.decode(schema, content, 0)) == value


@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_default_values_do_not_make_a_payload_without_bounds(kind: str) -> None:
    item = {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind, "default": "x" * 100_000}]}
    schema = avro({"type": "array", "items": item})
    with pytest.raises(PayloadInvalid, match="more than 2097152 bytes in Avro"):
        forms.encode(schema, json.dumps([{}] * 1_000).encode())
    assert 300_000 < len(forms.encode(schema, b"[{},{},{}]")) < 301_000


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
def test_the_json_of_a_value_is_bounded(kind: SchemaType) -> None:
    schema = parse(kind, '{"type":"string"}')
    longest = forms.DATA_BYTES_MAX - 2
    assert forms.encode(schema, json.dumps("x" * longest).encode())
    with pytest.raises(PayloadInvalid, match="more than 262144 bytes of JSON"):
        forms.encode(schema, json.dumps("x" * (longest + 1)).encode())


@pytest.mark.parametrize(
    "data", [b"", b"[1 2]", b'{"a":1', b'"\xff"', b'"\\x"', b"1 1", b"[" * 100_000 + b"]" * 100_000]
)
def test_a_payload_that_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadInvalid):
        forms.decode(parse(SchemaType.JSON, "{}"), data, 0)


def test_a_value_that_needs_more_steps_than_the_caller_gave_is_told_apart_from_a_wrong_one() -> None:
    schema = avro({"type": "array", "items": "int"})
    data = json.dumps([1] * 100).encode()
    payload = forms.encode(schema, data, 101)
    assert json.loads(forms.decode(schema, payload, 0, steps_max=101)) == [1] * 100
    with pytest.raises(forms.StepsSpent):
        forms.encode(schema, data, 100)
    with pytest.raises(forms.StepsSpent):
        forms.decode(schema, payload, 0, steps_max=100)
    with pytest.raises(PayloadInvalid):
        forms.encode(schema, b'["x"]', 100)


def test_deep_values_are_refused() -> None:
    deep = avro({"type": "record", "name": "D", "fields": [{"name": "d", "type": ["null", "D"]}]})
    text = b'{"d":{"D":' * 5_000 + b'{"d":null}' + b"}}" * 5_000
    with pytest.raises(PayloadInvalid, match="levels"):
        forms.encode(deep, text)
    with pytest.raises(PayloadInvalid, match="levels"):
        forms.decode(deep, b"\2" * 5_000 + b"\0", 0)


@pytest.mark.parametrize(
    ("schema", "value", "wanted"),
    [
        ("int", 2**31, "a number of type int"),
        ("int", 1.5, "a number of type int"),
        ("int", True, "a number of type int"),
        ("boolean", 1, "true or false"),
        ("string", None, "a string"),
        ("bytes", "€", "characters 0 to 255"),
        ({"type": "fixed", "name": "F", "size": 2}, "abc", "2 characters"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "a symbol of E"),
        (["null", "string"], "x", "null, or an object with one member"),
        (["null", "string"], {"int": 1}, "a branch of the union"),
        ({"type": "array", "items": "int"}, [1, "x"], r"\[1\] must be"),
        ({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}, {}, "the field a is missing"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]},
            {"a": 1, "b": 2},
            "has a member 'b'",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(schema: Any, value: Any, wanted: str) -> None:
    with pytest.raises(PayloadInvalid, match=wanted):
        forms.encode(avro(schema), json.dumps(value).encode())


@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_of_400_digits_is_refused_where_a_float_or_double_is_wanted(kind: str, sign: int) -> None:
    with pytest.raises(PayloadInvalid, match=f"a number of type {kind}"):
        forms.encode(avro(kind), str(sign * 10**400).encode())


class Counted(str):
    """A name that counts how often it is compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.mark.parametrize("kind", ["enum", "union"])
def test_a_value_of_a_long_enum_or_union_is_not_compared_with_each_of_its_names(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Counted, "comparisons", 0)
    names = [Counted(f"a.S{number}") for number in range(1_000)]
    if kind == "enum":
        one: Type = Enum("E", tuple(names), None, None, (), {})
        values: list[Any] = ["a.S999"] * 1_000
    else:
        one = Union(tuple(Fixed(name, 0, None, (), {}) for name in names))
        values = [{"a.S999": ""}] * 500 + [{"S999": ""}] * 500
    made = write_value(Array(one), values, StepBudget())
    assert made == b"\xd0\x0f" + b"\xce\x0f" * 1_000 + b"\0"
    assert Counted.comparisons < 5_000


def test_a_short_name_that_two_branches_have_names_neither_and_a_full_name_goes_first() -> None:
    fixed = {"type": "fixed", "size": 0}
    schema = avro(
        [{**fixed, "name": "a.F"}, {**fixed, "name": "b.F"}, {**fixed, "name": "c.G"}, {**fixed, "name": "G"}]
    )
    for name, place in (("a.F", 0), ("b.F", 1), ("c.G", 2), ("G", 3)):
        assert forms.encode(schema, json.dumps({name: ""}).encode()) == bytes([2 * place])
    with pytest.raises(PayloadInvalid, match="a branch of the union"):
        forms.encode(schema, b'{"F":""}')


def test_the_place_of_a_wrong_value_is_shown_with_200_characters() -> None:
    long = "x" * 4_000
    inner = {"type": "record", "name": "I", "fields": [{"name": long, "type": "int"}]}
    schema = avro({"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": inner}}]})
    with pytest.raises(PayloadInvalid) as refused:
        forms.encode(schema, json.dumps({"a": [{long: 1}, {long: "y"}]}).encode())
    assert str(refused.value) == f"a[1].{'x' * 195} must be a number of type int, and is 'y'"


def test_a_field_that_is_left_out_has_its_default() -> None:
    schema = avro(
        {
            "type": "record",
            "name": "R",
            "fields": [
                {"name": "u", "type": ["string", "null"], "default": "x"},
                {"name": "n", "type": ["null", "string"], "default": None},
                {
                    "name": "r",
                    "type": {
                        "type": "record",
                        "name": "I",
                        "fields": [{"name": "a", "type": ["int", "null"], "default": 3}],
                    },
                    "default": {},
                },
            ],
        }
    )
    read = json.loads(forms.decode(schema, forms.encode(schema, b"{}"), 0))
    assert read == {"u": {"string": "x"}, "n": None, "r": {"a": {"int": 3}}}


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_texts(text: str) -> None:
    for kind in ("float", "double"):
        assert json.loads(forms.decode(avro(kind), forms.encode(avro(kind), json.dumps(text).encode()), 0)) == text


def test_the_id_stands_before_a_payload() -> None:
    assert forms.framed(258, b"x") == b"\0\0\0\1\2x"
    assert read_prefix(b"\0\0\0\1\2x") == (258, 5)


def test_a_value_that_a_json_schema_does_not_accept_is_refused() -> None:
    schema = parse(SchemaType.JSON, '{"properties":{"n":{"type":"integer"}}}')
    assert forms.encode(schema, b'{ "n": 1 }') == b'{"n":1}'
    with pytest.raises(PayloadInvalid):
        forms.encode(schema, b'{"n":"x"}')


@given(st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4), st.lists, max_leaves=5))
def test_a_value_of_a_json_schema_is_its_text(value: Any) -> None:
    schema = parse(SchemaType.JSON, "{}")
    data = msgspec.json.encode(value)
    assert json.loads(forms.decode(schema, forms.framed(1, forms.encode(schema, data)))) == value


# --- Protobuf ---------------------------------------------------------------------------------------------------------

MESSAGE = """
syntax = "proto3";
import "google/protobuf/any.proto";
import "google/protobuf/timestamp.proto";
message Flight {
  int32 flight_number = 1;
  repeated Flight legs = 2;
  map<string, int64> seats = 3;
  State state = 4;
  google.protobuf.Timestamp at = 5;
  google.protobuf.Any more = 6;
  optional string note = 7;
  bytes raw = 8;
  enum State { UNKNOWN = 0; LATE = 1; }
}
"""
DEFAULTS = {"flightNumber": 0, "legs": [], "seats": {}, "state": "UNKNOWN", "raw": ""}


def protobuf(text: str) -> ParsedSchema:
    return parse(SchemaType.PROTOBUF, text)


FLIGHT = protobuf(MESSAGE)


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"flightNumber": -5, "legs": [{"flightNumber": 7}], "seats": {"a": "9007199254740993"}, "state": "LATE"},
        {"at": "2024-05-06T07:08:09Z", "raw": "AAE=", "note": ""},
        {"more": {"@type": "x/Flight", **DEFAULTS, "flightNumber": 3}},
    ],
)
def test_a_value_of_protobuf_is_a_message_and_read_back_with_default_values(value: dict[str, Any]) -> None:
    content = forms.framed(7, forms.encode(FLIGHT, json.dumps(value).encode()))
    legs = {"legs": [DEFAULTS | one for one in value.get("legs", [])]}
    assert json.loads(forms.decode(FLIGHT, content)) == DEFAULTS | value | legs


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([], "the value must be an object"),
        ({"colour": 1}, 'no field named "colour"'),
        ({"flightNumber": 1 << 40}, "out of range"),
        ({"flightNumber": "9" * 5_000}, "the value is no Flight"),
        ({"legs": {}}, "the value is no Flight"),
        ({"seats": [1]}, "the value is no Flight"),
        ({"state": "EARLY"}, "EARLY"),
        ({"at": "soon"}, "timestamp"),
        ({"more": {"@type": "x/Other"}}, "x/Other"),
        ({"more": {"a": 1}}, "the value is no Flight"),
    ],
)
def test_a_value_that_no_message_of_protobuf_has_is_refused(value: Any, wanted: str) -> None:
    with pytest.raises(PayloadInvalid, match=wanted):
        forms.encode(FLIGHT, json.dumps(value).encode())


def test_a_message_without_a_required_field_is_refused() -> None:
    schema = protobuf(
        'syntax = "proto2"; message A { required int32 n = 1; optional group G = 2 { optional int32 m = 3; } }'
    )
    with pytest.raises(PayloadInvalid, match="a required field of A is missing"):
        forms.encode(schema, b"{}")
    value = {"n": 1, "g": {"m": 2}}
    assert json.loads(forms.decode(schema, forms.framed(1, forms.encode(schema, json.dumps(value).encode())))) == value


def test_a_schema_that_is_a_serialised_descriptor_has_the_same_messages() -> None:
    descriptor = building.serialized(
        protobuf('syntax = "proto2"; message A { optional group G = 2 { optional int32 m = 3; } }').model
    )
    schema = protobuf(descriptor)
    content = forms.encode(schema, b'{"g":{"m":7}}')
    assert content == b"\0\x13\x18\x07\x14"
    assert json.loads(forms.decode(schema, forms.framed(1, content))) == {"g": {"m": 7}}


def test_a_file_without_messages_has_no_values() -> None:
    with pytest.raises(PayloadInvalid, match="no message"):
        forms.encode(protobuf('syntax = "proto3"; enum E { A = 0; }'), b"{}")


def test_a_value_costs_the_fields_of_its_types_for_each_of_its_objects() -> None:
    fields = "".join(f"optional int32 f{number} = {number};" for number in range(2, 4_000))
    schema = protobuf(f'syntax = "proto3"; message A {{ repeated A a = 1; {fields} }}')
    with pytest.raises(PayloadInvalid, match="too many steps"):
        forms.encode(schema, b'{"a":[' + b",".join([b"{}"] * 10_000) + b"]}")
    assert forms.encode(schema, b'{"a":[{},{}]}') == b"\0\n\0\n\0"


@pytest.mark.parametrize(
    "fields",
    ["repeated A a = 1; int32 LONG = 2;", "repeated A LONG = 1;", "repeated E e = 1; enum E { LONG = 0; }"],
)
def test_a_short_message_that_long_names_make_too_long_to_show_is_refused_before_it_is_converted(
    fields: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = protobuf(f'syntax = "proto3"; message A {{ {fields.replace("LONG", "n" * 2_000)} }}')
    payload = b"\0" + (b"\n" + b"\x88\x27" + b"\0" * 5_000 if " E " in fields else b"\n\0" * 5_000)
    monkeypatch.setattr("app.registry.encoding.protobuf.MessageToDict", None)
    with pytest.raises(PayloadInvalid, match="its JSON has more than"):
        forms.decode(schema, forms.framed(1, payload))


def test_messages_inside_of_any_are_counted() -> None:
    value: dict[str, Any] = {"@type": "x/Flight", "legs": [{}] * 30_000}
    content = forms.framed(1, b"\0" + bytes(_any_of(value)))
    with pytest.raises(PayloadInvalid, match="its JSON has more than"):
        forms.decode(FLIGHT, content)


def _any_of(value: dict[str, Any]) -> bytearray:
    """The bytes of a Flight with a message in its field of type Any."""
    inner = b"\x12\0" * len(value["legs"])
    url = value["@type"].encode()
    any_message = b"\n" + bytes([len(url)]) + url + b"\x12" + _varint(len(inner)) + inner
    return bytearray(b"\x32" + _varint(len(any_message)) + any_message)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_of_protobuf_or_refused(data: bytes) -> None:
    try:
        shown = forms.decode(FLIGHT, forms.framed(1, data))
    except PayloadInvalid:
        return
    json.loads(shown)
