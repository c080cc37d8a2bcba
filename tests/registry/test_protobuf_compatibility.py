"""The rules by which a reader's Protobuf file reads a writer's data."""

from __future__ import annotations

import pytest

from app.registry.compatibility.levels import Level, findings, incompatibilities
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import Named, ParsedSchema, SchemaType, parse
from app.registry.refusals import TooComplex


def read(body: str, *references: tuple[str, str]) -> ParsedSchema:
    return parse(SchemaType.PROTOBUF, f'syntax = "proto3"; {body}', [Named(*one) for one in references])


def old(body: str) -> ParsedSchema:
    return parse(SchemaType.PROTOBUF, f'syntax = "proto2"; {body}')


def found(reader: ParsedSchema, writer: ParsedSchema) -> list[tuple[str, str]]:
    return [(one.kind, one.path) for one in findings(reader, writer, StepBudget())]


def fields(reader: str, writer: str) -> list[str]:
    """The kinds of findings for the bodies of one message, with others that it may use."""
    others = "message N { int32 a = 1; } message O { int32 a = 1; } enum E { Z = 0; } enum F { Y = 0; }"
    return [
        kind
        for kind, _ in found(read(f"message M {{ {reader} }} {others}"), read(f"message M {{ {writer} }} {others}"))
    ]


@pytest.mark.parametrize(
    ("reader", "writer"),
    [
        ("int32 a = 1; int32 b = 2;", "int32 a = 1;"),
        ("int32 a = 1;", "int32 a = 1; int32 b = 2;"),
        ("reserved 2; int32 a = 1;", "int32 a = 1; int32 b = 2;"),
        ("int32 a = 1; int32 b = 2;", "reserved 2; int32 a = 1;"),
        ("int32 b = 1;", "int32 a = 1;"),
        ("int64 a = 1;", "int32 a = 1;"),
        ("bool a = 1;", "uint64 a = 1;"),
        ("E a = 1;", "int32 a = 1;"),
        ("int32 a = 1;", "E a = 1;"),
        ("F a = 1;", "E a = 1;"),
        ("sint64 a = 1;", "sint32 a = 1;"),
        ("fixed32 a = 1;", "sfixed32 a = 1;"),
        ("fixed64 a = 1;", "sfixed64 a = 1;"),
        ("bytes a = 1;", "string a = 1;"),
        ("repeated string a = 1;", "string a = 1;"),
        ("N a = 1;", "repeated N a = 1;"),
        ("map<int32, string> a = 1;", "map<int64, bytes> a = 1;"),
        ("oneof o { int32 a = 1; }", "int32 a = 1;"),
        ("int32 a = 1; int32 b = 2;", "oneof o { int32 a = 1; int32 b = 2; }"),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; }"),
        ("optional int32 a = 1;", "int32 a = 1;"),
        ("int32 b = 2;", "optional int32 a = 1; int32 b = 2;"),
        ("message I {} enum G { X = 0; }", "message I {}"),
        ("message I {}", "message I {} enum G { X = 0; }"),
        ("enum G { X = 0; Q = 2; }", "enum G { X = 0; P = 1; R = 2; }"),
    ],
)
def test_changes_that_keep_data_readable(reader: str, writer: str) -> None:
    assert fields(reader, writer) == []


