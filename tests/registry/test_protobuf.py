"""Protobuf schemas: reading, canonical and normalised texts, imports, serialised descriptors, hostile texts."""

from __future__ import annotations

import base64
import re
import string
from typing import Final

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from app.registry.parsing.limits import StepBudget
from app.registry.parsing.protobuf.builtin import NAMES, builtin_text
from app.registry.parsing.protobuf.tokens import tokens, unescaped
from app.registry.parsing.schemas import Format, Named, ParsedSchema, SchemaType, formatted, parse
from app.registry.refusals import SchemaInvalid

SENT: Final = """
// head
syntax = "proto3"  ;
package a.b;
import "google/protobuf/timestamp.proto"; import "confluent/meta.proto";
option java_package = "x.y";
/* A user
 * of ours. */
message User {
  reserved 5, 10 to max; reserved "old";
  message Inner { google.protobuf.Timestamp at = 1; }
  string name = 1 [deprecated = true, (confluent.field_meta) = {doc: "hello" tags: ["a"]}]; // full name
  map<string, Inner> by_name = 0x2 [json_name='foo'];
  optional int32 age = 3;
  oneof kind { string a = 6; Inner b = 7; }
  enum Level { option allow_alias = true; ZERO = 0; NONE = 0; }
}
enum Top { T0 = 0; reserved -5 to -1; }
service Users { rpc Get (User) returns (stream User) { option deprecated = true; } rpc Put(User)returns(User); }
"""
CANONICAL: Final = """// head
syntax = "proto3";
package a.b;

import "google/protobuf/timestamp.proto";
import "confluent/meta.proto";

option java_package = "x.y";

// A user
// of ours.
message User {
  reserved 5, 10 to max;
  reserved "old";

  // full name
  string name = 1 [
    deprecated = true,
    (confluent.field_meta) = { doc: "hello" tags: [ "a" ] }
  ];
  map<string, Inner> by_name = 2 [json_name = "foo"];
  optional int32 age = 3;

  oneof kind {
    string a = 6;
    Inner b = 7;
  }

  message Inner {
    google.protobuf.Timestamp at = 1;
  }
  enum Level {
    option allow_alias = true;
    ZERO = 0;
    NONE = 0;
  }
}
enum Top {
  reserved -5 to -1;
  T0 = 0;
}

service Users {
  rpc Get (User) returns (stream User) {
    option deprecated = true;
  }
  rpc Put (User) returns (User);
}
"""
PROTO2: Final = """syntax = "proto2";

message Old {
  required string name = 1 [default = "a\\"b\\n"];
  optional bytes raw = 2 [default = "\\377"];
  optional double most = 3 [default = inf];
  optional int64 least = 4 [default = -9];
  repeated int32 many = 5 [packed = true];
  optional group Inner = 6 {
    optional bool on = 1 [default = true];
  }

  extensions 100 to 199;
  extensions 1000 to max;
}

extend Old {
  optional string more = 100;
}
"""
EDITION: Final = """edition = "2023";

option features.field_presence = IMPLICIT;

message M {
  reserved old;

  string a = 1 [features.field_presence = EXPLICIT];
}
"""


def read(text: str, *references: tuple[str, str]) -> ParsedSchema:
    return parse(SchemaType.PROTOBUF, text, [Named(*one) for one in references])


def refusal(text: str, *references: tuple[str, str]) -> str:
    with pytest.raises(SchemaInvalid) as caught:
        read(text, *references)
    return str(caught.value)


def test_a_canonical_text_has_one_layout_and_keeps_names_options_and_comments() -> None:
    assert read(SENT).canonical == CANONICAL


@pytest.mark.parametrize("text", [CANONICAL, PROTO2, EDITION], ids=["proto3", "proto2", "edition"])
def test_a_canonical_text_is_its_own_canonical_text(text: str) -> None:
    assert read(text).canonical == text


