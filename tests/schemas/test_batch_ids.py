"""The ids of schemas that a batch names: in headers or payloads, of keys and values."""

from __future__ import annotations

import json
import struct
from uuid import UUID

import pytest

from app.configs import SchemaValidation, TopicConfig
from app.core.errors import ErrorCode, LimitExceeded, ProtocolError, RecordsRejected
from app.records.builder import build_batch
from app.records.compression import Codec
from app.records.varint import encode_varint
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import SchemaType, parse
from app.registry.payloads import json_schema
from app.registry.payloads.prefix import Side
from app.registry.payloads.reading import PAYLOAD_BYTES_MAX
from app.schemas import batch_ids
from app.schemas.batch_ids import SchemaUse, check_payloads, uses_of

GUID = UUID("01234567-89ab-cdef-0123-456789abcdef")
VALUES = TopicConfig(confluent_value_schema_validation=True)
BOTH = TopicConfig(confluent_value_schema_validation=True, confluent_key_schema_validation=True)
BYTES = 1_000_000
Made = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


def with_id(number: int, payload: bytes = b"") -> bytes:
    return struct.pack(">bI", 0, number) + payload


def batch(*records: Made, codec: Codec = Codec.NONE) -> bytes:
    return build_batch([(1, *one) for one in records], codec=codec)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_ids_of_values_are_found_in_payloads_and_headers(codec: Codec) -> None:
    made = batch(
        (b"k", with_id(7, b"payload"), ()),
        (None, with_id(7), (("other", b"x"),)),
        (None, b"payload", (("a", None), ("__value_schema_id", b"\x01" + GUID.bytes), ("b", b"y" * 200))),
        (None, with_id(9), (("__value_schema_id", with_id(8)),)),
        codec=codec,
    )
    uses = uses_of(made, VALUES, BYTES)
    assert uses.records == {
        SchemaUse(Side.VALUE, 7): [0, 1],
        SchemaUse(Side.VALUE, str(GUID)): [2],
        SchemaUse(Side.VALUE, 8): [3],
    }, "a header counts before the payload"
    assert (uses.count, uses.faults) == (4, [])


def test_keys_have_ids_of_their_own() -> None:
    made = batch((with_id(1), with_id(2), ()), (b"k", with_id(2), (("__key_schema_id", with_id(3)),)))
    uses = uses_of(made, BOTH, BYTES)
    assert uses.records == {
        SchemaUse(Side.KEY, 1): [0],
        SchemaUse(Side.VALUE, 2): [0, 1],
        SchemaUse(Side.KEY, 3): [1],
    }


def test_records_without_an_id_are_named_with_the_reason() -> None:
    twice = (("__value_schema_id", with_id(1)), ("__value_schema_id", with_id(2)))
    made = batch(
        (None, b"text", ()),
        (None, with_id(1), ()),
        (None, with_id(1), twice),
        (None, with_id(1), (("__value_schema_id", b"7"),)),
        (None, with_id(1), (("__value_schema_id", None),)),
        (None, None, ()),
    )
    uses = uses_of(made, VALUES, BYTES)
    assert uses.faults == [
        (0, "The value has no schema id, neither in the header __value_schema_id nor at its start."),
        (2, "The header __value_schema_id comes 2 times."),
        (3, "The header __value_schema_id holds no schema id."),
        (4, "The header __value_schema_id holds no schema id."),
        (5, "The value is null, and so has no schema id."),
    ]
    refusal = uses.refusal({SchemaUse(Side.VALUE, 1): "Unknown."})
    assert refusal is not None
    assert refusal.code is ErrorCode.INVALID_RECORD
    assert [number for number, _ in refusal.record_errors] == [0, 1, 2, 3, 4, 5]
    assert refusal.record_errors[1] == (1, "Unknown.")


def test_a_null_value_passes_in_a_compacted_topic_alone() -> None:
    made = batch((b"k", None, ()))
    compacted = TopicConfig(confluent_value_schema_validation=True, cleanup_policy=frozenset({"compact"}))
    assert uses_of(made, compacted, BYTES).faults == []
    assert [number for number, _ in uses_of(made, VALUES, BYTES).faults] == [0]
    keys = TopicConfig(confluent_key_schema_validation=True, cleanup_policy=frozenset({"compact"}))
    assert uses_of(batch((None, with_id(1), ())), keys, BYTES).faults == [
        (0, "The key is null, and so has no schema id.")
    ]


