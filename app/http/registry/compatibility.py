"""Whether a schema is compatible with the versions of a subject."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.http.registry.answers import answered
from app.http.registry.parameters import query
from app.http.registry.requests import SchemaBody, flag, schema_in, service_of, subject_in, version_number
from app.http.registry.shapes import Verdict, answers
from app.http.registry.subjects import EXAMPLE
from app.http.schemas import request_body
from app.registry.refusals import Code, RegistryRefusal
from app.registry.view import Version, View

router = APIRouter(prefix="/compatibility", default_response_class=Response)
TAGS: Final[list[str | Enum]] = ["Compatibility (schema registry)"]


@router.post(
    "/subjects/{subject}/versions/{version}",
    summary="Compare a schema with a version of a subject",
    responses=answers(Verdict, "Whether the schema is compatible."),
    tags=TAGS,
    openapi_extra=request_body(SchemaBody, EXAMPLE) | query("normalize", "verbose"),
)
async def compare_with_version(subject: str, version: str, request: Request) -> Response:
    named = subject_in(request, subject)
    wanted = version_number(version)

    def against(view: View) -> Sequence[Version]:
        live = view.versions(view.meant(named).qualified)
        if wanted is None:
            return live[-1:]
        found = [one for one in live if one.stored.version == wanted]
        if not found:
            raise RegistryRefusal(Code.VERSION_NOT_FOUND, f"Version {wanted} not found.")
        return found

    asked = await schema_in(request, named)
    return _answer(request, await service_of(request).check(asked, against))


@router.post(
    "/subjects/{subject}/versions",
    summary="Compare a schema with the versions that the level of a subject compares",
    responses=answers(Verdict, "Whether the schema is compatible."),
    tags=TAGS,
    openapi_extra=request_body(SchemaBody, EXAMPLE) | query("normalize", "verbose"),
)
async def compare_with_subject(subject: str, request: Request) -> Response:
    asked = await schema_in(request, subject_in(request, subject))
    return _answer(request, await service_of(request).check(asked, lambda _: None))


def _answer(request: Request, found: list[str]) -> Response:
    made: dict[str, Any] = {"is_compatible": not found}
    if flag(request, "verbose"):
        made["messages"] = found
    return answered(made)