def test_normalised_texts_are_equal_for_other_orders_names_and_comments() -> None:
    one = read(
        'syntax = "proto3"; package p; import "google/type/date.proto"; import "google/protobuf/any.proto";'
        " message M { N n = 2; google.type.Date d = 1; } message N { google.protobuf.Any a = 1; }"
    )
    other = read(
        'syntax = "proto3"; package p; import "google/protobuf/any.proto"; import "google/type/date.proto";'
        " message M { .google.type.Date d = 1; /* n */ p.N n = 2; } message N { .google.protobuf.Any a = 1; }"
    )
    assert one.canonical != other.canonical
    assert one.normalized == other.normalized
    assert read(one.normalized).normalized == one.normalized


@pytest.mark.parametrize("text", [CANONICAL, PROTO2, EDITION], ids=["proto3", "proto2", "edition"])
def test_a_serialised_descriptor_is_the_same_schema(text: str) -> None:
    parsed = read(text)
    serialized = formatted(parsed, Format.SERIALIZED)
    again = read(serialized)
    assert again.normalized == parsed.normalized
    assert "message " in again.canonical
    descriptor = FileDescriptorProto.FromString(base64.b64decode(serialized))
    assert all(field.type for message in descriptor.message_type for field in message.field)


def test_a_serialised_descriptor_keeps_the_options_that_its_imports_define() -> None:
    file = FileDescriptorProto(name="m.proto", syntax="proto3", dependency=["confluent/meta.proto"])
    message = file.message_type.add(name="M")
    field = message.field.add(name="a", number=1, type=9, label=1, json_name="a")
    # (confluent.field_meta) is extension 1088, a message whose field 1 is the text
    field.options.MergeFromString(b"\x82\x44\x04\x0a\x02hi")
    parsed = read(base64.b64encode(file.SerializeToString()).decode())
    assert '  string a = 1 [(confluent.field_meta) = { doc: "hi" }];\n' in parsed.canonical


def test_a_text_without_extensions_has_no_custom_options() -> None:
    text = formatted(read(SENT), Format.IGNORE_EXTENSIONS)
    assert "string name = 1 [deprecated = true];" in text
    assert "confluent.field_meta" not in text
    assert "exten" not in formatted(read(PROTO2), Format.IGNORE_EXTENSIONS)


def test_imports_are_found_in_references_directly_or_not() -> None:
    inner = 'syntax = "proto3"; package i; message Inner { int32 a = 1; }'
    middle = 'syntax = "proto3"; package m; import public "inner.proto"; message Middle { i.Inner a = 1; }'
    text = 'syntax = "proto3"; import "middle.proto"; message M { m.Middle a = 1; i.Inner b = 2; }'
    parsed = read(text, ("inner.proto", inner), ("middle.proto", middle))
    assert ".i.Inner b = 2;" in parsed.normalized
    assert "send it in references" in refusal(text, ("middle.proto", middle))


@pytest.mark.parametrize("name", NAMES)
def test_each_built_in_file_can_be_imported(name: str) -> None:
    read(f'syntax = "proto3"; import "{name}"; message M {{ int32 a = 1; }}')


def test_the_built_in_file_of_tags_has_its_extensions() -> None:
    text = builtin_text("confluent/meta.proto")
    assert text is not None
    made = FileDescriptorProto.FromString(base64.b64decode(formatted(read(text), Format.SERIALIZED)))
    assert [(one.extendee, one.number) for one in made.extension] == [
        (f".google.protobuf.{kind}Options", 1088) for kind in ("File", "Message", "Field", "Enum", "EnumValue")
    ]


