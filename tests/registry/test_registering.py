"""Decisions of the registry: ids, versions, references, deletions, configs and modes."""

from __future__ import annotations

import pytest

from app.core.turns import whole
from app.registry.ownership import OWNER_KEY, Ownership, encode_ownership
from app.registry.parsing.limits import SCHEMA_BYTES_MAX
from app.registry.parsing.schemas import SchemaType
from app.registry.record_json import Key, KeyType, Reference, write_key
from app.registry.refusals import Code, RegistryRefusal
from app.registry.registering import (
    REFERENCES_MAX,
    SchemaRequest,
    delete_subject,
    delete_version,
    of_group,
    referenced,
    set_config,
    set_mode,
    with_extras,
)
from app.registry.subjects import check_subject, read_context, read_subject
from tests.support.registry import Log, encoded, read_version, schema_record


@pytest.fixture(name="log")
def _log() -> Log:
    log = Log()
    log.put(OWNER_KEY, encode_ownership(Ownership({})))
    return log


def refused(code: Code) -> pytest.RaisesExc[RegistryRefusal]:
    return pytest.RaisesExc(RegistryRefusal, check=lambda error: error.code is code)


def test_the_same_schema_has_one_id_in_all_subjects(log: Log) -> None:
    assert log.register("a", "string")[:2] == (1, 1)
    assert log.register("b", '{"type": "string"}')[:2] == (1, 1)
    assert log.register("a", {"type": "int"})[:2] == (2, 2)
    again = log.register("a", "string")
    assert (again.id, again.version, again.append) == (1, 1, None)


def test_metadata_make_another_schema(log: Log) -> None:
    first = log.register("a", "string", metadata={"properties": {"x": "1"}})
    assert log.register("a", "string", metadata={"properties": {"x": "2"}}).id != first.id
    assert log.register("a", "string", metadata={"properties": {"x": "1"}}).append is None


def test_a_text_that_grows_past_the_limit_where_it_is_stored_is_refused(log: Log) -> None:
    values = "".join(f"A{n}={n};" for n in range(8_000))
    text = "message M {" * 31 + f"enum E {{ {values} }}" + "}" * 31
    assert len(text) < SCHEMA_BYTES_MAX
    with pytest.raises(RegistryRefusal, match="characters in the layout in which it is stored") as caught:
        log.register("a", text, kind=SchemaType.PROTOBUF)
    assert caught.value.code is Code.INVALID_SCHEMA
    assert not log.entries[1:]


def test_only_the_text_that_is_stored_counts_for_the_limit(log: Log) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A"]}
    fields = [{"name": f"f{n}", "type": "E" if n else enum} for n in range(500)]
    schema = {"type": "record", "name": "R", "namespace": "n" * 990, "fields": fields}
    with refused(Code.INVALID_SCHEMA):
        log.register("a", schema, normalize=True)
    log.register("a", schema)
    [stored] = log.view.versions("a")
    assert read_version(log.view, stored) is not None


def test_a_hard_deleted_schema_gets_a_new_id_after_compaction_too(log: Log) -> None:
    first = log.register("a", "string")
    view, subject = log.view, read_subject("a")
    log.append(delete_subject(view, subject, permanent=False)[1])
    log.append(delete_subject(log.view, subject, permanent=True)[1])
    log.put(OWNER_KEY, encode_ownership(Ownership({".": first.id})))
    log.compact()
    assert log.register("a", "string").id == first.id + 1


def test_a_soft_deleted_schema_comes_back_as_a_new_version_with_its_id(log: Log) -> None:
    first = log.register("a", "string")
    version = log.view.versions("a")[0]
    log.append(delete_version(log.view, read_subject("a"), version, permanent=False))
    again = log.register("a", "string")
    assert (again.id, again.version) == (first.id, 2)


def test_a_hard_delete_covers_every_form_of_the_key(log: Log) -> None:
    log.register("a", "string")
    other = b'{"subject": "a", "version": 1, "magic": 1, "keytype": "SCHEMA"}'
    log.put(other, schema_record("a", 1, 1)[1])
    log.append(delete_subject(log.view, read_subject("a"), permanent=False)[1])
    log.append(delete_subject(log.view, read_subject("a"), permanent=True)[1])
    log.compact()
    assert list(log.view.subjects(deleted=True)) == []


