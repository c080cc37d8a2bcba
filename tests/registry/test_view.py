"""The view that a replay of `_schemas` gives."""

from __future__ import annotations

import pytest

from app.core.turns import STRIDE
from app.registry.compatibility.levels import Level
from app.registry.ownership import OWNER_KEY, Ownership, encode_ownership
from app.registry.record_json import Key, KeyType, Reference, write_deleted_version, write_key
from app.registry.subjects import read_subject
from app.registry.view import Mode
from tests.support.registry import Log, encoded, schema_record


def test_malformed_records_and_unknown_kinds_are_skipped_and_counted() -> None:
    log = Log()
    log.put(*schema_record("a", 1, 1))
    log.put(b"\xff\x00", b"\xff")
    log.put(b'{"keytype":"FUTURE","magic":0}', b"{}")
    log.put(write_key(Key(KeyType.SCHEMA, "a", 2)), b"{not json")
    log.put(write_key(Key(KeyType.SCHEMA, "a", 2)), encoded({"subject": "b", "version": 2, "id": 2, "schema": "x"}))
    log.put(*schema_record("a", 3, 2, '"int"'))
    assert log.view.skipped == 4
    assert [one.stored.version for one in log.view.versions("a")] == [1, 3]


def test_a_soft_deleted_version_is_found_by_its_id_and_not_in_its_subject() -> None:
    log = Log()
    log.put(*schema_record("a", 1, 1))
    log.put(write_key(Key(KeyType.DELETE_SUBJECT, "a")), write_deleted_version("a", 1))
    log.put(*schema_record("a", 2, 2, '"int"'))
    view = log.view
    assert [one.stored.version for one in view.versions("a")] == [2]
    assert [one.stored.version for one in view.versions("a", deleted=True)] == [1, 2]
    assert view.uses(".", 1) == [("a", 1)]
    assert view.schema(".", 1) == view.version("a", 1)
    assert list(view.subjects()) == ["a"]
    assert list(view.subjects(deleted_only=True)) == []


def test_a_hard_deleted_schema_is_gone() -> None:
    log = Log()
    key, value = schema_record("a", 1, 1)
    log.put(key, value)
    log.put(key, None)
    assert log.view.uses(".", 1) == []
    assert list(log.view.subjects(deleted=True)) == []
    assert log.view.contexts() == {"."}


def test_of_two_forms_of_a_key_the_later_record_counts_and_both_are_known() -> None:
    log = Log()
    other = b'{"subject":"a","version":1,"magic":1,"keytype":"SCHEMA"}'
    log.put(other, schema_record("a", 1, 1)[1])
    log.put(*schema_record("a", 1, 1, deleted=True))
    view = log.view
    assert view.versions("a") == []
    assert set(view.forms(Key(KeyType.SCHEMA, "a", 1))) == {other, write_key(Key(KeyType.SCHEMA, "a", 1))}


def test_settings_come_from_the_subject_then_its_context_then_all() -> None:
    log = Log()
    subject = read_subject(":.c:a")
    assert log.view.level(subject) is Level.BACKWARD
    for name, level in ((None, "FULL"), (":.c:", "NONE"), (":.c:a", "FORWARD")):
        log.put(write_key(Key(KeyType.CONFIG, name)), encoded({"compatibilityLevel": level}))
        log.put(write_key(Key(KeyType.MODE, name)), encoded({"mode": "IMPORT" if name else "READONLY"}))
        log.put(OWNER_KEY, encode_ownership(Ownership({})))
        assert log.view.level(subject) is Level(level)
    assert log.view.level(read_subject("a")) is Level.FULL
    assert log.view.mode(subject) is Mode.IMPORT
    assert log.view.mode(read_subject("a")) is Mode.READONLY


def test_an_unknown_level_or_mode_of_another_registry_does_not_count() -> None:
    log = Log()
    log.put(OWNER_KEY, encode_ownership(Ownership({})))
    log.put(write_key(Key(KeyType.CONFIG)), encoded({"compatibilityLevel": "SOME"}))
    log.put(write_key(Key(KeyType.MODE)), encoded({"mode": "FORWARD"}))
    assert log.view.level(read_subject("a")) is Level.BACKWARD
    assert log.view.mode(None) is Mode.READWRITE


