"""Protobuf payloads by their schemas, and the indexes that name the type of the message."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from app.registry.parsing.protobuf.building import ProtobufSchema
from app.registry.parsing.schemas import SchemaType, parse
from app.registry.payloads import protobuf
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.protobuf import PATHS_MAX, TYPES_MAX
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


MAPS: Final = """
syntax = "proto3";
message M {
  map<string, string> a = 1;
  message First { bytes b = 1; }
  map<string, string> c = 2;
  message Second { int32 n = 2; message Deep { map<string, int32> m = 1; message Deepest { int32 d = 9; } } }
}
message Bare { map<string, string> a = 1; }
"""
FIRST: Final = b"\x0a\x01\xff"
SECOND: Final = b"\x10\x05"
DEEPEST: Final = b"\x48\x07"


@pytest.mark.parametrize(
    ("path", "data", "value"),
    [
        # without the entries of maps, as Java counts
        ([0, 0], FIRST, {"b": "/w=="}),
        ([0, 1], SECOND, {"n": 5}),
        ([0, 1, 0, 0], DEEPEST, {"d": 7}),
        # with entries, in the order of the text as it was sent
        ([0, 1], FIRST, {"b": "/w=="}),
        ([0, 3], SECOND, {"n": 5}),
        ([0, 3, 0, 1], DEEPEST, {"d": 7}),
        # with entries, in the order of the canonical text
        ([0, 2], FIRST, {"b": "/w=="}),
        # with entries, where each type stands before the first map
        ([0, 0], b"", {}),
        ([0, 1], b"", {}),
        # no type knows the field
        ([0, 1], b"\x28\x01", {}),
    ],
)
def test_indexes_count_the_entries_of_maps_or_do_not(path: list[int], data: bytes, value: object) -> None:
    head = bytes(2 * n for n in (len(path), *path))
    for schema in (
        parse(SchemaType.PROTOBUF, MAPS),
        parse(SchemaType.PROTOBUF, parse(SchemaType.PROTOBUF, MAPS).canonical),
    ):
        assert read_payload(schema, head + data, 0) == value
        assert read_payload(schema, head + data, 0) == value
        assert read_payload(schema, data, 0, head) == value


@pytest.mark.parametrize("path", [[0, 4], [0, 2, 5], [1, 0], [0, 1, 0, 2], [0, 0, 0]])
def test_indexes_lead_to_no_entry_of_a_map_and_not_past_the_last_type(path: list[int]) -> None:
    head = bytes(2 * n for n in (len(path), *path))
    with pytest.raises(PayloadInvalid, match=f"the file has no message with the indexes {re.escape(str(path))}"):
        read_payload(parse(SchemaType.PROTOBUF, MAPS), head, 0)


def test_a_payload_that_fits_no_type_of_its_indexes_is_refused_for_the_likeliest() -> None:
    with pytest.raises(PayloadInvalid, match=r"the payload is no message of type M\.Second"):
        check_payload(parse(SchemaType.PROTOBUF, MAPS), b"\x04\x00\x02\x0a\x09", None, Work(100))


def test_a_type_is_found_behind_more_maps_than_types_are_tried() -> None:
    before = "".join(f"map<int32, int32> m{n} = {n};" for n in range(1, 13))
    after = "".join(f"map<int32, int32> m{n} = {n};" for n in range(13, 25))
    sent = parse(
        SchemaType.PROTOBUF, f'syntax = "proto3"; message M {{ {before} message T {{ int32 n = 2; }} {after} }}'
    )
    stored = parse(SchemaType.PROTOBUF, sent.canonical)
    for index in (0, 12, 24):
        assert read_payload(stored, bytes((4, 0, 2 * index)) + SECOND, 0) == {"n": 5}


def test_the_types_that_are_tried_and_kept_are_bounded() -> None:
    inner = "".join(f"map<int32, int32> m{n} = {n}; message T{n} {{ }}" for n in range(1, 301))
    schema = parse(SchemaType.PROTOBUF, f'syntax = "proto3"; message M {{ {inner} }}')
    for index in range(63):
        check_payload(schema, bytes((4, 0, 2 * index)), None, Work(100))
        assert schema.model.types[0, index][0].name == f"T{index + 1}"
    assert max(len(one) for one in schema.model.types.values()) == TYPES_MAX
    for high in range(1, 3):
        for index in range(64):
            check_payload(schema, bytes((4, 0, 0x80 | 2 * index, high)), None, Work(100))
    assert len(schema.model.types) <= PATHS_MAX


def test_a_message_without_a_required_field_is_refused() -> None:
    schema = parse(SchemaType.PROTOBUF, 'syntax = "proto2"; message M { required int32 n = 1; }')
    assert read_payload(schema, b"\x00\x08\x05", 0) == {"n": 5}
    with pytest.raises(PayloadInvalid, match=r"a required field of M is missing|no message of type M"):
        read_payload(schema, b"\x00", 0)


def test_a_batch_looks_for_each_type_once_and_pays_for_the_list_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[tuple[int, ...]] = []
    real = protobuf.types_of

    def counted(schema: ProtobufSchema, path: tuple[int, ...]) -> Any:
        looked.append(path)
        return real(schema, path)

    monkeypatch.setattr(protobuf, "types_of", counted)
    work = Work(1_000_000)
    for _ in range(3):
        check_payload(SCHEMA, b"\x00" + ANN, None, work)
        check_payload(SCHEMA, b"\x04\x02\x00\x08\x05", None, work)
        check_payload(OTHER, b"\x00", None, work)
    assert looked == [(0,), (1, 0), (0,)], "schemas have types of their own"
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
