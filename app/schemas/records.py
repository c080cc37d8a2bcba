"""The records of `_schemas` as their leader sees them: kind, subject, id, and whether they delete (ADR 0041, SR6). Pure.

Other registries write keys and values as JSON. A record that cannot be read is skipped by a replay, and refused in an append. Keys
of an append are read strictly: members that are unknown or come twice could mean another subject to another reader.
Tests: ``tests/schemas/test_records.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from app.core.errors import ErrorCode, RequestRejected, clause
from app.registry.subjects import read_subject

KEY_BYTES_MAX: Final = 4096
"""Of a key. A subject's name and a few members."""
CONTEXT_CHARS_MAX: Final = 255
ID_MAX: Final = 2**31 - 1
_HASH_BYTES: Final = 8

SCHEMA: Final = "SCHEMA"
OF_SUBJECT: Final = frozenset({SCHEMA, "DELETE_SUBJECT", "CLEAR_SUBJECT"})
"""Kinds of records that belong to one subject. All others (configs, modes, contexts) belong to the operator."""
OPERATOR: Final = frozenset({"CONFIG", "MODE", "CONTEXT"})
_MEMBERS: Final = frozenset({"keytype", "subject", "version", "magic", "context", "tenant"})
_SUFFIXES: Final = ("-key", "-value")

RawRecord: TypeAlias = tuple[bytes, bytes | None]


class _Key(msgspec.Struct):
    keytype: str
    subject: str | None = None
    version: int | None = None
    context: str | None = None


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _SchemaValue(msgspec.Struct):
    subject: str
    version: int
    id: int
    schema: str
    schemaType: str | None = None  # noqa: N815 (as the registries write it)
    references: list[_Reference] | None = None
    deleted: bool = False


_KEYS: Final = msgspec.json.Decoder(_Key)
_VALUES: Final = msgspec.json.Decoder(_SchemaValue)


class Meaning(NamedTuple):
    """A record as the leader understands it."""

    kind: str
    """The key's ``keytype``."""
    subject: str | None
    name: int
    """A hash of the members of the key: keys that differ in form only have the same."""
    form: int
    """A hash of the key's bytes."""
    exists: bool
    """Whether the record has a value; False for a tombstone."""
    deletes: bool
    """Whether it takes something away: a tombstone, a version that is marked as deleted, or a deleted subject."""
    schema_id: int
    """Of a schema; else 0."""
    digest: int
    """A hash of a schema's type, text and references; else 0."""

    @property
    def context(self) -> str:
        """The context of a schema's subject."""
        return read_subject(self.subject or "").context


def topic_of(subject: str) -> str | None:
    """The topic that a subject names (TopicNameStrategy), in any context; None if it names none."""
    name = read_subject(subject).name
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and len(name) > len(suffix):
            return name[: -len(suffix)]
    return None


def subject_of(key: bytes) -> str | None:
    """The subject that a key names; None if it names none. Raises: ValueError for a key that cannot be read."""
    try:
        return _KEYS.decode(key).subject
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None


def meaning_of(key: bytes, value: bytes | None) -> Meaning | None:
    """The meaning of a stored record; None if it cannot be read, which is skipped."""
    try:
        found = _KEYS.decode(key)
        return _meaning(found, key, value)
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return None


def read_asked(subject: str | None, records: Sequence[RawRecord]) -> list[Meaning]:
    """The meanings of the records of an append. ``subject``: the one that all of them must belong to; None for the operator's.

    Raises: RequestRejected INVALID_RECORD, with the place of the record.
    """
    return [read_one(subject, place, key, value) for place, (key, value) in enumerate(records)]


def read_one(subject: str | None, place: int, key: bytes, value: bytes | None) -> Meaning:
    """As ``read_asked``, for the record at ``place``."""
    if len(key) > KEY_BYTES_MAX:
        raise _refused(place, f"its key has {len(key)} bytes, and {KEY_BYTES_MAX} are allowed")
    try:
        _check_members(key)
        found = _KEYS.decode(key)
        if found.keytype not in OF_SUBJECT and found.keytype not in OPERATOR:
            raise _refused(place, f"its key is of the kind '{found.keytype[:64]}', which clients do not write")
        if found.keytype in OF_SUBJECT and not found.subject:
            raise _refused(place, "its key names no subject")
        if subject is not None and found.subject != subject:
            raise _refused(place, "its key belongs to another subject than the request")
        meaning = _meaning(found, key, value)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise _refused(place, f"it cannot be read, {clause(error)}") from None
    if len(meaning.context) > CONTEXT_CHARS_MAX:
        raise _refused(place, f"its context has more than {CONTEXT_CHARS_MAX} characters")
    if meaning.kind == SCHEMA:
        if found.version is None or found.version < 1:
            raise _refused(place, "its key has no version")
        if meaning.exists and not 1 <= meaning.schema_id <= ID_MAX:
            raise _refused(place, f"{meaning.schema_id} is no id of a schema")
        if value is not None:
            told = _VALUES.decode(value)
            if told.subject != found.subject or told.version != found.version:
                raise _refused(place, "its key and its value name different versions")
    return meaning


def _check_members(key: bytes) -> None:
    """Raises: ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            raise ValueError("a member of the key comes twice")
        if not members.keys() <= _MEMBERS:
            raise ValueError("a member of the key is not known")
        return members

    json.loads(key, object_pairs_hook=once)


def _meaning(key: _Key, raw: bytes, value: bytes | None) -> Meaning:
    name = _hash(f"{key.keytype}\0{key.subject}\0{key.version}\0{key.context}".encode())
    schema_id = digest = 0
    deletes = value is None or key.keytype in ("DELETE_SUBJECT", "CLEAR_SUBJECT")
    if value is not None and key.keytype == SCHEMA:
        told = _VALUES.decode(value)
        schema_id, digest = told.id, _digest(told)
        deletes = told.deleted
    return Meaning(key.keytype, key.subject, name, _hash(raw), value is not None, deletes, schema_id, digest)


def _digest(value: _SchemaValue) -> int:
    references = [(one.name, one.subject, one.version) for one in value.references or ()]
    return _hash(msgspec.msgpack.encode((value.schemaType or "AVRO", value.schema, references)))


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=_HASH_BYTES).digest(), "big")


def _refused(place: int, why: str) -> RequestRejected:
    return RequestRejected(ErrorCode.INVALID_RECORD, f"Record {place} of the request is refused: {why}.")
