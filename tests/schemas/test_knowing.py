"""Which subject must know the schema of a record, and when it does."""

from __future__ import annotations

import json

import pytest

from app.configs.topic import SubjectNameStrategy
from app.registry.payloads.prefix import Side
from app.registry.record_json import Key, KeyType, StoredSchema, write_deleted_version, write_key
from app.registry.schema_log import Entry
from app.registry.sources import record_name, source_of
from app.registry.view import View, replay
from app.schemas import knowing
from app.schemas.knowing import Naming, RecordNames, known, message_names
from tests.support.schema_records import operator_record, schema_key, schema_record, schema_value

TOPIC, RECORD, BOTH = SubjectNameStrategy.TOPIC, SubjectNameStrategy.RECORD, SubjectNameStrategy.TOPIC_RECORD
USER = json.dumps({"type": "record", "name": "User", "namespace": "a.b", "fields": []})


def view_of(*records: tuple[bytes, bytes | None]) -> View:
    return replay([Entry(offset, 0, *record) for offset, record in enumerate(records)])


def finds(view: View, side: Side, strategy: SubjectNameStrategy, ref: int | str, topic: str = "t") -> bool:
    return known(view, Naming(topic, side, strategy), ref, RecordNames()) is not None


def test_by_default_the_subject_of_the_topic_must_have_the_id() -> None:
    view = view_of(
        schema_record("t-value", 1), schema_record("t-key", 2, '"long"'), schema_record("u-value", 3, '"int"')
    )
    assert finds(view, Side.VALUE, TOPIC, 1)
    assert finds(view, Side.KEY, TOPIC, 2)
    assert not finds(view, Side.KEY, TOPIC, 1)
    assert not finds(view, Side.VALUE, TOPIC, 3), "the id is another topic's"
    assert finds(view, Side.VALUE, TOPIC, 3, "u")
    assert not finds(view, Side.VALUE, TOPIC, 9)


def test_every_version_of_a_subject_counts_and_so_does_its_guid() -> None:
    view = view_of(*[schema_record("t-value", number, f'"{number}"', number) for number in range(1, 30)])
    assert all(finds(view, Side.VALUE, TOPIC, number) for number in range(1, 30))
    version = view.version("t-value", 3)
    assert version is not None
    assert finds(view, Side.VALUE, TOPIC, version.guid)
    assert not finds(view, Side.VALUE, TOPIC, "01234567-89ab-cdef-0123-456789abcdef")


def test_the_id_of_a_schema_that_many_subjects_share_is_known_to_each_of_them() -> None:
    view = view_of(*[schema_record(f"{name}-value", 1) for name in ("a", "b", "t", "c")])
    assert finds(view, Side.VALUE, TOPIC, 1)
    assert not finds(view, Side.KEY, TOPIC, 1)


def test_a_deleted_version_is_not_known_and_a_deleted_subject_neither() -> None:
    first, second = schema_record("t-value", 1), schema_record("t-value", 2, '"long"', 2)
    deleted = schema_key("t-value"), schema_value("t-value", 1, deleted=True)
    view = view_of(first, second, deleted)
    assert (finds(view, Side.VALUE, TOPIC, 1), finds(view, Side.VALUE, TOPIC, 2)) == (False, True)
    gone = write_key(Key(KeyType.DELETE_SUBJECT, "t-value")), write_deleted_version("t-value", 2)
    assert not finds(view_of(first, second, gone), Side.VALUE, TOPIC, 2)
    assert finds(view_of(first, second, gone, schema_record("t-value", 2, '"long"', 3)), Side.VALUE, TOPIC, 2)


def test_the_subject_of_a_topic_may_be_an_alias() -> None:
    of_all = schema_record("all", 1), schema_record("t-value", 2, '"long"')
    alias = operator_record("CONFIG", "t-value", alias="all")
    view = view_of(*of_all, alias)
    assert finds(view, Side.VALUE, TOPIC, 1)
    assert not finds(view, Side.VALUE, TOPIC, 2), "its own versions do not count any more"
    assert not finds(view, Side.KEY, TOPIC, 1)
    assert not finds(view_of(*of_all, alias, (alias[0], None)), Side.VALUE, TOPIC, 1)


def test_a_schema_of_another_context_is_not_known() -> None:
    assert not finds(view_of(schema_record(":.other:t-value", 1)), Side.VALUE, TOPIC, 1)


def test_the_name_of_the_record_names_the_subject() -> None:
    view = view_of(
        schema_record("a.b.User", 1, USER),
        schema_record("t-a.b.User", 1, USER),
        schema_record("a.b.User", 2, version=2),
    )
    assert finds(view, Side.VALUE, RECORD, 1)
    assert finds(view, Side.KEY, RECORD, 1)
    assert finds(view, Side.VALUE, BOTH, 1)
    assert not finds(view, Side.VALUE, BOTH, 1, "u")
    assert not finds(view, Side.VALUE, TOPIC, 1)
    assert not finds(view, Side.VALUE, RECORD, 2), "the schema defines no record"