def test_a_log_that_another_registry_wrote_is_read_only() -> None:
    log = Log()
    log.put(write_key(Key(KeyType.NOOP)), None)
    assert log.view.mode(None) is Mode.READWRITE
    log.put(*schema_record("a", 1, 1))
    log.put(write_key(Key(KeyType.MODE)), encoded({"mode": "READWRITE"}))
    assert log.view.mode(None) is Mode.READONLY
    log.put(OWNER_KEY, encode_ownership(Ownership({".": 1})))
    assert log.view.mode(None) is Mode.READWRITE


def test_ids_of_contexts_do_not_meet() -> None:
    log = Log()
    log.put(*schema_record("a", 1, 1))
    log.put(*schema_record(":.c:a", 1, 1, '"int"'))
    view = log.view
    assert [one.stored.schema for one in (view.schema(".", 1), view.schema(".c", 1)) if one] == ['"string"', '"int"']
    assert view.contexts() == {".", ".c"}


def test_referrers_are_the_live_versions_that_refer() -> None:
    log = Log()
    log.put(*schema_record("b", 1, 1))
    log.put(*schema_record("a", 1, 2, '"int"', references=(Reference("n", "b", 1),)))
    assert [one.stored.subject for one in log.view.referrers("b", 1)] == ["a"]
    log.put(*schema_record("a", 1, 2, '"int"', references=(Reference("n", "b", 1),), deleted=True))
    assert list(log.view.referrers("b", 1)) == []


def test_a_guid_is_that_of_the_content() -> None:
    log = Log()
    log.put(*schema_record("a", 1, 1))
    log.put(*schema_record(":.c:b", 1, 7))
    log.put(*schema_record("c", 1, 2, '"int"'))
    view = log.view
    versions = {name: view.versions(name)[0] for name in ("a", ":.c:b", "c")}
    assert versions["a"].guid == versions[":.c:b"].guid != versions["c"].guid
    assert [one.stored.id for one in view.by_guid(versions["a"].guid)] == [1, 7]


@pytest.mark.parametrize("greatest", [0, 9])
def test_the_greatest_id_counts_ids_that_the_log_no_longer_holds(greatest: int) -> None:
    log = Log()
    log.put(OWNER_KEY, encode_ownership(Ownership({".": greatest})))
    key, value = schema_record("a", 1, 5)
    log.put(key, value)
    log.put(key, None)
    assert log.view.greatest_id(".") == max(greatest, 5)


def test_versions_are_in_order_however_they_came() -> None:
    log = Log()
    for number in (3, 1, 2):
        log.put(*schema_record("a", number, number, f'"{number}"'))
    assert [one.stored.version for one in log.view.versions("a")] == [1, 2, 3]
    newest = log.view.newest("a")
    assert newest is not None
    assert newest.stored.version == 3


def test_a_subject_is_listed_by_its_live_versions() -> None:
    log = Log()
    log.put(*schema_record("a", 1, 1))
    log.put(*schema_record("a", 2, 2, '"int"'))
    log.put(*schema_record("a", 1, 1, deleted=True))
    assert log.view.subjects() == ["a"]
    log.put(*schema_record("a", 2, 2, '"int"', deleted=True))
    assert (log.view.subjects(), log.view.subjects(deleted=True)) == ([], ["a"])
    assert (log.view.subjects(deleted_only=True), log.view.newest("a")) == (["a"], None)
    log.put(*schema_record("a", 1, 1))
    assert log.view.subjects() == ["a"]
    log.put(schema_record("a", 1, 1)[0], None)
    assert (log.view.subjects(), log.view.version_count, log.view.chars) == ([], 1, len('"int"'))


def test_a_schema_that_is_gone_is_not_found_by_its_guid() -> None:
    log = Log()
    log.put(*schema_record("a", 1, 1))
    guid = log.view.versions("a")[0].guid
    log.put(schema_record("a", 1, 1)[0], None)
    assert log.view.by_guid(guid) == []
    log.put(*schema_record("a", 2, 2))
    assert [one.stored.id for one in log.view.by_guid(guid)] == [2]


def test_referrers_are_counted_in_steps_and_the_first_ones_are_named() -> None:
    log = Log()
    log.put(*schema_record("b", 1, 1))
    for number in range(200):
        references = (Reference("n", "b", 1),)
        log.put(*schema_record(f"a{number}", 1, 2, '"int"', references=references, deleted=number == 0))
    steps = log.view.count_referrers("b", 1, 2)
    rests = 0
    try:
        while True:
            next(steps)
            rests += 1
    except StopIteration as end:
        count, named = end.value
    assert (count, [one.stored.subject for one in named]) == (199, ["a1", "a2"])
    assert rests >= 200 // STRIDE