def test_a_sound_batch_has_no_refusal() -> None:
    assert uses_of(batch((None, with_id(1), ())), VALUES, BYTES).refusal({}) is None


def test_a_batch_of_too_many_schemas_or_too_many_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_ids, "USES_MAX", 3)
    many = [(None, with_id(number), ()) for number in range(4)]
    assert len(uses_of(batch(*many[:3]), VALUES, BYTES).records) == 3
    with pytest.raises(ProtocolError, match="name more than 3 schemas") as refused:
        uses_of(batch(*many), VALUES, BYTES)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    with pytest.raises(LimitExceeded):
        uses_of(batch((None, with_id(1, b"x" * 5_000), ()), codec=Codec.GZIP), VALUES, 1_000)


def test_a_batch_whose_payloads_are_checked_may_name_fewer_schemas() -> None:
    full = TopicConfig(confluent_value_schema_validation=True, firn_schema_validation=SchemaValidation.FULL)
    many = [(None, with_id(number), ()) for number in range(51)]
    assert len(uses_of(batch(*many[:50]), full, BYTES).records) == 50
    assert len(uses_of(batch(*many), VALUES, BYTES).records) == 51
    with pytest.raises(ProtocolError, match="name more than 50 schemas") as refused:
        uses_of(batch(*many), full, BYTES)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_that_cannot_be_read_is_refused() -> None:
    made = bytearray(batch((None, with_id(1), ())))
    made[61] = 0xFE  # the length of the first record
    with pytest.raises(ProtocolError, match="Record 0 of the batch cannot be read") as refused:
        uses_of(made, VALUES, BYTES)
    assert refused.value.code is ErrorCode.INVALID_RECORD


def test_payloads_are_checked_by_the_schemas_that_records_name() -> None:
    schemas = {
        SchemaUse(Side.VALUE, 1): parse(SchemaType.AVRO, '"string"'),
        SchemaUse(Side.VALUE, str(GUID)): parse(SchemaType.AVRO, '"boolean"'),
        SchemaUse(Side.VALUE, 2): None,
    }
    header = (("__value_schema_id", b"\x01" + GUID.bytes),)
    good: list[Made] = [(None, with_id(1, b"\x02a"), ()), (None, b"\x01", header)]
    check_payloads(batch(*good), VALUES, schemas, BYTES, {})
    bad: list[Made] = [(None, with_id(1, b"\x04a"), ()), (None, b"\x02", header), (None, with_id(2), ())]
    with pytest.raises(RecordsRejected) as refused:
        check_payloads(batch(*good, *bad), VALUES, schemas, BYTES, {})
    assert refused.value.record_errors == (
        (2, "The value is no value of schema 1: 2 bytes are named where 1 are left."),
        (3, f"The value is no value of schema {GUID}: the byte 2 is no boolean."),
        (4, "The schema 2 of the value cannot be read."),
    )


def test_the_numbers_that_a_refusal_names_are_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_ids, "NUMBERS_MAX", 4)
    uses = uses_of(
        batch(*[(None, with_id(number % 3), ()) for number in range(12)], (None, with_id(7), ())), VALUES, BYTES
    )
    assert [len(uses.records[SchemaUse(Side.VALUE, number)]) for number in (0, 1, 2, 7)] == [2, 1, 1, 1]
    refusal = uses.refusal({SchemaUse(Side.VALUE, number): "No." for number in (7, 2, 0)})
    assert refusal is not None
    assert [number for number, _ in refusal.record_errors] == [0, 2, 3, 12]


def test_the_indexes_of_a_protobuf_message_are_read_from_the_header_or_the_payload() -> None:
    text = 'syntax = "proto3"; message A { string a = 1; } message B { int32 b = 1; }'
    schema = parse(SchemaType.PROTOBUF, text)
    schemas = {SchemaUse(Side.VALUE, 1): schema, SchemaUse(Side.VALUE, str(GUID)): schema}
    header = (("__value_schema_id", b"\x01" + GUID.bytes + b"\x02\x02"),)
    good: list[Made] = [(None, b"\x08\x05", header), (None, with_id(1, b"\x02\x02\x08\x05"), ())]
    check_payloads(batch(*good), VALUES, schemas, BYTES, {})
    with pytest.raises(RecordsRejected) as refused:
        check_payloads(batch(*good, (None, b"\x0a\x09a", header)), VALUES, schemas, BYTES, {})
    assert refused.value.record_errors == (
        (2, f"The value is no value of schema {GUID}: the payload is no message of type B."),
    )