def test_a_protobuf_file_belongs_to_the_subjects_of_its_messages() -> None:
    text = 'syntax = "proto3"; package a.b; message User { int32 n = 1; } message Other {}'

    def record(subject: str) -> tuple[bytes, bytes]:
        return schema_key(subject), schema_value(subject, 1, text, schemaType="PROTOBUF")

    assert finds(view_of(record("a.b.Other")), Side.VALUE, RECORD, 1)
    assert finds(view_of(record("x-value"), record("t-a.b.User")), Side.VALUE, BOTH, 1)
    assert not finds(view_of(record("u-a.b.User")), Side.VALUE, BOTH, 1)
    assert not finds(view_of(record("a.b.Use"), record("t-value")), Side.VALUE, RECORD, 1)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("message A { message B {} } message\n C_1{}", {"A", "B", "C_1"}),
        ("// message A {}\nmessage B {} /* message C {} */ message D {}", {"B", "D"}),
        ('message A { string a = 1 [default = "message B \\" message C"]; } message D {}', {"A", "D"}),
        ("message A { string a = 1 [default = 'message B']; string message = 2; } message D {}", {"A", "D"}),
        ('option a = "// no comment"; message A {}', {"A"}),
        ("message A {} /* message B {}", {"A"}),
        ('message A {} "message B {}\nmessage C {}', {"A", "C"}),
        ("xmessage A {} messages B {} message", set()),
    ],
)
def test_a_comment_or_a_literal_defines_no_message(text: str, names: set[str]) -> None:
    assert message_names(text) == names


def test_a_text_is_read_once_for_its_names_also_if_no_subject_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = knowing.message_names

    def counted(text: str) -> frozenset[str]:
        read.append(text)
        return real(text)

    def nameless(stored: StoredSchema) -> None:
        read.append(stored.schema)

    monkeypatch.setattr(knowing, "message_names", counted)
    monkeypatch.setattr(knowing, "record_name", nameless)
    texts = "message A {}", "enum B { C = 0; }", '"long"'
    kinds = "PROTOBUF", "PROTOBUF", "AVRO"
    records = [
        (schema_key(f"s{place}-{number}"), schema_value(f"s{place}-{number}", number, text, schemaType=kind))
        for number, (text, kind) in enumerate(zip(texts, kinds, strict=True))
        for place in range(knowing.SUBJECTS_MAX)
    ]
    view, names = view_of(*records), RecordNames()
    for _ in range(3):
        for number in range(3):
            for side in Side:
                assert known(view, Naming("t", side, RECORD), number, names) is None
    assert sorted(read) == sorted(texts)
    monkeypatch.setattr(knowing, "NAMES_CHARS_MAX", 2 * knowing.TEXT_CHARS)
    small = RecordNames()
    read.clear()
    for number in (0, 1, 0):
        assert known(view, Naming("t", Side.VALUE, RECORD), number, small) is None
    assert read == [texts[0], texts[1], texts[0]], "the texts whose names are kept are bounded"


@pytest.mark.parametrize(
    ("kind", "text", "name"),
    [
        ("AVRO", USER, "a.b.User"),
        ("AVRO", '{"type":"enum","name":"E","symbols":[]}', "E"),
        ("AVRO", '"string"', None),
        ("AVRO", '{"type":"array","items":"long"}', None),
        ("AVRO", '{"type":"record"}', None),
        ("AVRO", "{", None),
        ("JSON", '{"title":"User","type":"object"}', "User"),
        ("JSON", '{"type":"object"}', None),
        ("JSON", '{"title":7}', None),
        ("OTHER", '{"title":"User"}', None),
    ],
)
def test_the_name_of_a_record_is_its_full_name_or_its_title(kind: str, text: str, name: str | None) -> None:
    assert record_name(StoredSchema("s", 1, 1, text, kind)) == name


def test_the_source_of_a_version_has_the_texts_that_it_refers_to() -> None:
    referring = schema_value("t-value", 2, '"a.b.User"', references=[{"name": "n", "subject": "u-value", "version": 1}])
    view = view_of(schema_record("u-value", 1, USER), (schema_key("t-value"), referring))
    version = view.newest("t-value")
    assert version is not None
    source = source_of(view, version)
    assert source is not None
    assert (source[1], [one.text for one in source[2]]) == ('"a.b.User"', [USER])
    lost = view_of((schema_key("t-value"), referring)).newest("t-value")
    assert lost is not None
    assert source_of(View(), lost) is None