def test_a_referenced_version_is_not_deleted(log: Log) -> None:
    log.register("b", {"type": "enum", "name": "E", "symbols": ["A"]})
    log.register("a", {"type": "array", "items": "E"}, Reference("E", "b", 1))
    view = log.view
    with refused(Code.REFERENCE_EXISTS):
        delete_version(view, read_subject("b"), view.versions("b")[0], permanent=False)
    with refused(Code.REFERENCE_EXISTS):
        delete_subject(view, read_subject("b"), permanent=False)


def test_a_reference_to_the_newest_version_is_stored_with_its_number(log: Log) -> None:
    log.register("b", {"type": "enum", "name": "E", "symbols": ["A"]})
    log.register("a", {"type": "array", "items": "E"}, Reference("E", "b", -1))
    assert log.view.versions("a")[0].stored.references == (Reference("E", "b", 1),)


def test_references_that_lead_in_a_circle_or_nowhere_are_refused_or_end(log: Log) -> None:
    with refused(Code.INVALID_SCHEMA):
        log.register("a", '"E"', Reference("E", "b", 1))
    log.put(*schema_record("x", 1, 8, '"int"', references=(Reference("y", "y", 1),)))
    log.put(*schema_record("y", 1, 9, '"int"', references=(Reference("x", "x", 1),)))
    assert log.register("a", "string", Reference("x", "x", 1)).id == 10


def test_too_many_references_are_refused(log: Log) -> None:
    log.register("a", "string")
    one = Reference("a", "a", 1)
    with refused(Code.INVALID_SCHEMA):
        log.register("b", "int", *[one] * (REFERENCES_MAX + 1))
    many = tuple(Reference(f"a{n}", "a", 1) for n in range(REFERENCES_MAX))
    for number in range(5):
        log.put(*schema_record(f"many{number}", 1, 10 + number, f'"{number}"', references=many))
    with refused(Code.INVALID_SCHEMA):
        referenced(log.view, read_subject("b"), [Reference(f"m{n}", f"many{n}", 1) for n in range(5)])
    assert [one.name for one in referenced(log.view, read_subject("b"), [Reference("m", "many0", 1)])] == ["a0", "m"]


def test_deletions_come_in_two_steps(log: Log) -> None:
    subject = read_subject("a")
    with refused(Code.SUBJECT_NOT_FOUND):
        delete_subject(log.view, subject, permanent=False)
    log.register("a", "string")
    with refused(Code.SUBJECT_NOT_SOFT_DELETED):
        delete_subject(log.view, subject, permanent=True)
    with refused(Code.VERSION_NOT_SOFT_DELETED):
        delete_version(log.view, subject, log.view.versions("a")[0], permanent=True)
    versions, append = delete_subject(log.view, subject, permanent=False)
    assert versions == [1]
    log.append(append)
    with refused(Code.SUBJECT_SOFT_DELETED):
        delete_subject(log.view, subject, permanent=False)
    with refused(Code.VERSION_SOFT_DELETED):
        delete_version(log.view, subject, log.view.versions("a", deleted=True)[0], permanent=False)


def test_a_deleted_subject_loses_its_own_settings(log: Log) -> None:
    log.register("a", "string")
    log.append(set_config(log.view, "a", {"compatibilityLevel": "NONE"}, read_subject("a")))
    log.append(delete_subject(log.view, read_subject("a"), permanent=False)[1])
    assert log.view.config("a") is None


def test_a_read_only_subject_takes_nothing(log: Log) -> None:
    log.register("a", "string")
    log.append(set_mode(log.view, "a", "READONLY", read_subject("a"), force=False))
    with refused(Code.NOT_PERMITTED):
        log.register("a", "int")
    with refused(Code.NOT_PERMITTED):
        delete_subject(log.view, read_subject("a"), permanent=False)
    log.register("b", "int")


def test_import_keeps_ids_and_versions_and_overwrites_no_schema(log: Log) -> None:
    with refused(Code.NOT_PERMITTED):
        log.register("a", "string", id=50)
    log.append(set_mode(log.view, None, "IMPORT", None, force=False))
    with refused(Code.NOT_PERMITTED):
        log.register("a", "string")
    assert log.register("a", "string", id=50, version=7)[:2] == (50, 7)
    with refused(Code.NOT_PERMITTED):
        log.register("a", "int", id=50, version=8)
    with refused(Code.NOT_PERMITTED):
        log.register("a", "int", id=51, version=7)
    log.append(set_mode(log.view, None, "READWRITE", None, force=False))
    assert log.register("a", "int")[:2] == (51, 8)


