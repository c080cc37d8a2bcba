"""Schemas by id, by GUID and as a list."""

from __future__ import annotations

from enum import Enum
from operator import itemgetter
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.turns import Portion, ordered
from app.http.registry.answers import answered, listed, schema_members, use_members, version_members
from app.http.registry.parameters import PAGE, query
from app.http.registry.paths import context_of
from app.http.registry.requests import flag, in_form, kept, known_answer, service_of
from app.http.registry.shapes import NAME, IdInContext, SchemaOfId, SchemaShape, SchemaUse, VersionShape, answers
from app.http.registry.subjects import in_prefix, page, prefix_of
from app.registry.parsing.schemas import SUPPORTED
from app.registry.record_json import INT_MAX
from app.registry.refusals import Code, RegistryRefusal
from app.registry.subjects import read_subject
from app.registry.view import Version, View, has_rule

router = APIRouter(prefix="/schemas", default_response_class=Response)
TAGS: Final[list[str | Enum]] = ["Schemas (schema registry)"]


@router.get(
    "",
    summary="List schemas",
    responses=answers(VersionShape, "The versions, by subject and number.", many=True),
    tags=TAGS,
    openapi_extra=query("subjectPrefix", "deleted", "latestOnly", "ruleType", "aliases", *PAGE),
)
async def list_schemas(request: Request) -> Response:
    view = await service_of(request).view()
    deleted = flag(request, "deleted")
    latest_only = flag(request, "latestOnly")
    rule_types = {one for one in request.query_params.getlist("ruleType") if one}
    portion = Portion()
    names = await in_prefix(request, view.subjects(deleted=deleted))
    aliases: dict[str, list[str]] = {}
    if flag(request, "aliases"):
        aliases = await _aliases(request, view)
        names = await ordered({*names, *aliases}, portion, key=str)
    found: list[Version] = []
    for name in names:
        versions = view.versions(name, deleted=deleted)
        if latest_only:
            versions = versions[-1:]
        for version in versions if rule_types else ():
            if has_rule(version, rule_types):
                found.append(version)
            if portion.spent_by():
                await portion.rest()
        if not rule_types:
            found += versions
        await portion.rest_if_spent()

    def shown(version: Version) -> dict[str, Any]:
        also = aliases.get(version.stored.subject)
        return version_members(version) if also is None else {**version_members(version), "aliases": also}

    return listed(page(request, found), shown)


async def _aliases(request: Request, view: View) -> dict[str, list[str]]:
    """The aliases that a request's ``subjectPrefix`` selects, in order, by the subject that they stand for."""
    selects, portion = prefix_of(request), Portion()
    found: list[tuple[str, str]] = []
    for alias, subject in view.aliases():
        if selects(alias):
            found.append((subject, alias.qualified))
        if portion.spent_by():
            await portion.rest()
    aliases: dict[str, list[str]] = {}
    for subject, name in await ordered(found, portion, key=itemgetter(1)):
        aliases.setdefault(subject, []).append(name)
        if portion.spent_by():
            await portion.rest()
    return aliases


@router.get("/types", summary="List the types of schemas", responses=answers(NAME, "The types.", many=True), tags=TAGS)
async def list_types() -> Response:
    return answered([one.value for one in SUPPORTED])


@router.get(
    "/ids/{schema_id}",
    summary="Get a schema by its id",
    responses=answers(SchemaOfId, "The schema."),
    tags=TAGS,
    openapi_extra=query("subject", "format", "fetchMaxId"),
)
async def get_schema(schema_id: str, request: Request) -> Response:
    with_max = b"fetchMaxId" in request.scope["query_string"] and flag(request, "fetchMaxId")
    known = None if with_max else await known_answer(request)
    if isinstance(known, Response):
        return known
    view, found = await _schema(request, schema_id, known)
    end = view.end
    found = await in_form(request, view, found)
    made = {**schema_members(found), "guid": found.guid}
    if with_max:
        return answered({**made, "maxId": view.greatest_id(_context(request))})
    return kept(request, view, end, msgspec.json.encode(made))