def test_all_payloads_of_a_batch_share_steps_that_its_size_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = 0
    real = StepBudget.spend

    def counted(budget: StepBudget, count: int = 1) -> None:
        nonlocal spent
        spent += count
        real(budget, count)

    dear = parse(SchemaType.JSON, json.dumps({"allOf": [{}] * 9_000}), is_new=False)
    monkeypatch.setattr(StepBudget, "spend", counted)
    schemas = {SchemaUse(Side.VALUE, 1): dear}
    check_payloads(batch((None, with_id(1, b"1"), ())), VALUES, schemas, BYTES, {})
    assert 9_000 < spent < 9_100
    spent = 0
    many = batch(*[(None, with_id(1, b"1"), ()) for _ in range(1_000)], codec=Codec.GZIP)
    with pytest.raises(ProtocolError, match=r"up to record \d+ need more than \d+ steps to be checked") as refused:
        check_payloads(many, VALUES, schemas, BYTES, {})
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert spent < 10_000 + 8 * 20 * 1_000, "a record of this batch has less than 20 bytes"


def test_members_and_items_that_no_schema_judges_cost_steps_too() -> None:
    idle = parse(SchemaType.JSON, json.dumps({"allOf": [{}] * 3_000}))
    for value in (b"[" + b"1," * 5_000 + b"1]", json.dumps(dict.fromkeys(map(str, range(2_000)))).encode()):
        with pytest.raises(ProtocolError, match="steps to be checked"):
            check_payloads(batch((None, with_id(1, value), ())), VALUES, {SchemaUse(Side.VALUE, 1): idle}, BYTES, {})


def test_a_schema_whose_check_breaks_down_refuses_its_records_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr(json_schema, "resolve", bad)
    schemas = {
        SchemaUse(Side.VALUE, 1): parse(SchemaType.JSON, '{"$ref": "#"}', is_new=False),
        SchemaUse(Side.VALUE, 2): parse(SchemaType.JSON, "{}"),
    }
    broken: dict[SchemaUse, Exception] = {}
    made = batch((None, with_id(2, b"1"), ()), (None, with_id(1, b"1"), ()), (None, with_id(1, b"2"), ()))
    with pytest.raises(RecordsRejected) as refused:
        check_payloads(made, VALUES, schemas, BYTES, broken)
    why = "The value cannot be checked by schema 1: the check failed with KeyError."
    assert refused.value.record_errors == ((1, why), (2, why))
    assert list(map(repr, broken.values())) == ["KeyError('x')"]
    assert list(broken) == [SchemaUse(Side.VALUE, 1)]


def test_a_payload_that_one_call_decodes_has_a_greatest_size() -> None:
    message = b"\x00\x0a" + encode_varint(PAYLOAD_BYTES_MAX // 2) + b"x" * PAYLOAD_BYTES_MAX
    text = json.dumps("x" * (PAYLOAD_BYTES_MAX - 2)).encode()
    long = "x" * PAYLOAD_BYTES_MAX
    kinds = {
        1: parse(SchemaType.JSON, "{}"),
        2: parse(SchemaType.PROTOBUF, 'syntax = "proto3"; message A { string a = 1; }'),
        3: parse(SchemaType.AVRO, '"string"'),
    }
    schemas = {SchemaUse(Side.VALUE, number): one for number, one in kinds.items()}
    avro = encode_varint(len(long)) + long.encode()
    check_payloads(batch((None, with_id(1, text), ()), (None, with_id(3, avro), ())), VALUES, schemas, BYTES, {})
    broken: dict[SchemaUse, Exception] = {}
    made = batch((None, with_id(1, text + b" "), ()), (None, with_id(2, message), ()))
    with pytest.raises(RecordsRejected) as refused:
        check_payloads(made, VALUES, schemas, BYTES, broken)
    assert refused.value.code is ErrorCode.INVALID_RECORD
    assert refused.value.record_errors == tuple(
        (
            number,
            f"The value cannot be checked by schema {number + 1}: it has {size} bytes, and those with more than 262144 are "
            f"not checked.",
        )
        for number, size in enumerate((262_145, len(message)))
    )
    assert broken == {}, "the size is no fault of the broker"
