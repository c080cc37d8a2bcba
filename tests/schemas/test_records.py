"""What the records of `_schemas` say, and to whom they belong (ADR 0041)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, RequestRejected
from app.schemas.records import KEY_BYTES_MAX, meaning_of, read_asked, subject_of, topic_of
from tests.support.schema_records import operator_record, schema_key, schema_record, schema_value


@pytest.mark.parametrize(
    ("subject", "topic"),
    [
        ("orders-value", "orders"),
        ("orders-key", "orders"),
        (":.ctx:orders-value", "orders"),
        ("a-key-value", "a-key"),
        ("-value", None),
        (":.ctx:-key", None),
        ("com.example.Order", None),
        ("orders", None),
    ],
)
def test_a_subject_belongs_to_the_topic_that_it_names(subject: str, topic: str | None) -> None:
    assert topic_of(subject) == topic


def test_a_schema_has_an_id_and_a_digest_of_type_text_and_references() -> None:
    (one,) = read_asked("t-value", [schema_record("t-value", 7)])
    assert (one.kind, one.subject, one.context, one.schema_id, one.exists, one.deletes) == (
        "SCHEMA", "t-value", ".", 7, True, False,
    )  # fmt: skip
    other = meaning_of(*schema_record("u-key", 7, version=3))
    assert other is not None
    assert other.digest == one.digest, "the same schema in another subject"
    changed = [
        schema_value("t-value", 7, '"long"'),
        schema_value("t-value", 7, schemaType="JSON"),
        schema_value("t-value", 7, references=[{"name": "n", "subject": "s", "version": 1}]),
    ]
    for value in changed:
        found = meaning_of(schema_key("t-value"), value)
        assert found is not None
        assert found.digest != one.digest
    plain = meaning_of(schema_key("t-value"), schema_value("t-value", 7, schemaType="AVRO", references=[]))
    assert plain is not None
    assert plain.digest == one.digest


def test_keys_of_other_forms_name_the_same() -> None:
    canonical = meaning_of(schema_key("t-value"), None)
    other = meaning_of(b'{"magic": 1, "version":1,"subject":"t-value","keytype":"SCHEMA"}', None)
    assert canonical is not None
    assert other is not None
    assert canonical.name == other.name
    assert canonical.form != other.form


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (schema_key("other-value"), schema_value("other-value", 1), "belongs to another subject"),
        (b'{"keytype":"SCHEMA","subject":"t-value","subject":"o-value","version":1,"magic":1}', None, "comes twice"),
        (b'{"keytype":"SCHEMA","subject":"t-value","Subject":"o","version":1,"magic":1}', None, "is not known"),
        (b'{"keytype":"NOOP","magic":0}', None, "which clients do not write"),
        (b'{"keytype":"DEK","subject":"t-value","magic":0}', b"{}", "which clients do not write"),
        (b'{"keytype":"SCHEMA","subject":"t-value","magic":1}', None, "has no version"),
        (schema_key("t-value", 0), None, "has no version"),
        (schema_key("t-value"), schema_value("t-value", 0), "no id"),
        (schema_key("t-value"), schema_value("t-value", 2**31), "no id"),
        (schema_key("t-value"), schema_value("o-value", 1), "name different versions"),
        (schema_key("t-value"), schema_value("t-value", 1, version=2), "name different versions"),
        (schema_key("t-value"), b"{}", "cannot be read"),
        (schema_key("t-value"), b"[" * 100_000, "cannot be read"),
        (b"[" * KEY_BYTES_MAX, None, "cannot be read"),
        (b" " * (KEY_BYTES_MAX + 1), None, "are allowed"),
        (b"\xff", None, "cannot be read"),
        (schema_key(f":.{'c' * 255}:t-value"), None, "another subject"),
    ],
)
def test_a_record_that_other_readers_may_take_for_another_subjects_is_refused(
    key: bytes, value: bytes | None, why: str
) -> None:
    with pytest.raises(RequestRejected, match=why) as refused:
        read_asked("t-value", [(key, value)])
    assert refused.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("kind", ["SCHEMA", "DELETE_SUBJECT", "CLEAR_SUBJECT"])
def test_a_record_of_no_subject_is_refused_to_operators_too(kind: str) -> None:
    with pytest.raises(RequestRejected, match="names no subject"):
        read_asked(None, [(f'{{"keytype":"{kind}","version":1,"magic":1}}'.encode(), None)])


def test_a_context_with_a_long_name_is_refused() -> None:
    subject = f":.{'c' * 255}:t-value"
    with pytest.raises(RequestRejected, match="more than 255 characters"):
        read_asked(subject, [schema_record(subject, 1)])


def test_an_operator_writes_configs_and_modes_of_any_subject() -> None:
    records = [operator_record("CONFIG", None, compatibilityLevel="NONE"), operator_record("MODE", "x", mode="IMPORT")]
    assert [one.kind for one in read_asked(None, records)] == ["CONFIG", "MODE"]


def test_tombstones_marks_and_deleted_subjects_delete() -> None:
    records = [
        (schema_key("t-value"), None),
        (schema_key("t-value"), schema_value("t-value", 1, deleted=True)),
        (b'{"keytype":"DELETE_SUBJECT","subject":"t-value","magic":0}', b'{"subject":"t-value","version":1}'),
    ]
    assert [one.deletes for one in read_asked("t-value", records)] == [True, True, True]


@given(st.binary(max_size=100), st.one_of(st.none(), st.binary(max_size=100)))
def test_bytes_that_are_no_record_are_skipped_by_a_replay_and_refused_in_an_append(
    key: bytes, value: bytes | None
) -> None:
    meaning_of(key, value)
    with pytest.raises(RequestRejected):
        read_asked("t-value", [(key, value)])


def test_a_key_that_cannot_be_read_has_no_subject() -> None:
    assert subject_of(schema_key("t-value")) == "t-value"
    assert subject_of(b'{"keytype":"NOOP","magic":0}') is None
    with pytest.raises(ValueError, match="truncated"):
        subject_of(b"{")