def test_data_is_read_with_a_schema() -> None:
    message = read(CANONICAL).model.file.message_types_by_name["User"]
    data = GetMessageClass(message)(name="x", by_name={"k": {"at": {"seconds": 5}}}, a="y").SerializeToString()
    assert GetMessageClass(message).FromString(data).by_name["k"].at.seconds == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no message"),
        ('syntax = "proto3";', "no message"),
        ('syntax = "proto4"; message M {}', "syntax 'proto4' is not known"),
        ('edition = "1999"; message M {}', "edition '1999' is not known"),
        ("message M { string a = 1 }", "line 1 has '}' where ';' must be"),
        ("message M {", "line 1 has 'the end'"),
        ("message M { int32 a = 0; }", r"the number 0, which is not in \[1, 536870911\]"),
        ("message M { int32 a = 536870912; }", "the number 536870912"),
        ("message M { int32 a = 1.5; }", "where an integer must be"),
        ("message M { int32 a = 089; }", "where an integer must be"),
        ('syntax = "proto3"; message M { None a = 1; }', "None"),
        ('syntax = "proto3"; message M { int32 a = 1; int32 a = 2; }', "a"),
        ('syntax = "proto3"; message M { int32 a = 1; int32 b = 1; }', "1"),
        ('syntax = "proto3"; message M { reserved 1 to 3; int32 a = 2; }', "is reserved"),
        ('syntax = "proto3"; message M { reserved "a"; int32 a = 2; }', "is reserved"),
        ("message M { reserved 3 to 1; }", "whose end is before its start"),
        ('syntax = "proto3"; message M { map<bytes, string> a = 1; }', "the type of a map's keys"),
        ('syntax = "proto3"; message M { oneof a { repeated int32 b = 1; } }', "a field without a label"),
        ('syntax = "proto3"; import "none.proto"; message M {}', "send it in references"),
        ('syntax = "proto3"; option none = 1; message M {}', "the option none is not known"),
        ('syntax = "proto3"; option java_package = 1; message M {}', "value of another type"),
        ('syntax = "proto3"; option java_package = "a"; option java_package = "b"; message M {}', "set twice"),
        ('syntax = "proto3"; option (a) = { a: [ }; message M {}', "closes a brace"),
        ('syntax = "proto3"; option (a) = { a: 1; message M {', "the end of an option's value"),
        ("package a; package b; message M {}", "named twice"),
        ('import "a"; import "a"; message M {}', "imported twice"),
        ("message M { /* }", "has no token"),
        ('message M { string a = 1 [default = "\\q"]; }', "escape that is not known"),
        ("bm9uc2Vuc2U=", "neither a Protobuf file nor"),
        ("a", "neither a Protobuf file nor"),
    ],
)
def test_a_text_that_is_no_schema_is_refused_with_its_place(text: str, reason: str) -> None:
    assert re.search(reason, refusal(text))


def test_a_file_that_imports_itself_is_refused() -> None:
    one = 'syntax = "proto3"; import "b"; message A {}'
    other = 'syntax = "proto3"; import "a"; message B {}'
    assert "imports itself" in refusal(one, ("a", one), ("b", other))


def test_a_descriptor_with_text_in_a_name_is_refused() -> None:
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    message.field.add(name="a", number=1, type=5, label=1, json_name='x"; } message N { int32 b = 1; //')
    serialized = base64.b64encode(file.SerializeToString()).decode()
    assert [one.name for one in read(serialized).model.file.message_types_by_name.values()] == ["M"]
    option = message.options.uninterpreted_option.add(identifier_value="1; } message N { int32 b = 1; //")
    option.name.add(name_part="x", is_extension=True)
    message.name = "M {} message"
    assert refusal(base64.b64encode(file.SerializeToString()).decode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"a\n\\\"\'\?", b"a\n\\\"'?"),
        (r"\7\101\377\x4\X41", b"\x07A\xff\x04A"),
        (r"\u00e9\U0001F600", "é😀".encode()),
        ("é", "é".encode()),
    ],
)
def test_escapes_of_strings(text: str, expected: bytes) -> None:
    assert unescaped(text) == expected