def test_import_mode_needs_an_empty_subject_or_force(log: Log) -> None:
    log.register("a", "string")
    with refused(Code.NOT_PERMITTED):
        set_mode(log.view, None, "IMPORT", None, force=False)
    assert set_mode(log.view, "b", "IMPORT", read_subject("b"), force=False).subject is None
    assert set_mode(log.view, None, "IMPORT", None, force=True).records


def test_wrong_levels_and_modes_are_refused(log: Log) -> None:
    with refused(Code.INVALID_LEVEL):
        set_config(log.view, None, {"compatibilityLevel": "SOME"}, None)
    with refused(Code.INVALID_MODE):
        set_mode(log.view, None, "SOME", None, force=False)


def test_a_version_that_is_not_the_next_one_is_refused(log: Log) -> None:
    with refused(Code.INVALID_SCHEMA):
        log.register("a", "string", version=3)
    assert log.register("a", "string", version=1).version == 1


def test_a_config_keeps_the_members_that_are_not_changed(log: Log) -> None:
    log.append(set_config(log.view, "a", {"normalize": True}, read_subject("a")))
    log.append(set_config(log.view, "a", {"compatibilityLevel": "FULL"}, read_subject("a")))
    assert log.view.config("a") == {"normalize": True, "compatibilityLevel": "FULL"}
    assert log.view.setting(read_subject("a"), "normalize") is True


def test_an_operator_switches_a_log_of_another_registry() -> None:
    log = Log()
    log.put(*schema_record("a", 1, 5))
    with refused(Code.NOT_PERMITTED):
        log.register("a", "int")
    append = set_mode(log.view, None, "READWRITE", None, force=False)
    assert [key for key, _ in append.records] == [write_key(Key(KeyType.MODE))]
    log.append(append)
    log.put(OWNER_KEY, encode_ownership(Ownership({".": 5})))
    assert log.register("a", "int").id == 6


def test_a_stored_text_in_another_form_is_the_same_schema(log: Log) -> None:
    log.put(*schema_record("a", 1, 5, '{"type": "string"}'))
    assert log.register("a", "string").id == 5


@pytest.mark.parametrize(
    ("text", "base", "qualified"),
    [
        ("a", ".", "a"),
        (":.:a", ".", "a"),
        (":.c:a", ".", ":.c:a"),
        ("a", ".c", ":.c:a"),
        (":.d:a", ".c", ":.d:a"),
        (":.c:a:b", ".", ":.c:a:b"),
        ("a:b", ".", "a:b"),
    ],
)
def test_subjects_are_read_with_their_contexts(text: str, base: str, qualified: str) -> None:
    assert read_subject(text, base).qualified == qualified


@pytest.mark.parametrize("name", ["", ":.c:", "a\nb", "a" * 1_001, "__GLOBAL"])
def test_names_that_are_no_subject_are_refused(name: str) -> None:
    with refused(Code.INVALID_SUBJECT):
        check_subject(read_subject(name))


def test_contexts_are_read_in_all_forms() -> None:
    assert [read_context(one) for one in ("c", ".c", ":.c:", ".")] == [".c", ".c", ".c", "."]
    with refused(Code.INVALID_SUBJECT):
        read_context("a:b")


def test_a_config_of_another_registry_is_shown_as_it_is(log: Log) -> None:
    log.put(write_key(Key(KeyType.CONFIG, "a")), encoded({"compatibilityLevel": "FULL", "alias": "b"}))
    assert log.view.config("a") == {"compatibilityLevel": "FULL", "alias": "b"}


def test_versions_with_rules_and_those_of_a_group_are_chosen_in_steps(log: Log) -> None:
    extras = {"properties": {"major": "1"}}
    log.register("a", "int", metadata=extras)
    log.append(set_config(log.view, "a", {"compatibilityGroup": "major"}, read_subject("a")))
    view, count = log.view, 10_000
    versions = view.versions("a") * count
    asked = SchemaRequest(read_subject("a"), SchemaType.AVRO, '"int"', metadata=extras)
    for choose in (lambda: with_extras(versions), lambda: of_group(view, asked, versions)):
        assert sum(1 for _ in choose()) > 100
        assert len(whole(choose())) == count