@router.get(
    "/ids/{schema_id}/schema",
    summary="Get the text of a schema by its id",
    tags=TAGS,
    openapi_extra=query("subject", "format"),
)
async def get_text(schema_id: str, request: Request) -> Response:
    if isinstance(known := await known_answer(request), Response):
        return known
    view, found = await _schema(request, schema_id, known)
    end = view.end
    found = await in_form(request, view, found)
    return kept(request, view, end, found.stored.schema.encode())


@router.get(
    "/ids/{schema_id}/subjects",
    summary="List the subjects that have a schema",
    responses=answers(NAME, "The names of subjects.", many=True),
    tags=TAGS,
    openapi_extra=query("subject", "deleted", *PAGE),
)
async def list_subjects(schema_id: str, request: Request) -> Response:
    names = {one.stored.subject: None for one in await _uses(request, schema_id)}
    return answered(page(request, await ordered(names, Portion(), key=str)))


@router.get(
    "/ids/{schema_id}/versions",
    summary="List the versions that have a schema",
    responses=answers(SchemaUse, "The versions.", many=True),
    tags=TAGS,
    openapi_extra=query("subject", "deleted", *PAGE),
)
async def list_versions(schema_id: str, request: Request) -> Response:
    return listed(page(request, await _uses(request, schema_id)), use_members)


@router.get(
    "/guids/{guid}",
    summary="Get a schema by its GUID",
    responses=answers(SchemaShape, "The schema."),
    tags=TAGS,
    openapi_extra=query("format"),
)
async def get_schema_of_guid(guid: str, request: Request) -> Response:
    if isinstance(known := await known_answer(request), Response):
        return known
    view, versions = await _of_guid(request, guid, known)
    end = view.end
    found = await in_form(request, view, versions[0])
    return kept(request, view, end, msgspec.json.encode({**schema_members(found), "guid": found.guid}))


@router.get(
    "/guids/{guid}/ids",
    summary="List the ids of a schema by its GUID",
    responses=answers(IdInContext, "One id for each context.", many=True),
    tags=TAGS,
)
async def list_ids(guid: str, request: Request) -> Response:
    _, found = await _of_guid(request, guid)
    return answered([{"context": read_subject(one.stored.subject).context, "id": one.stored.id} for one in found])


def _context(request: Request) -> str:
    """The context of an id: that of the parameter ``subject``, or that of the base URL."""
    return read_subject(request.query_params.get("subject", ""), context_of(request.scope)).context


async def _schema(request: Request, schema_id: str, view: View | None = None) -> tuple[View, Version]:
    """A version with an id. ``view``: the registry as it is now, if it was read. Raises: RegistryRefusal."""
    if view is None:
        view = await service_of(request).view()
    found = None
    if schema_id.isascii() and schema_id.isdigit() and len(schema_id) <= 10 and int(schema_id) <= INT_MAX:
        found = view.schema(_context(request), int(schema_id))
    if found is None:
        raise RegistryRefusal(Code.SCHEMA_NOT_FOUND, f"Schema {schema_id[:20]} not found.")
    return view, found


async def _uses(request: Request, schema_id: str) -> list[Version]:
    """The versions with an id that a request's ``deleted`` and ``subject`` select. Raises: RegistryRefusal."""
    view, first = await _schema(request, schema_id)
    deleted = flag(request, "deleted")
    named = view.meant(read_subject(request.query_params.get("subject", ""), context_of(request.scope)))
    portion = Portion()
    found = []
    for subject, number in view.uses(_context(request), first.stored.id):
        version = view.version(subject, number) if not named.name or subject == named.qualified else None
        if version is not None and (deleted or not version.stored.deleted):
            found.append(version)
        if portion.spent_by():
            await portion.rest()
    return found


async def _of_guid(request: Request, guid: str, view: View | None = None) -> tuple[View, list[Version]]:
    """``view``: the registry as it is now, if it was read. Raises: RegistryRefusal."""
    if view is None:
        view = await service_of(request).view()
    found = view.by_guid(guid.lower())
    if not found:
        raise RegistryRefusal(Code.SCHEMA_NOT_FOUND, f"Schema {guid[:50]} not found.")
    return view, found
