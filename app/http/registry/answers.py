"""Parts of the registry's answers. Members that say nothing are left out, because older Java clients refuse members that they do
not know. So AVRO is not named as a type, and there are no empty references."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response, StreamingResponse

from app.core.extras import install_hint
from app.core.turns import Portion
from app.http.bodies import WholeAnswer
from app.http.errors import Error
from app.http.schemas import REGISTRY_TYPE
from app.registry.record_json import shown_references
from app.registry.refusals import Code, ParserMissing, RegistryRefusal
from app.registry.view import Version

MEDIA_TYPE: Final = REGISTRY_TYPE
_MEDIA_TYPE: Final = MEDIA_TYPE.encode()
EXTRA: Final = "registry"
T = TypeVar("T")
WHOLE_MAX: Final = 100
"""Elements of a list that is encoded at once."""
CHUNK_BYTES: Final = 64_000
"""Of a longer list, at least."""


def answered(content: Any, status: int = 200) -> Response:
    """An answer of one JSON value."""
    return WholeAnswer(status, msgspec.json.encode(content), _MEDIA_TYPE)


def encoded(body: bytes) -> Response:
    """An answer that was encoded before."""
    return WholeAnswer(200, body, _MEDIA_TYPE)


def listed(items: Sequence[T], shown: Callable[[T], Any]) -> Response:
    """An answer of one JSON array, with each item as ``shown`` gives it. A long one is encoded in portions, while it is sent."""
    if len(items) <= WHOLE_MAX:
        return answered([shown(one) for one in items])
    return StreamingResponse(_chunks(items, shown), media_type=MEDIA_TYPE)


async def _chunks(items: Sequence[T], shown: Callable[[T], Any]) -> AsyncIterator[bytes]:
    portion = Portion()
    chunk = bytearray(b"[")
    for place, one in enumerate(items):
        if place:
            chunk += b","
        chunk += msgspec.json.encode(shown(one))
        if len(chunk) >= CHUNK_BYTES:
            yield bytes(chunk)
            chunk.clear()
        await portion.rest_if_spent()
    yield bytes(chunk + b"]")


def schema_members(version: Version) -> dict[str, Any]:
    """Type, text, references, metadata and rules of a schema."""
    stored = version.stored
    made: dict[str, Any] = {}
    if stored.schema_type != "AVRO":
        made["schemaType"] = stored.schema_type
    made["schema"] = stored.schema
    if stored.references:
        made["references"] = shown_references(stored.references)
    if stored.metadata is not None:
        made["metadata"] = stored.metadata
    if stored.rule_set is not None:
        made["ruleSet"] = stored.rule_set
    return made


def version_members(version: Version) -> dict[str, Any]:
    """A version of a subject."""
    stored = version.stored
    made = {
        "subject": stored.subject,
        "version": stored.version,
        "id": stored.id,
        "guid": version.guid,
        **schema_members(version),
    }
    if stored.deleted:
        made["deleted"] = True
    return made


def use_members(version: Version) -> dict[str, Any]:
    """Where a schema is used."""
    return {"subject": version.stored.subject, "version": version.stored.version}


async def refused(request: Request, error: Exception) -> Response:
    """The answer to a request that the registry refuses."""
    assert isinstance(error, RegistryRefusal)
    return answered(Error(int(error.code), error.message), error.status)


async def parser_missing(request: Request, error: Exception) -> Response:
    """The answer to a request with a schema of a type whose package is not installed."""
    assert isinstance(error, ParserMissing)
    message = f"Schemas of type {error} need a package that is not installed. Install it by: {install_hint(EXTRA)}."
    return answered(Error(int(Code.EXTRA_NOT_INSTALLED), message), 501)