@pytest.mark.parametrize("text", ["\\q", "\\ud800", "\\U00110000", "\\x", "\\u12"])
def test_an_escape_that_is_no_character_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (of several kinds)
        unescaped(text)


def _nested(depth: int) -> DescriptorProto:
    made = DescriptorProto(name="M")
    for _ in range(depth):
        outer = DescriptorProto(name="M")
        outer.nested_type.add().CopyFrom(made)
        made = outer
    return made


_DEEP: Final = FileDescriptorProto(name="deep", syntax="proto3", message_type=[_nested(40)])


def _fields(kind: str, count: int) -> str:
    return "".join(f"{kind} a{n} = {n};" for n in range(1, count + 1))


@pytest.mark.parametrize(
    "text",
    [
        "message M {" * 30_000 + "}" * 6_000,
        "message M { optional group G = 1 {" + "optional group G = 1 {" * 15_000,
        "option (a) = " + "{a " * 100_000,
        "option (a) = {a: " + "[" * 300_000,
        ";" * 300_000,
        "// a\n" * 80_000,
        "/*" * 200_000,
        '"' * 390_000,
        "message M { " + ".".join("a" * 190_000) + " x = 1; }",
        'import "a";' * 30_000,
        "message M { reserved " + ", ".join(str(n) for n in range(1, 20_000)) + ";" + _fields("int32", 5_000) + "}",
        base64.b64encode(_DEEP.SerializeToString()).decode(),
        base64.b64encode(b"\x22\xff\xff\x0f" * 60_000).decode(),
    ],
    ids=[
        "messages",
        "groups",
        "braces",
        "lists",
        "statements",
        "comments",
        "open",
        "quotes",
        "dots",
        "imports",
        "reserved",
        "descriptor",
        "bytes",
    ],
)
def test_hostile_texts_are_refused_by_limits(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize("text", [" " * 399_999 + "{", "a " * 199_999 + "{", "a" * 399_999 + "{"])
def test_whether_a_text_is_base64_is_decided_in_one_look_at_each_character(text: str) -> None:
    # With a repeat that gives characters back, each of these takes minutes.
    assert refusal(text) == f"line 1 has {text.split()[0][:50]!r} where a statement must be"


@pytest.mark.parametrize("tail", ["", "=", "==", "=\n", " \n"])
def test_base64_may_have_spaces_and_ends_with_signs(tail: str) -> None:
    assert re.search("neither a Protobuf file nor the base64", refusal(f"a b/+\n0{tail}"))


def test_the_oneofs_of_many_fields_are_written_in_one_walk() -> None:
    # A walk over all fields for each oneof takes hours.
    text = f"""syntax = "proto3"; message M {{ {_fields("optional int32", 8_000)} }}"""
    assert read(text).canonical.count("\n  optional int32 a") == 8_000
    inner = "".join(f"oneof o{n} {{ int32 a{n} = {n}; }}" for n in range(1, 5_001))
    assert read(f'syntax = "proto3"; message M {{ {inner} }}').canonical.count("\n    int32 a") == 5_000


def test_optional_fields_of_one_name_are_refused_before_their_oneofs_are_named() -> None:
    text = 'syntax = "proto3"; message M { ' + "optional int32 a = 1; " * 16_000 + "}"
    assert refusal(text) == "message 'M' has two fields with the name 'a'"


LOGS: Final = ("logs", 'syntax = "proto3"; package other; message LogEntry { int32 n = 1; }')


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ("repeated other.LogEntry entries = 2;", "repeated other.LogEntry entries = 2;"),
        ("repeated other.LogEntry Log = 2;", "repeated other.LogEntry Log = 2;"),
        ("other.LogEntry entry = 2;", "other.LogEntry entry = 2;"),
        ("repeated LogEntry entries = 2;", "repeated LogEntry entries = 2;"),
        ("repeated LogEntry Log = 2;", "repeated LogEntry Log = 2;"),
        ("LogEntry one = 2;", "LogEntry one = 2;"),
        ("oneof kind { other.LogEntry one = 2; }", "other.LogEntry one = 2;"),
        ("map<int32, other.LogEntry> entries = 2;", "map<int32, other.LogEntry> entries = 2;"),
    ],
)
def test_a_field_is_written_as_a_map_only_if_its_own_entries_are_its_type(fields: str, shown: str) -> None:
    text = f'syntax = "proto3"; package a; import "logs"; message Log {{ map<string, string> log = 1; {fields} }}'
    found = read(text, LOGS)
    for form, written in ((found.canonical, shown), (found.normalized, None)):
        assert written is None or f" {written}\n" in form
        again = read(form, LOGS)
        assert again.normalized == found.normalized
        assert _kinds(again) == _kinds(found)
    from_bytes = read(formatted(found, Format.SERIALIZED), LOGS)
    assert _kinds(from_bytes) == _kinds(found)


