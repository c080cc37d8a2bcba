"""Subjects and their versions: register, look up, list, get and delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.turns import Portion, each, ordered
from app.http.errors import RestError
from app.http.registry.answers import MEDIA_TYPE, answered, version_members
from app.http.registry.parameters import PAGE, UNKNOWN_PROPERTIES, query, with_header
from app.http.registry.paths import context_of
from app.http.registry.requests import SchemaBody, flag, in_form, number, schema_in, service_of, subject_in, version_in
from app.http.registry.shapes import NAME, NUMBER, RegisteredSchema, VersionShape, answers
from app.http.schemas import request_body
from app.registry.refusals import Code, RegistryRefusal
from app.registry.registering import Append, delete_subject, delete_version, subject_not_found
from app.registry.subjects import DEFAULT_CONTEXT, Subject, check_subject, read_subject
from app.registry.view import Version, View, has_properties

T = TypeVar("T")
router = APIRouter(default_response_class=Response)
TAGS: Final[list[str | Enum]] = ["Subjects (schema registry)"]
EXAMPLE: Final = {"schema": '{"type":"record","name":"Flight","fields":[{"name":"origin","type":"string"}]}'}
ALL_CONTEXTS: Final = ":*:"


async def in_prefix(request: Request, names: Iterable[str]) -> list[str]:
    """The names of subjects that a request's ``subjectPrefix`` and its base URL select, in order."""
    selects, portion = prefix_of(request), Portion()
    found = []
    for name in names:
        if selects(read_subject(name)):
            found.append(name)
        if portion.spent_by():
            await portion.rest()
    return await ordered(found, portion, key=str)


def prefix_of(request: Request) -> Callable[[Subject], bool]:
    """The prefix ``:*:`` selects all contexts, and is that of a request without one."""
    base = context_of(request.scope)
    prefix = request.query_params.get("subjectPrefix")
    if prefix is None and base == DEFAULT_CONTEXT:
        prefix = ALL_CONTEXTS
    if prefix is not None and prefix.startswith(ALL_CONTEXTS):
        rest = prefix.removeprefix(ALL_CONTEXTS)
        return lambda one: one.name.startswith(rest)
    wanted = read_subject(prefix or "", base)
    return lambda one: one.context == wanted.context and one.name.startswith(wanted.name)


def page(request: Request, found: list[T]) -> list[T]:
    """The part of a list that ``offset`` and ``limit`` name; all without them. Raises: RegistryRefusal."""
    start = max(0, number(request, "offset", 0))
    limit = number(request, "limit", -1)
    return found[start:] if limit < 0 else found[start : start + limit]


@router.get(
    "/subjects",
    summary="List subjects",
    responses=answers(NAME, "The names of subjects.", many=True),
    tags=TAGS,
    openapi_extra=query("subjectPrefix", "deleted", "deletedOnly", *PAGE),
)
async def list_subjects(request: Request) -> Response:
    view = await service_of(request).view()
    names = view.subjects(deleted=flag(request, "deleted"), deleted_only=flag(request, "deletedOnly"))
    return answered(page(request, await in_prefix(request, names)))


@router.post(
    "/subjects/{subject}",
    summary="Find a schema in a subject",
    responses=answers(VersionShape, "The newest version that has the schema."),
    tags=TAGS,
    openapi_extra=request_body(SchemaBody, EXAMPLE) | query("normalize", "format", "deleted"),
)
async def look_up(subject: str, request: Request) -> Response:
    asked = await schema_in(request, subject_in(request, subject))
    view, found = await service_of(request).look_up(asked, deleted=flag(request, "deleted"))
    return answered(version_members(await in_form(request, view, found)))


@router.delete(
    "/subjects/{subject}",
    summary="Delete a subject",
    responses=answers(NUMBER, "The numbers of the deleted versions.", many=True),
    tags=TAGS,
    openapi_extra=query("permanent"),
)
async def remove_subject(subject: str, request: Request) -> Response:
    named, permanent = subject_in(request, subject), flag(request, "permanent")

    def decide(view: View) -> tuple[list[int], Append]:
        return delete_subject(view, named, permanent=permanent)

    return answered(await service_of(request).write(decide))


@router.get(
    "/subjects/{subject}/versions",
    summary="List the versions of a subject",
    responses=answers(NUMBER, "The numbers of the versions.", many=True),
    tags=TAGS,
    openapi_extra=query("deleted", "deletedOnly", *PAGE),
)
async def list_versions(subject: str, request: Request) -> Response:
    view = await service_of(request).view()
    named = view.meant(subject_in(request, subject))
    only = flag(request, "deletedOnly")
    found = view.versions(named.qualified, deleted=only or flag(request, "deleted"))
    found = [one for one in found if one.stored.deleted] if only else found
    if not found:
        raise subject_not_found(named.qualified)
    return answered(page(request, [one.stored.version for one in found]))


