"""Records of `_schemas` in the form of other registries."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.registry.record_json import (
    Key,
    KeyType,
    Malformed,
    Reference,
    StoredSchema,
    read_config,
    read_deleted_version,
    read_key,
    read_mode,
    read_schema,
    write_deleted_version,
    write_key,
    write_schema,
)

KEYS = [
    (Key(KeyType.SCHEMA, "a", 1), b'{"keytype":"SCHEMA","subject":"a","version":1,"magic":1}'),
    (Key(KeyType.CONFIG), b'{"keytype":"CONFIG","subject":null,"magic":0}'),
    (Key(KeyType.CONFIG, "a"), b'{"keytype":"CONFIG","subject":"a","magic":0}'),
    (Key(KeyType.MODE), b'{"keytype":"MODE","subject":null,"magic":0}'),
    (Key(KeyType.DELETE_SUBJECT, "a"), b'{"keytype":"DELETE_SUBJECT","subject":"a","magic":0}'),
    (Key(KeyType.CLEAR_SUBJECT, "a"), b'{"keytype":"CLEAR_SUBJECT","subject":"a","magic":0}'),
    (Key(KeyType.NOOP), b'{"keytype":"NOOP","magic":0}'),
]


@pytest.mark.parametrize(("key", "data"), KEYS)
def test_keys_have_the_bytes_that_other_registries_write(key: Key, data: bytes) -> None:
    assert write_key(key) == data
    assert read_key(data) == key


def test_a_key_in_another_order_is_the_same_key() -> None:
    assert read_key(b'{"magic": 1, "version": 1, "subject": "a", "keytype": "SCHEMA", "x": 2}') == KEYS[0][0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"7",
        b"[" * 100_000,
        b"{}",
        b'{"keytype":"FUTURE","magic":0}',
        b'{"keytype":["SCHEMA"]}',
        b'{"keytype":"SCHEMA","subject":"a","version":0,"magic":1}',
        b'{"keytype":"SCHEMA","subject":"a","version":true,"magic":1}',
        b'{"keytype":"SCHEMA","version":1,"magic":1}',
        b'{"keytype":"CONFIG","subject":7,"magic":0}',
    ],
)
def test_a_key_of_no_known_form_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_key(data)


def test_a_schema_of_confluents_registry_is_read() -> None:
    value = (
        b'{"subject":"a","version":1,"id":4,"md5":"x","schemaType":"JSON","references":[{"name":"n","subject":"b","version":2}],'
        b'"metadata":{"properties":{"owner":"me"}},"ruleSet":null,"schema":"{}","deleted":true}'
    )
    assert read_schema(value, Key(KeyType.SCHEMA, "a", 1)) == StoredSchema(
        "a", 1, 4, "{}", "JSON", (Reference("n", "b", 2),), {"properties": {"owner": "me"}}, None, True, None
    )


def test_an_avro_schema_is_written_without_type_and_empty_references() -> None:
    written = json.loads(write_schema(StoredSchema("a", 1, 4, '"int"')))
    assert written == {"subject": "a", "version": 1, "id": 4, "schema": '"int"', "deleted": False}


@given(st.binary(max_size=60) | st.from_regex(r'\{"(subject|id|schema|mode|version)": ?.{0,20}\}').map(str.encode))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    for read in (read_key, lambda one: read_schema(one, KEYS[0][0]), read_config, read_mode, read_deleted_version):
        try:
            read(data)
        except Malformed:
            continue


def test_a_deletion_names_the_greatest_version() -> None:
    assert read_deleted_version(write_deleted_version("a", 3)) == 3