def _kinds(schema: ParsedSchema) -> dict[str, tuple[int, str]]:
    """The types of the fields of the first message, by their names."""
    message = schema.model.resolved().message_type[0]
    return {one.name: (one.label, one.type_name) for one in message.field}


def test_a_token_costs_a_step_and_so_does_a_comment() -> None:
    steps = StepBudget(100)
    assert len(list(tokens("message M { } // a\n // b", steps))) == 5
    assert steps.left == 100 - 4 - 2


names = st.text(string.ascii_lowercase, min_size=1, max_size=4)
scalars = st.sampled_from(["int32", "string", "bytes", "double", "bool", "sint64", "fixed32"])


@st.composite
def messages(draw: st.DrawFn, depth: int = 2) -> str:
    """The body of a message, with fields of all kinds."""
    found = draw(st.lists(st.tuples(st.sampled_from(["", "repeated ", "optional "]), scalars), max_size=5))
    numbers = draw(st.permutations(range(1, len(found) + 4)))
    lines = [f"{label}{kind} f{n} = {n};" for (label, kind), n in zip(found, numbers, strict=False)]
    if draw(st.booleans()):
        lines.append(f"map<string, {draw(scalars)}> m = {numbers[-1]};")
    if draw(st.booleans()):
        lines.append(f"oneof o {{ {draw(scalars)} a = {numbers[-2]}; {draw(scalars)} b = {numbers[-3]}; }}")
    if depth and draw(st.booleans()):
        lines.append(f"message I {{ {draw(messages(depth - 1))} }}")
        lines.append("I inner = 100;")
    if draw(st.booleans()):
        lines.append("// a comment\nenum E { A = 0; B = 1; }")
    return "\n".join(lines)


@given(messages())
def test_texts_descriptors_and_normalised_texts_mean_the_same(body: str) -> None:
    parsed = read(f'syntax = "proto3"; package p; message M {{ {body} }}')
    assert read(parsed.canonical).canonical == parsed.canonical
    assert read(parsed.canonical).normalized == parsed.normalized
    serialized = formatted(parsed, Format.SERIALIZED)
    assert read(serialized).normalized == parsed.normalized
    assert DescriptorPool().AddSerializedFile(base64.b64decode(serialized)) is not None


@given(st.text(max_size=200) | st.binary(max_size=60).map(lambda one: base64.b64encode(one).decode()))
def test_any_text_is_a_schema_or_refused(text: str) -> None:
    try:
        read(text)
    except SchemaInvalid:
        return


@given(st.integers(0, len(CANONICAL)), st.text('{}[]()<>;=",.0a\n', max_size=3))
def test_a_changed_text_is_a_schema_or_refused(place: int, inserted: str) -> None:
    try:
        again = read(CANONICAL[:place] + inserted + CANONICAL[place + len(inserted) :])
    except SchemaInvalid:
        return
    assert read(again.canonical).canonical == again.canonical