@pytest.mark.parametrize(
    ("reader", "writer", "kind"),
    [
        ("string a = 1;", "int32 a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("sint32 a = 1;", "int32 a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("fixed32 a = 1;", "fixed64 a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("float a = 1;", "double a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("sint32 a = 1;", "E a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("map<string, string> a = 1;", "map<string, int32> a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("map<string, string> a = 1;", "map<int32, string> a = 1;", "FIELD_SCALAR_KIND_CHANGED"),
        ("N a = 1;", "string a = 1;", "FIELD_KIND_CHANGED"),
        ("int32 a = 1;", "N a = 1;", "FIELD_KIND_CHANGED"),
        ("repeated N a = 1;", "map<string, N> a = 1;", "FIELD_KIND_CHANGED"),
        ("map<string, N> a = 1;", "repeated string a = 1;", "FIELD_KIND_CHANGED"),
        ("N a = 1;", "O a = 1;", "FIELD_NAMED_TYPE_CHANGED"),
        ("map<string, N> a = 1;", "map<string, O> a = 1;", "FIELD_NAMED_TYPE_CHANGED"),
        ("repeated int32 a = 1;", "int32 a = 1;", "FIELD_NUMERIC_LABEL_CHANGED"),
        ("E a = 1;", "repeated E a = 1;", "FIELD_NUMERIC_LABEL_CHANGED"),
        ("oneof o { int32 a = 1; }", "oneof o { int32 a = 1; int32 b = 2; }", "ONEOF_FIELD_REMOVED"),
        ("oneof o { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", "MULTIPLE_FIELDS_MOVED_TO_ONEOF"),
        (
            "oneof o { int32 a = 1; int32 b = 2; }",
            "int32 a = 1; oneof o { int32 b = 2; }",
            "FIELD_MOVED_TO_EXISTING_ONEOF",
        ),
        ("int32 a = 1;", "message I {} int32 a = 1;", "MESSAGE_REMOVED"),
    ],
)
def test_changes_after_which_data_cannot_be_read(reader: str, writer: str, kind: str) -> None:
    assert fields(reader, writer) == [kind]


def test_required_fields_may_neither_come_nor_go() -> None:
    with_one = old("message M { required int32 a = 1; optional int32 b = 2; }")
    without = old("message M { optional int32 b = 2; }")
    loose = old("message M { optional int32 a = 1; optional int32 b = 2; }")
    where = "field a with number 1, in message M"
    assert found(with_one, without) == [("REQUIRED_FIELD_ADDED", where)]
    assert found(with_one, loose) == [("REQUIRED_FIELD_ADDED", where)]
    assert found(without, with_one) == [("REQUIRED_FIELD_REMOVED", where)]
    assert found(loose, with_one) == []


def test_messages_are_compared_by_their_names_in_the_package() -> None:
    one = read("package p; message M { message I { int32 a = 1; } I i = 1; } message N { M m = 1; }")
    other = read("package q; message N { M m = 1; } message M { message I { string a = 1; } I i = 1; }")
    assert found(one, other) == [
        ("FIELD_SCALAR_KIND_CHANGED", "field a with number 1, in field i with number 1, in message M")
    ]
    assert found(one, read("package q; message M { message I { int32 a = 1; } I i = 1; }")) == []
    assert found(read("message N {}"), one) == [("MESSAGE_REMOVED", "message M")]


def test_a_message_that_is_imported_is_compared_too() -> None:
    one, other = (f'syntax = "proto3"; package i; message I {{ {kind} a = 1; }}' for kind in ("int32", "string"))
    body = 'import "i.proto"; message M { i.I at = 1; }'
    assert found(read(body, ("i.proto", one)), read(body, ("i.proto", other))) == [
        ("FIELD_SCALAR_KIND_CHANGED", "field a with number 1, in field at with number 1, in message M")
    ]


def test_messages_in_a_circle_are_compared_once() -> None:
    text = "message A { B b = 1; } message B { A a = 1; string x = 2; }"
    assert found(read(text), read(text.replace("string", "int32"))) == [
        ("FIELD_SCALAR_KIND_CHANGED", "field x with number 2, in message B")
    ]


@pytest.mark.parametrize(
    ("level", "new", "versions", "compatible"),
    [
        (Level.BACKWARD, "int32 a = 1; message I {}", ["int32 a = 1;"], True),
        (Level.FORWARD, "int32 a = 1; message I {}", ["int32 a = 1;"], False),
        (Level.FULL, "int32 a = 1; message I {}", ["int32 a = 1;"], False),
        (Level.BACKWARD, "string a = 1;", ["int32 a = 1;", "int32 b = 2;"], True),
        (Level.BACKWARD_TRANSITIVE, "string a = 1;", ["int32 a = 1;", "int32 b = 2;"], False),
        (Level.FULL_TRANSITIVE, "int64 a = 1;", ["int32 a = 1;", "bool a = 1;"], True),
    ],
)
def test_levels(level: Level, new: str, versions: list[str], compatible: bool) -> None:
    earlier = [(f"version {place}", read(f"message M {{ {one} }}")) for place, one in enumerate(versions, 1)]
    assert (incompatibilities(level, read(f"message M {{ {new} }}"), earlier) == []) is compatible


def test_a_sentence_names_the_path_in_words() -> None:
    sentences = incompatibilities(
        Level.BACKWARD,
        read("message User { string age = 3; }"),
        [("version 1", read("message User { int32 age = 3; }"))],
    )
    assert sentences == [
        "The new schema cannot read data of version 1. At field age with number 3, in message User: the reader's type is string,"
        " the writer's is int32 (FIELD_SCALAR_KIND_CHANGED)."
    ]


def test_another_type_of_schema_is_incompatible() -> None:
    assert found(read("message M {}"), parse(SchemaType.AVRO, '"int"'))[0][0] == "SCHEMA_TYPE_CHANGED"


def test_a_long_way_to_a_message_is_too_complex() -> None:
    """The messages are in one import, so that only the fields lead to them."""
    others = "".join(f"message M{n} {{ M{n + 1} a = 1; }}" for n in range(300))
    imported = f'syntax = "proto3"; {others} message M300 {{}}'
    body = 'import "i.proto"; message M { M0 a = 1; }'
    with pytest.raises(TooComplex):
        found(read(body, ("i.proto", imported)), read(body, ("i.proto", imported)))


def test_steps_bound_a_comparison() -> None:
    many = read("".join(f"message M{n} {{ int32 a = 1; }}" for n in range(50)))
    with pytest.raises(TooComplex):
        findings(many, many, StepBudget(100))
