"""Records of `_schemas`: keys and values as JSON, in the form that existing registries read and write.

Keys that Firn writes have the members in the order ``keytype``, ``subject``, ``version``, ``magic``. Compaction compares the bytes
of keys, so a key is always written alike. Other writers may use another order: a reader takes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

INT_MAX: Final = 2**31 - 1


class KeyType(StrEnum):
    """Kinds of records."""

    SCHEMA = "SCHEMA"
    CONFIG = "CONFIG"
    MODE = "MODE"
    DELETE_SUBJECT = "DELETE_SUBJECT"
    CLEAR_SUBJECT = "CLEAR_SUBJECT"
    NOOP = "NOOP"


_MAGIC: Final = {KeyType.SCHEMA: 1}
_SUBJECT_IN_KEY: Final = frozenset(
    {KeyType.SCHEMA, KeyType.CONFIG, KeyType.MODE, KeyType.DELETE_SUBJECT, KeyType.CLEAR_SUBJECT}
)


class Key(NamedTuple):
    """The key of a record."""

    kind: KeyType
    subject: str | None = None
    """None in CONFIG and MODE for all subjects."""
    version: int = 0
    """Of SCHEMA."""


class Reference(NamedTuple):
    """A schema that another one uses."""

    name: str
    """The name by which the text refers to it."""
    subject: str
    version: int


class StoredSchema(NamedTuple):
    """The value of a SCHEMA record."""

    subject: str
    version: int
    id: int
    schema: str
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: Any = None
    rule_set: Any = None
    deleted: bool = False
    guid: str | None = None


class Malformed(ValueError):
    """A key or a value is of no form that Firn knows."""


def read_key(data: bytes) -> Key:
    """Raises: Malformed."""
    found = _object(data)
    named = found.get("keytype")
    if not isinstance(named, str) or named not in KeyType.__members__:
        raise Malformed("the key is of no known kind")
    kind = KeyType(named)
    subject = found.get("subject")
    version = found.get("version", 0)
    if subject is not None and not isinstance(subject, str):
        raise Malformed("the subject is no string")
    if kind is KeyType.SCHEMA and not _is_version(version):
        raise Malformed("the version is no version")
    if subject is None and kind in (KeyType.SCHEMA, KeyType.DELETE_SUBJECT):
        raise Malformed("the key names no subject")
    return Key(kind, subject if kind in _SUBJECT_IN_KEY else None, version if kind is KeyType.SCHEMA else 0)


def write_key(key: Key) -> bytes:
    """The bytes of a key, in the order of members that Firn writes."""
    made: dict[str, Any] = {"keytype": key.kind.value}
    if key.kind in _SUBJECT_IN_KEY:
        made["subject"] = key.subject
    if key.kind is KeyType.SCHEMA:
        made["version"] = key.version
    made["magic"] = _MAGIC.get(key.kind, 0)
    return msgspec.json.encode(made)


def read_schema(data: bytes, key: Key) -> StoredSchema:
    """The value of the record with this key. Raises: Malformed."""
    found = _object(data)
    subject, version = found.get("subject"), found.get("version")
    number, schema = found.get("id"), found.get("schema")
    kind = found.get("schemaType") or "AVRO"
    if subject != key.subject or version != key.version:
        raise Malformed("key and value name two versions")
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= INT_MAX:
        raise Malformed("the id is no id")
    if not isinstance(schema, str) or not isinstance(kind, str):
        raise Malformed("the schema is no string")
    guid = found.get("guid")
    return StoredSchema(
        key.subject or "",
        key.version,
        number,
        schema,
        kind,
        read_references(found.get("references")),
        found.get("metadata"),
        found.get("ruleSet"),
        found.get("deleted") is True,
        guid if isinstance(guid, str) else None,
    )


def read_references(value: Any) -> tuple[Reference, ...]:
    """Raises: Malformed."""
    if value is None:
        return ()
    if not isinstance(value, list):
        raise Malformed("the references are no array")
    made = []
    for one in value:
        match one:
            case {"name": str(name), "subject": str(subject), "version": int(version)}:
                made.append(Reference(name, subject, version))
            case _:
                raise Malformed("a reference has no name, subject and version")
    return tuple(made)


def shown_references(references: Sequence[Reference]) -> list[dict[str, Any]]:
    """References as they are written."""
    return [{"name": one.name, "subject": one.subject, "version": one.version} for one in references]


def write_schema(stored: StoredSchema) -> bytes:
    """The value of a SCHEMA record. Members that say nothing are left out: registries of all ages read the rest."""
    made: dict[str, Any] = {"subject": stored.subject, "version": stored.version, "id": stored.id}
    if stored.schema_type != "AVRO":
        made["schemaType"] = stored.schema_type
    if stored.references:
        made["references"] = shown_references(stored.references)
    if stored.metadata is not None:
        made["metadata"] = stored.metadata
    if stored.rule_set is not None:
        made["ruleSet"] = stored.rule_set
    made["schema"] = stored.schema
    made["deleted"] = stored.deleted
    return msgspec.json.encode(made)


def read_config(data: bytes) -> Mapping[str, Any]:
    """The value of a CONFIG record. Raises: Malformed."""
    found = _object(data)
    if not isinstance(found.get("compatibilityLevel", ""), (str, type(None))):
        raise Malformed("the level is no string")
    return found


def read_mode(data: bytes) -> str:
    """The value of a MODE record. Raises: Malformed."""
    mode = _object(data).get("mode")
    if not isinstance(mode, str):
        raise Malformed("the mode is no string")
    return mode


def read_deleted_version(data: bytes) -> int:
    """The value of a DELETE_SUBJECT record: the greatest version that it deletes. Raises: Malformed."""
    version = _object(data).get("version")
    if not _is_version(version):
        raise Malformed("the version is no version")
    assert isinstance(version, int)
    return version


def write_deleted_version(subject: str, version: int) -> bytes:
    """The value of a DELETE_SUBJECT record."""
    return msgspec.json.encode({"subject": subject, "version": version})


def write_json(value: Mapping[str, Any]) -> bytes:
    """The value of a CONFIG or MODE record."""
    return msgspec.json.encode(value)


def _is_version(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= INT_MAX


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise Malformed("the bytes are not JSON") from None
    if not isinstance(found, dict):
        raise Malformed("the value is no object")
    return found
