"""Encodes keys and values of REST v3's records by the schemas that each of them names.

The conventions are those of Confluent's REST Proxy v3: an id, a version of a subject, a text, or none of these for the newest
version.

Tests: ``tests/http/rest_v3/test_records_with_schemas.py``.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

from fastapi import Request

from app.core.errors import clause
from app.core.turns import Portion
from app.http.errors import RestError
from app.http.record_json import NewRecord, Part, PartSchema, SchemaPart, SchemaRecord, Strategy
from app.http.registry.record_schemas import (
    CONVERSION_FAILED,
    SCHEMA_INVALID,
    RecordSchema,
    RecordSchemas,
    SchemaUnknown,
    refusal_of,
)
from app.registry.parsing.schemas import ParsedSchema, SchemaType
from app.registry.payloads.faults import PayloadInvalid
from app.registry.refusals import ParserMissing, RegistryRefusal
from app.registry.sources import record_name_of
from app.registry.subjects import DEFAULT_CONTEXT, Subject, check_subject, read_subject
from app.registry.view import Version

_KINDS: Final = {"AVRO": SchemaType.AVRO, "JSONSCHEMA": SchemaType.JSON, "PROTOBUF": SchemaType.PROTOBUF}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


class _Used(NamedTuple):
    """A schema, and the version that a part named by it."""

    schema: RecordSchema
    version: Version | None


class RecordEncoding:
    """The schemas of one request's records. It reads the registry when the first record needs it."""

    def __init__(self, request: Request, topic: str) -> None:
        self._request = request
        self._topic = topic

    @cached_property
    def _schemas(self) -> RecordSchemas:
        return RecordSchemas(self._request)

    @cached_property
    def _portion(self) -> Portion:
        return Portion()

    async def encoded(self, record: SchemaRecord) -> NewRecord:
        """The record with the bytes of its key and value.

        Raises: RestError 408 (no such schema), 422 (a wrong schema, or a value that does not fit it), 501; FirnError.
        """
        plain = record.record
        key = plain.key if record.key is None else await self._encoded(record.key, "key")
        value = plain.value if record.value is None else await self._encoded(record.value, "value")
        return NewRecord(plain.partition, plain.headers, key, value, plain.timestamp)

    async def _encoded(self, part: SchemaPart, side: str) -> Part:
        try:
            used = await self._schema_of(part, side)
            self._check_type(part, used.schema, side)
            content = await self._schemas.encode(used.schema, part.data, self._portion)
        except (SchemaUnknown, ParserMissing, RegistryRefusal) as error:
            raise refusal_of(error) from None
        except PayloadInvalid as error:
            raise RestError(
                422, f"The {side} does not fit its schema: {clause(error)}.", error_code=CONVERSION_FAILED
            ) from None
        version = used.version
        return Part(
            _NAMES[used.schema.model.kind],
            content,
            PartSchema(
                used.schema.id,
                None if version is None else version.stored.subject,
                None if version is None else version.stored.version,
            ),
        )

    async def _schema_of(self, part: SchemaPart, side: str) -> _Used:
        """Raises: RestError 422; SchemaUnknown, ParserMissing, RegistryRefusal, FirnError."""
        if part.id is not None:
            schema = await self._schemas.by_id(part.id, part.subject or "")
            subject = self._subject(part, side, schema.model)
            return _Used(schema, None if subject is None else await self._schemas.version_in(subject, part.id))
        if part.text is not None:
            assert part.type is not None
            kind = _KINDS[part.type]
            model = None if part.strategy is Strategy.TOPIC else await self._schemas.read(kind, part.text)
            subject = self._subject(part, side, model)
            if subject is None:
                raise RestError(
                    422,
                    f"The schema of the {side} has no name for a subject. Send a subject, or the strategy TOPIC_NAME.",
                    error_code=SCHEMA_INVALID,
                )
            schema = await self._schemas.by_text(check_subject(subject), kind, part.text)
            return _Used(schema, await self._schemas.version_in(subject, schema.id, is_new=True))
        subject = self._subject(part, side, None)
        assert subject is not None  # strategies that need a schema come with one
        return _Used(*await self._schemas.by_version(subject, part.version))

    def _subject(self, part: SchemaPart, side: str, model: ParsedSchema | None) -> Subject | None:
        """The subject of a part; None if its strategy needs the name of a record, and the schema has none."""
        if part.subject is not None:
            return read_subject(part.subject)
        if part.strategy is Strategy.TOPIC:
            return Subject(DEFAULT_CONTEXT, f"{self._topic}-{side}")
        name = None if model is None else record_name_of(model)
        if name is None:
            return None
        return Subject(DEFAULT_CONTEXT, name if part.strategy is Strategy.RECORD else f"{self._topic}-{name}")

    @staticmethod
    def _check_type(part: SchemaPart, schema: RecordSchema, side: str) -> None:
        """Raises: RestError 422."""
        if part.type is not None and _KINDS[part.type] is not schema.model.kind:
            raise RestError(
                422,
                f"Schema {schema.id} is of type {_NAMES[schema.model.kind]}, and the {side} is of type {part.type}."
                " Send the type of the schema.",
                error_code=SCHEMA_INVALID,
            )
