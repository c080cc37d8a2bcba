"""Parts of requests to the registry: subjects, versions, flags and bodies."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import Request
from starlette.responses import Response

from app.http.bodies import small_body
from app.http.gateway import ADMIN_BODY_BYTES_MAX
from app.http.registry.answers import encoded
from app.http.registry.followed import Asked, FollowedLogs
from app.http.registry.parsing_work import ParsingWork
from app.http.registry.paths import context_of, slashes
from app.http.registry.service import SchemaService
from app.http.serving import gateway_of
from app.registry.parsing.schemas import Format, SchemaType
from app.registry.record_json import INT_MAX, Reference
from app.registry.refusals import Code, RegistryRefusal
from app.registry.registering import SchemaRequest
from app.registry.subjects import Subject, read_subject
from app.registry.view import Version, View

LATEST: Final = "latest"
LOOKED_UP_S: Final = 1.0
"""Age of the view that answers a request for a schema by its id. An id has one schema for ever, until it is deleted."""
_FORMS: Final = frozenset(one.value for one in Format)


class ReferenceBody(msgspec.Struct):
    name: str
    subject: str
    version: int


class SchemaBody(msgspec.Struct):
    """A schema as clients send it. Members that are not known are skipped, as other registries do."""

    schema: str | None = None
    schemaType: str | None = None  # noqa: N815 (as clients write it)
    references: list[ReferenceBody] | None = None
    metadata: dict[str, Any] | None = None
    ruleSet: dict[str, Any] | None = None  # noqa: N815
    id: int | None = None
    version: int | None = None


BODIES: Final = (SchemaBody,)


def service_of(request: Request) -> SchemaService:
    """The registry as the sender of a request may use it."""
    logs: FollowedLogs = request.app.state.schema_logs
    work: ParsingWork = request.app.state.schema_work
    return SchemaService(logs.of(gateway_of(request)), work)


async def known_answer(request: Request) -> Response | View | None:
    """The answer to the same request, if the registry gave it ``LOOKED_UP_S`` ago or later and its log has not moved on since.
    Without one, the registry as it is now, if this call has read it to its end.

    Raises: FirnError.
    """
    logs: FollowedLogs = request.app.state.schema_logs
    followed = logs.of(gateway_of(request))
    read = None if followed.is_recent(LOOKED_UP_S) else await followed.refreshed()
    body = followed.answers.get(followed.view, _asked(request))
    return read if body is None else encoded(body)


def kept(request: Request, view: View, end: int, body: bytes) -> Response:
    """An answer that ``view`` gave at ``end``, and that the next equal requests get, too."""
    logs: FollowedLogs = request.app.state.schema_logs
    logs.of(gateway_of(request)).answers.keep(view, end, _asked(request), body)
    return encoded(body)


def _asked(request: Request) -> Asked:
    scope = request.scope
    return context_of(scope), scope["path"], scope["query_string"]


def subject_in(request: Request, text: str) -> Subject:
    """A subject's name in a path."""
    return read_subject(slashes(text), context_of(request.scope))


def flag(request: Request, name: str) -> bool:
    """A query parameter that is ``true`` or not."""
    return request.query_params.get(name, "").lower() == "true"


async def in_form(request: Request, view: View, version: Version) -> Version:
    """A version with its text in the form that the parameter ``format`` names. A form that its type does not have is skipped."""
    name = request.query_params.get("format", "")
    form = Format(name) if name in _FORMS else None
    return await service_of(request).in_form(view, version, form)


def number(request: Request, name: str, missing: int) -> int:
    """A query parameter that is an integer. Raises: RegistryRefusal."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return missing
    try:
        return int(text[:20])
    except ValueError:
        raise RegistryRefusal(
            Code.INVALID_VERSION, f"The parameter {name} is {text[:20]!r}. Send an integer."
        ) from None


def version_number(text: str) -> int | None:
    """The number of a version in a path; None for the newest one. Raises: RegistryRefusal."""
    if text in (LATEST, "-1"):
        return None
    if text.isascii() and text.isdigit() and len(text) <= 10 and 1 <= int(text) <= INT_MAX:
        return int(text)
    raise RegistryRefusal(
        Code.INVALID_VERSION,
        f"The specified version '{text[:100]}' is not a valid version id. Allowed values are between [1, 2^31-1] and the string"
        ' "latest".',
    )


def version_in(view: View, subject: Subject, text: str, *, deleted: bool = False) -> Version:
    """The version of a subject that a path names. Raises: RegistryRefusal."""
    name = subject.qualified
    wanted = version_number(text)
    found = view.versions(name, deleted=deleted)
    if not found:
        raise RegistryRefusal(Code.SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")
    if wanted is None:
        return found[-1]
    version = view.version(name, wanted)
    if version is None or (version.stored.deleted and not deleted):
        raise _version_not_found(wanted)
    return version


def _version_not_found(wanted: int) -> RegistryRefusal:
    return RegistryRefusal(Code.VERSION_NOT_FOUND, f"Version {wanted} not found.")


async def schema_in(request: Request, subject: Subject) -> SchemaRequest:
    """The schema in a request's body. Raises: RegistryRefusal; RestError as ``small_body``."""
    timeout_ms = gateway_of(request).settings.body_idle_timeout_ms
    body = await small_body(request, SchemaBody, bytes_max=ADMIN_BODY_BYTES_MAX, idle_timeout_ms=timeout_ms)
    kind = body.schemaType or SchemaType.AVRO.value
    if kind not in SchemaType.__members__:
        raise RegistryRefusal(
            Code.INVALID_SCHEMA,
            f"Invalid schema type {kind[:100]!r}. Send one of {', '.join(SchemaType.__members__)}.",
        )
    return SchemaRequest(
        subject,
        SchemaType(kind),
        body.schema or "",
        tuple(Reference(one.name, one.subject, one.version) for one in body.references or ()),
        body.metadata,
        body.ruleSet,
        body.id if body.id is not None and body.id >= 0 else None,
        body.version if body.version is not None and body.version > 0 else None,
        flag(request, "normalize"),
    )
