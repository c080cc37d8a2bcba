"""Protobuf payloads by their schemas, and the indexes that name the type of the message."""

from __future__ import annotations

from typing import Any

import pytest

from app.registry.parsing.protobuf.building import ProtobufSchema
from app.registry.parsing.schemas import SchemaType, parse
from app.registry.payloads import protobuf
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.reading import Work, check_payload, read_payload

TEXT = """
syntax = "proto3";
package a.b;
message First { string name = 1; int64 big_number = 2; bytes raw = 3; }
message Second { message Inner { int32 n = 1; } Inner inner = 1; }
"""
SCHEMA = parse(SchemaType.PROTOBUF, TEXT)
OTHER = parse(SchemaType.PROTOBUF, TEXT)
ANN = b"\x0a\x03Ann\x10\x07"


def test_a_message_is_read_by_the_indexes_before_it() -> None:
    assert read_payload(SCHEMA, b"\x00" + ANN, 0) == {"name": "Ann", "big_number": "7"}
    assert read_payload(SCHEMA, b"\x00\x00\x00\x00\x09\x02\x00" + ANN, 5) == {"name": "Ann", "big_number": "7"}
    assert read_payload(SCHEMA, b"\x02\x02\x0a\x02\x08\x05", 0) == {"inner": {"n": 5}}
    assert read_payload(SCHEMA, b"\x04\x02\x00\x08\x05", 0) == {"n": 5}
    check_payload(SCHEMA, b"\x00" + ANN, None, Work(100))


def test_indexes_of_a_header_leave_the_payload_to_the_message() -> None:
    assert read_payload(SCHEMA, ANN, 0, b"\x00") == {"name": "Ann", "big_number": "7"}
    assert read_payload(SCHEMA, b"\x08\x05", 0, b"\x04\x02\x00") == {"n": 5}
    assert read_payload(SCHEMA, ANN, 0, b"") == {"name": "Ann", "big_number": "7"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x00\x0a\x09Ann", "the payload is no message of type a.b.First"),
        (b"\x00\x0a\x01\xff", "the payload is no message of type a.b.First"),
        (b"\x02\x08", r"the file has no message with the indexes \[4\]"),
        (b"\x02\x01", r"the file has no message with the indexes \[-1\]"),
        (b"\x04\x00\x00", r"the file has no message with the indexes \[0, 0\]"),
        (b"\x04\x00", "the indexes of the message's type end early"),
        (b"", "the indexes of the message's type end early"),
        (b"\xff\xff\x03", "indexes lead to the type of the message"),
        (b"\x80" * 9, "an index of the message's type is too long"),
    ],
)
def test_a_payload_of_another_form_is_refused_with_the_reason(data: bytes, why: str) -> None:
    with pytest.raises(PayloadInvalid, match=why):
        read_payload(SCHEMA, data, 0)
    with pytest.raises(PayloadInvalid, match=why):
        check_payload(SCHEMA, data, None, Work(100))


def test_a_message_without_a_required_field_is_refused() -> None:
    schema = parse(SchemaType.PROTOBUF, 'syntax = "proto2"; message M { required int32 n = 1; }')
    assert read_payload(schema, b"\x00\x08\x05", 0) == {"n": 5}
    with pytest.raises(PayloadInvalid, match=r"a required field of M is missing|no message of type M"):
        read_payload(schema, b"\x00", 0)


def test_a_batch_looks_for_each_type_once_and_pays_for_the_list_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[list[int]] = []
    real = protobuf._type_of

    def counted(schema: ProtobufSchema, path: list[int]) -> Any:
        looked.append(path)
        return real(schema, path)

    monkeypatch.setattr(protobuf, "_type_of", counted)
    work = Work(1_000_000)
    for _ in range(3):
        check_payload(SCHEMA, b"\x00" + ANN, None, work)
        check_payload(SCHEMA, b"\x04\x02\x00\x08\x05", None, work)
        check_payload(OTHER, b"\x00", None, work)
    assert looked == [[0], [1, 0], [0]], "schemas have types of their own"
    inner = " ".join(f"message I{place} {{}}" for place in range(800))
    outer = " ".join(f"message M{place} {{}}" for place in range(800))
    many = parse(SchemaType.PROTOBUF, f'syntax = "proto3"; message A {{ {inner} }} {outer}')
    for _ in range(2):
        before = work.steps.left
        check_payload(many, b"\x04\x00\x02", None, work)
        spent = before - work.steps.left
    assert spent == 1
    before = work.steps.left
    check_payload(many, b"\x04\x00\x04", None, work)
    assert before - work.steps.left == 1 + (801 + 800) // protobuf.TYPES_A_STEP
