"""The registry's decisions over a log in memory, as the HTTP routes use them, without a socket."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from app.core.turns import whole
from app.registry.parsing.schemas import ParsedSchema, SchemaType, parse
from app.registry.record_json import Key, KeyType, Reference, StoredSchema, write_key, write_schema
from app.registry.refusals import SchemaInvalid
from app.registry.registering import (
    Append,
    Registered,
    SchemaRequest,
    is_same,
    referenced,
    register,
    wanted_content,
    with_text,
)
from app.registry.schema_log import Entry
from app.registry.subjects import read_subject
from app.registry.view import Version, View


class Log:
    """A view and its log."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.end = 0

    @property
    def view(self) -> View:
        view = View()
        for entry in self.entries:
            view.take(entry)
        view.reached(self.end)
        return view

    def put(self, key: bytes, value: bytes | None) -> None:
        self.entries.append(Entry(self.end, self.end, key, value))
        self.end += 1

    def append(self, append: Append | None) -> None:
        for key, value in append.records if append is not None else ():
            self.put(key, value)

    def compact(self) -> None:
        """Keep the newest record of each key, and no tombstones."""
        newest = {entry.key: entry.offset for entry in self.entries}
        kept = [one for one in self.entries if newest[one.key] == one.offset and one.value is not None]
        self.entries = kept

    def register(
        self, subject: str, schema: Any, *references: Reference, kind: SchemaType = SchemaType.AVRO, **more: Any
    ) -> Registered:
        """Register a schema without a check of compatibility."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        asked = SchemaRequest(read_subject(subject), kind, text, references, **more)
        view = self.view
        parsed = parse(kind, text, referenced(view, asked.subject, references))
        found = register(view, asked, parsed, same_schema(view, asked, parsed))
        self.append(found.append)
        return found


def same_schema(view: View, asked: SchemaRequest, parsed: ParsedSchema, *, deleted: bool = False) -> Version | None:
    """The newest version of the subject that has the schema of a request."""
    versions = view.versions(asked.subject.qualified, deleted=deleted)
    found, others = whole(with_text(versions, wanted_content(view, asked, parsed)))
    if found is not None:
        return found
    models = ((one, read_version(view, one)) for one in others)
    return next((one for one, model in models if model is not None and is_same(asked, parsed, model)), None)


def read_version(view: View, version: Version) -> ParsedSchema | None:
    stored = version.stored
    try:
        named = referenced(view, read_subject(stored.subject), stored.references)
        return parse(SchemaType(stored.schema_type), stored.schema, named, is_new=False)
    except SchemaInvalid:
        return None


def schema_record(
    subject: str, version: int, number: int, schema: str = '"string"', **more: Any
) -> tuple[bytes, bytes]:
    """A record as another registry writes it."""
    key = write_key(Key(KeyType.SCHEMA, subject, version))
    return key, write_schema(StoredSchema(subject, version, number, schema, **more))


def encoded(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()