@router.post(
    "/subjects/{subject}/versions",
    summary="Register a schema",
    responses=answers(RegisteredSchema, "The id of the schema."),
    tags=TAGS,
    openapi_extra=request_body(SchemaBody, EXAMPLE) | with_header(query("normalize"), UNKNOWN_PROPERTIES),
)
async def register_schema(subject: str, request: Request) -> Response:
    asked = await schema_in(request, check_subject(subject_in(request, subject)))
    registered = await service_of(request).register(asked)
    if request.headers.get(UNKNOWN_PROPERTIES, "").lower() != "true":
        return answered({"id": registered.id})
    members = version_members(Version(registered.stored, 0))
    del members["subject"]
    return answered(members)


@router.get(
    "/subjects/{subject}/versions/{version}",
    summary="Get a version of a subject",
    responses=answers(VersionShape, "The version."),
    tags=TAGS,
    openapi_extra=query("format", "deleted"),
)
async def get_version(subject: str, version: str, request: Request) -> Response:
    return answered(version_members(await _version(request, subject, version)))


@router.get(
    "/subjects/{subject}/versions/{version}/schema",
    summary="Get the schema of a version",
    tags=TAGS,
    openapi_extra=query("format", "deleted"),
)
async def get_schema(subject: str, version: str, request: Request) -> Response:
    found = await _version(request, subject, version)
    return Response(found.stored.schema, media_type=MEDIA_TYPE)


@router.get(
    "/subjects/{subject}/versions/{version}/referencedby",
    summary="List the ids that refer to a version",
    responses=answers(NUMBER, "The ids of schemas.", many=True),
    tags=TAGS,
    openapi_extra=query("deleted", *PAGE),
)
async def list_referrers(subject: str, version: str, request: Request) -> Response:
    view = await service_of(request).view()
    named = view.meant(subject_in(request, subject))
    found = version_in(view, named, version, deleted=True)
    ids: dict[int, None] = {}
    referrers = view.referrers(named.qualified, found.stored.version, deleted=flag(request, "deleted"))
    await each(lambda one: ids.setdefault(one.stored.id), referrers)
    return answered(page(request, list(ids)))


@router.get(
    "/subjects/{subject}/metadata",
    summary="Get the newest version that has some properties",
    responses=answers(VersionShape, "The version."),
    tags=TAGS,
    openapi_extra=query("key", "value", "format", "deleted"),
)
async def get_version_of_metadata(subject: str, request: Request) -> Response:
    """The newest version whose metadata has each property that a ``key`` names with the ``value`` at the same place."""
    keys, values = (request.query_params.getlist(name) for name in ("key", "value"))
    if len(keys) != len(values):
        raise RestError(
            400, f"The request has {len(keys)} parameters key and {len(values)} value. Send one value for each key."
        )
    wanted = list(zip(keys, values, strict=True))
    view = await service_of(request).view()
    name = view.meant(subject_in(request, subject)).qualified
    versions = view.versions(name, deleted=flag(request, "deleted"))
    if not versions:
        raise subject_not_found(name)
    portion = Portion()
    for version in reversed(versions):
        if has_properties(version, wanted):
            return answered(version_members(await in_form(request, view, version)))
        if portion.spent_by(1 + len(wanted)):
            await portion.rest()
    raise RegistryRefusal(Code.SCHEMA_NOT_FOUND, "Schema not found.")


@router.delete(
    "/subjects/{subject}/versions/{version}",
    summary="Delete a version of a subject",
    responses=answers(NUMBER, "The number of the deleted version."),
    tags=TAGS,
    openapi_extra=query("permanent"),
)
async def remove_version(subject: str, version: str, request: Request) -> Response:
    named, permanent = subject_in(request, subject), flag(request, "permanent")

    def decide(view: View) -> tuple[int, Append]:
        every = view.versions(named.qualified, deleted=True)
        if every and not permanent and version in ("latest", "-1") and not view.versions(named.qualified):
            raise RegistryRefusal(
                Code.SUBJECT_SOFT_DELETED,
                f"Subject '{named.qualified}' was soft deleted. Set permanent=true to delete it permanently.",
            )
        newest = version in ("latest", "-1") and not permanent
        found = version_in(view, named, version, deleted=not newest)
        return found.stored.version, delete_version(view, named, found, permanent=permanent)

    return answered(await service_of(request).write(decide))


async def _version(request: Request, subject: str, version: str) -> Version:
    view = await service_of(request).view()
    named = view.meant(subject_in(request, subject))
    found = version_in(view, named, version, deleted=flag(request, "deleted"))
    return await in_form(request, view, found)
