"""Schemas for the keys and values of records: by id, or by a text that is registered under a subject. Encodes and decodes by them.

Ids of texts are kept, so that a producer that sends its schema with every request does not read the registry each time.

Tests: ``tests/http/rest_v2/test_produce_with_schemas.py``.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from fastapi import Request

from app.core.extras import install_hint
from app.core.limits import KIB, MIB
from app.core.turns import Portion
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.registry.answers import EXTRA
from app.http.registry.requests import service_of
from app.http.registry.service import SchemaService
from app.http.serving import gateway_of
from app.registry.encoding import forms
from app.registry.encoding.forms import StepsSpent
from app.registry.parsing.schemas import ParsedSchema, SchemaType
from app.registry.payloads.faults import PayloadInvalid
from app.registry.payloads.prefix import SchemaRef, read_prefix
from app.registry.refusals import Code, ParserMissing, RegistryRefusal
from app.registry.registering import SchemaRequest
from app.registry.subjects import DEFAULT_CONTEXT, Subject, read_subject
from app.registry.view import Version, View

INLINE_BYTES: Final = 4 * KIB
"""Longer values are encoded and decoded in a thread."""
INLINE_STEPS: Final = 3_000
"""So are values that need more steps: about 10 ms."""
SHOWN_BYTES_MAX: Final = 32 * MIB
"""Of the JSON of keys and values in one response. It ends before the record that would come after them."""
KEPT_OF_CALLER_MAX: Final = 100
KEPT_TEXT_CHARS_MAX: Final = 20_000
"""Longer texts are looked up each time."""
KEPT_OF_REQUEST_MAX: Final = 100
"""Models that one request keeps, so that a stream of records with many schemas keeps few."""

CONVERSION_FAILED: Final = 42203
SCHEMA_INVALID: Final = 42205
SCHEMA_NOT_FOUND: Final = 40801
"""Error codes of REST v2 and v3."""


class RecordSchema(NamedTuple):
    """A schema that records name."""

    id: int
    model: ParsedSchema


class SchemaUnknown(Exception):
    """There is no schema with an id, or none that can be read. Its argument is a sentence."""


def refusal_of(error: SchemaUnknown | ParserMissing | RegistryRefusal) -> RestError:
    """The answer for a record whose schema cannot be had."""
    match error:
        case SchemaUnknown():
            return RestError(408, str(error), error_code=SCHEMA_NOT_FOUND)
        case ParserMissing():
            return RestError(
                501,
                f"Schemas of type {error.args[0]} need a package that is not installed. Install it by: {install_hint(EXTRA)}.",
                error_code=int(Code.EXTRA_NOT_INSTALLED),
            )
        case RegistryRefusal() if error.code in (Code.INVALID_SCHEMA, Code.SCHEMA_TOO_LARGE):
            return RestError(422, error.message, error_code=SCHEMA_INVALID)
        case RegistryRefusal():
            return RestError(408, error.message, error_code=SCHEMA_NOT_FOUND)


class RecordSchemas:
    """The registry as one request uses it for its records."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._turns: asyncio.Semaphore = request.app.state.encoding_turns
        self._found: OrderedDict[tuple[str, int], RecordSchema] = OrderedDict()
        """By contexts and ids."""
        self._shown_bytes = 0

    @cached_property
    def _service(self) -> SchemaService:
        """Made when it is needed: it may take the place of another caller's view."""
        return service_of(self._request)

    @cached_property
    def _ids(self) -> OrderedDict[_Text, int]:
        """Ids of texts that this caller has sent."""
        kept: WeakKeyDictionary[Gateway, OrderedDict[_Text, int]] = self._request.app.state.schema_texts
        return kept.setdefault(gateway_of(self._request), OrderedDict())

    async def by_id(self, schema_id: int, subject: str = "") -> RecordSchema:
        """The schema with an id, in the context of a subject. Raises: SchemaUnknown, ParserMissing, FirnError."""
        context = read_subject(subject).context if subject else DEFAULT_CONTEXT
        found = self._found.get((context, schema_id))
        if found is None:
            model = await self._service.model_of_id(context, schema_id)
            if model is None:
                raise SchemaUnknown(f"Schema {schema_id} cannot be found or read. Register it, or send another id.")
            found = self._found[context, schema_id] = RecordSchema(schema_id, model)
            while len(self._found) > KEPT_OF_REQUEST_MAX:
                self._found.popitem(last=False)
        return found

    async def by_ref(self, ref: SchemaRef) -> RecordSchema:
        """The schema with an id or a GUID. Raises: as ``by_id``."""
        if isinstance(ref, int):
            return await self.by_id(ref)
        number = (await self._service.recent_view()).id_of_guid(DEFAULT_CONTEXT, ref)
        if number is None:
            number = (await self._service.view()).id_of_guid(DEFAULT_CONTEXT, ref)
        if number is None:
            raise SchemaUnknown(f"The schema with the GUID {ref} cannot be found. Register it.")
        return await self.by_id(number)

    async def by_version(self, subject: Subject, number: int | None) -> tuple[RecordSchema, Version]:
        """The schema of a version; of the newest one without a number, as the subject was ``KEPT_S`` ago, or later. Raises:
        as ``by_id``."""

        def found(view: View) -> Version | None:
            name = view.meant(subject).qualified
            return view.newest(name) if number is None else view.version(name, number)

        name = subject.qualified
        version = found(await self._service.recent_view())
        if version is None:
            version = found(await self._service.view())
        if version is None or version.stored.deleted:
            wanted = "no version" if number is None else f"no version {number}"
            raise SchemaUnknown(f"Subject {name!r} has {wanted}. Register the schema, or send another subject.")
        return await self.by_id(version.stored.id, name), version

    async def version_in(self, subject: Subject, schema_id: int, *, is_new: bool = False) -> Version | None:
        """The version of a subject that has an id; None if there is none. ``is_new``: it may have been registered a moment ago.
        Raises: FirnError."""
        found = (await self._service.recent_view()).with_id(subject.qualified, schema_id)
        if found is None and is_new:
            found = (await self._service.view()).with_id(subject.qualified, schema_id)
        return found

    async def read(self, kind: SchemaType, text: str) -> ParsedSchema:
        """The model of a text that is not registered yet. Raises: RegistryRefusal, ParserMissing."""
        return await self._service.read(kind, text)

    async def by_text(self, subject: Subject, kind: SchemaType, text: str) -> RecordSchema:
        """The schema of a text, registered if the subject does not have it. Raises: RegistryRefusal, ParserMissing, FirnError."""
        key = (subject.qualified, kind, text)
        schema_id = self._ids.get(key)
        if schema_id is None:
            schema_id = (await self._service.register(SchemaRequest(subject, kind, text))).id
            if len(text) <= KEPT_TEXT_CHARS_MAX:
                self._ids[key] = schema_id
                while len(self._ids) > KEPT_OF_CALLER_MAX:
                    self._ids.popitem(last=False)
        try:
            return await self.by_id(schema_id, subject.qualified)
        except SchemaUnknown:
            self._ids.pop(key, None)  # it was deleted for good
            raise

    async def encode(self, schema: RecordSchema, data: bytes, portion: Portion) -> bytes:
        """The bytes of a value, behind the id of its schema. Raises: PayloadInvalid."""
        await portion.rest_if_spent()
        if len(data) <= INLINE_BYTES:
            with suppress(StepsSpent):
                return forms.framed(schema.id, forms.encode(schema.model, data, INLINE_STEPS))
        async with self._turns:
            return forms.framed(schema.id, await asyncio.to_thread(forms.encode, schema.model, data))

    async def decode(self, content: bytes, portion: Portion) -> bytes:
        """The JSON of a key or value. Raises: PayloadInvalid, SchemaUnknown, ParserMissing, FirnError."""
        if self._shown_bytes > SHOWN_BYTES_MAX:
            raise PayloadInvalid(f"the records before it have more than {SHOWN_BYTES_MAX} bytes of JSON")
        await portion.rest_if_spent()
        prefix = read_prefix(content)
        if prefix is None or not isinstance(prefix.ref, int):
            raise PayloadInvalid("the bytes do not begin with the id of a schema")
        shown = await self.payload(await self.by_id(prefix.ref), content, prefix.size_bytes, portion)
        self._shown_bytes += len(shown)
        return shown

    async def payload(self, schema: RecordSchema, content: bytes, start: int, portion: Portion) -> bytes:
        """The JSON of the payload that ``content`` holds from ``start`` on. Raises: PayloadInvalid."""
        await portion.rest_if_spent()
        if len(content) <= INLINE_BYTES:
            with suppress(StepsSpent):
                return forms.decode(schema.model, content, start, steps_max=INLINE_STEPS)
        async with self._turns:
            return await asyncio.to_thread(forms.decode, schema.model, content, start)


_Text = tuple[str, SchemaType, str]
"""Subject, type and text of a schema."""
