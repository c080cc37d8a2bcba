"""Texts of stored schemas, and the names of the records that they define. Pure.

Tests: ``tests/schemas/test_knowing.py``, ``tests/http/rest_v3/test_records_with_schemas.py``.
"""

from __future__ import annotations

from typing import Any, TypeAlias, assert_never

from app.registry.parsing.avro import NamedType, full_name_of
from app.registry.parsing.limits import read_json
from app.registry.parsing.schemas import Named, ParsedSchema, SchemaType
from app.registry.record_json import StoredSchema
from app.registry.refusals import RegistryRefusal, SchemaInvalid
from app.registry.registering import referenced
from app.registry.subjects import read_subject
from app.registry.view import Version, View

Source: TypeAlias = tuple[SchemaType, str, tuple[Named, ...]]
"""A text with its type and the texts that it refers to."""


def record_name(stored: StoredSchema) -> str | None:
    """The name of the record that a schema defines: the full name in Avro, the title in JSON Schema. None if it has no name."""
    try:
        value: Any = read_json(stored.schema)
    except SchemaInvalid:
        return None
    if not isinstance(value, dict):
        return None
    match stored.schema_type:
        case SchemaType.AVRO:
            return full_name_of(value)
        case SchemaType.JSON:
            title = value.get("title")
            return title if isinstance(title, str) and title else None
    return None


def record_name_of(parsed: ParsedSchema) -> str | None:
    """As ``record_name``, of a schema that was read: also the full name of the first message in Protobuf."""
    match parsed.kind:
        case SchemaType.AVRO:
            return parsed.model.name if isinstance(parsed.model, NamedType) else None
        case SchemaType.JSON:
            title = parsed.model.root.get("title") if isinstance(parsed.model.root, dict) else None
            return title if isinstance(title, str) and title else None
        case SchemaType.PROTOBUF:
            first = next(iter(parsed.model.file.message_types_by_name.values()), None)
            return None if first is None else str(first.full_name)
        case _:
            assert_never(parsed.kind)


def source_of(view: View, version: Version) -> Source | None:
    """The text of a version with those that it refers to; None if its type is unknown or a reference is missing."""
    stored = version.stored
    if stored.schema_type not in SchemaType.__members__:
        return None
    try:
        named = referenced(view, read_subject(stored.subject), stored.references)
    except RegistryRefusal:
        return None
    return SchemaType(stored.schema_type), stored.schema, tuple(named)
