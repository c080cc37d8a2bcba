"""Decodes records by the schemas that they name: ``firn consume --schema``. Tests: ``tests/cli/test_schema.py``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from app.client.schema_log import BrokerSchemaLog
from app.core.errors import ErrorCode, RequestRejected
from app.http.registry.followed import FollowedLog
from app.http.registry.parsing_work import ParsingWork
from app.http.registry.service import SchemaService
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.prefix import SchemaRef, Side, read_prefix
from app.registry.payloads.reading import read_payload
from app.registry.refusals import ParserMissing
from app.registry.subjects import DEFAULT_CONTEXT

if TYPE_CHECKING:
    from app.client.cluster import ClusterClient
    from app.records.record import Record
    from app.registry.parsing.schemas import ParsedSchema
    from app.registry.view import Version, View

LOOK_EVERY_S: Final = 1.0
"""Between two reads of the registry for ids that it does not know."""


class JsonText(bytes):
    """The JSON text of a decoded key or value."""


class SchemaDecoder:
    """Replaces keys and values by JSON. Parts that cannot be decoded stay as they are, and are counted."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._service = SchemaService(FollowedLog(BrokerSchemaLog(cluster)), ParsingWork())
        self._view: View | None = None
        self._read_s = 0.0
        self._models: dict[SchemaRef, ParsedSchema | None] = {}
        self.undecoded = 0
        """Values that were printed as they are."""
        self.first_fault = ""
        """Of the first of them: its offset, and the reason."""

    async def decoded(self, record: Record) -> Record:
        """The record with its key and value as JSON. Raises: RequestRejected, BrokerUnavailable."""
        key, fault = await self._part(record, Side.KEY, record.key)
        value, fault = await self._part(record, Side.VALUE, record.value)
        if fault:
            self.undecoded += 1
            self.first_fault = self.first_fault or f"the value at offset {record.offset}: {fault}"
        return record._replace(key=key, value=value)

    async def _part(self, record: Record, side: Side, data: bytes | None) -> tuple[bytes | None, str]:
        """The JSON of a key or value; or the part as it is, and why."""
        if data is None:
            return None, ""
        header = next((value for name, value in record.headers if name == side.header), None)
        found = read_prefix(data if header is None else header)
        if found is None:
            return data, "it has no schema id"
        schema = await self._schema(found.ref)
        if schema is None:
            return data, f"the registry shows no schema {found.ref} that can be read"
        try:
            if header is None:
                value = read_payload(schema, data, found.size_bytes)
            else:
                value = read_payload(schema, data, 0, header[found.size_bytes :])
        except PayloadInvalid as error:
            return data, f"it is no value of schema {found.ref}, {error}"
        return JsonText(msgspec.json.encode(value)), ""

    async def _schema(self, ref: SchemaRef) -> ParsedSchema | None:
        if self._models.get(ref) is None and (ref not in self._models or self._is_due()):
            version = await self._version(ref)
            try:
                self._models[ref] = (
                    None if version is None or self._view is None else await self._service.model_of(self._view, version)
                )
            except ParserMissing:
                raise RequestRejected(
                    ErrorCode.UNSUPPORTED_VERSION, "The package that reads this type of schemas is not installed."
                ) from None
        return self._models[ref]

    def _is_due(self) -> bool:
        return time.monotonic() - self._read_s > LOOK_EVERY_S

    async def _version(self, ref: SchemaRef) -> Version | None:
        found = None if self._view is None else _find(self._view, ref)
        if found is None and (self._view is None or self._is_due()):
            self._view = await self._service.view()
            self._read_s = time.monotonic()
            found = _find(self._view, ref)
        return found


def _find(view: View, ref: SchemaRef) -> Version | None:
    """The version that has an id or a GUID, also a deleted one: records outlive their subjects."""
    if isinstance(ref, int):
        return view.schema(DEFAULT_CONTEXT, ref)
    return next(iter(view.by_guid(ref)), None)
