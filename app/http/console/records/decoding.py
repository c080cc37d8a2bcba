"""Keys and values of a page's records, decoded by their schemas.

The id of a schema is in a header of the record, or before the payload (``app/registry/payloads/prefix.py``). The registry is read
as the caller, who sees the schemas that a broker lets it read. Bytes that cannot be decoded are shown as they are, with the reason.

A page looks up ``SCHEMAS_MAX`` schemas at most, and decodes ``PAGE_BYTES_MAX`` at most. Clients choose the sizes of records and
schemas, so a page needs these limits.

Tests: ``tests/http/console/test_decoding.py``.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from fastapi import Request

from app.core.errors import FirnError, clause
from app.core.limits import KIB, MIB
from app.core.turns import Portion
from app.http.console import asking
from app.http.errors import RestError
from app.http.registry.record_schemas import RecordSchema, RecordSchemas, SchemaUnknown, refusal_of
from app.records.record import Record
from app.registry.parsing.schemas import SchemaType
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.prefix import SchemaRef, Side, read_prefix
from app.registry.refusals import ParserMissing, RegistryRefusal

SCHEMAS_MAX: Final = 20
"""Schemas that a page looks up."""
PART_BYTES_MAX: Final = 64 * KIB
"""Of a key or a value in a list. The page of one record decodes longer ones."""
PAGE_BYTES_MAX: Final = 4 * MIB
"""Of keys and values of a list."""
HEADERS_MAX: Final = 1_000
"""Headers of a record among which the id of a schema is looked for."""
_NAMES: Final = {SchemaType.AVRO: "Avro", SchemaType.JSON: "JSON Schema", SchemaType.PROTOBUF: "Protobuf"}


class Decoded(NamedTuple):
    """A key or a value that names a schema."""

    schema: str
    """The type and the id of the schema, in words."""
    json: bytes | None
    """None if it could not be decoded."""
    why: str = ""
    """A sentence, why it could not."""
    is_stored_json: bool = False
    """Whether the payload itself is this JSON. Avro and Protobuf put other names into it."""


class _Named(NamedTuple):
    """The id of a schema, and the start of the payload."""

    ref: SchemaRef
    content: bytes
    start: int


class Decoding:
    """The schemas of one page."""

    def __init__(self, request: Request, *, whole: bool = False) -> None:
        """``whole``: for the page of one record."""
        self._schemas = RecordSchemas(request)
        self._whole = whole
        self._bytes = 0
        self._missing: dict[SchemaRef, str] = {}
        """Why schemas cannot be had."""
        self._found: dict[SchemaRef, RecordSchema] = {}
        self.silent_since_s: float | None = None
        """When the registry did not respond in time, by the loop's clock. It is not asked again."""

    async def decoded(self, record: Record, portion: Portion) -> tuple[Decoded | None, Decoded | None]:
        """The key and the value; None for one that names no schema."""
        return (
            await self._part(record, Side.KEY, record.key, portion),
            await self._part(record, Side.VALUE, record.value, portion),
        )

    async def _part(self, record: Record, side: Side, content: bytes | None, portion: Portion) -> Decoded | None:
        named = None if content is None else named_in(record, side, content)
        if named is None:
            return None
        words = f"schema {named.ref}"
        if not self._whole and len(named.content) > PART_BYTES_MAX:
            return Decoded(words, None, f"It has more than {PART_BYTES_MAX // KIB} KiB. Open the record to decode it.")
        if not self._whole and self._bytes > PAGE_BYTES_MAX:
            return Decoded(words, None, "The records before it took all that a page decodes. Open the record.")
        self._bytes += len(named.content)
        schema = await self._schema(named.ref)
        if schema is None:
            return Decoded(words, None, self._missing[named.ref])
        words = f"{_NAMES[schema.model.kind]}, schema {schema.id}"
        content, start = named.content, named.start
        try:
            shown = await self._schemas.payload(schema, content, start, portion)
        except PayloadInvalid as error:
            return Decoded(words, None, f"It does not fit its schema: {clause(error)}.")
        return Decoded(words, shown, is_stored_json=schema.model.kind is SchemaType.JSON)

    async def _schema(self, ref: SchemaRef) -> RecordSchema | None:
        if ref in self._found:
            return self._found[ref]
        if ref in self._missing:
            return None
        if len(self._found) + len(self._missing) >= SCHEMAS_MAX:
            self._missing[ref] = (
                f"The records before it named {SCHEMAS_MAX} other schemas. Open the record to decode it."
            )
            return None
        if self.silent_since_s is not None:
            self._missing[ref] = "The registry did not respond in time before. Load the page again."
            return None
        try:
            async with asyncio.timeout(asking.BROKER_S):
                found = self._found[ref] = await self._schemas.by_ref(ref)
            return found
        except TimeoutError:
            self.silent_since_s = asyncio.get_running_loop().time()
            self._missing[ref] = f"The registry did not respond within {asking.BROKER_S:g} s. Load the page again."
        except (SchemaUnknown, ParserMissing, RegistryRefusal) as error:
            self._missing[ref] = refusal_of(error).answer.message
        except (FirnError, RestError) as error:
            self._missing[ref] = f"The registry cannot be read: {error}"
        return None


def named_in(record: Record, side: Side, content: bytes) -> _Named | None:
    """The schema that a part of a record names; None if it names none."""
    name = side.header
    for header, value in record.headers[:HEADERS_MAX]:
        if header == name and value is not None and (prefix := read_prefix(value)) is not None:
            indexes = value[prefix.size_bytes :]  # of a Protobuf message
            return _Named(prefix.ref, indexes + content, 0)
    prefix = read_prefix(content)
    return None if prefix is None else _Named(prefix.ref, content, prefix.size_bytes)
