"""Configs and modes: of all subjects, of a context, and of one subject."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from app.core.turns import each, slices
from app.http.bodies import small_body
from app.http.gateway import ADMIN_BODY_BYTES_MAX
from app.http.registry.answers import answered
from app.http.registry.parameters import query
from app.http.registry.paths import context_of
from app.http.registry.requests import flag, service_of, subject_in
from app.http.registry.service import SchemaService
from app.http.registry.shapes import answers
from app.http.schemas import request_body
from app.http.serving import gateway_of
from app.registry.refusals import Code, RegistryRefusal
from app.registry.registering import Append, delete_config, delete_modes, set_config, set_mode
from app.registry.subjects import DEFAULT_CONTEXT, Subject
from app.registry.view import DEFAULT_LEVEL, View, scopes

router = APIRouter(default_response_class=Response)
T = TypeVar("T")
TAGS: Final[list[str | Enum]] = ["Configs and modes (schema registry)"]
MODES_AT_ONCE: Final = 200
"""Modes of subjects that one append deletes."""


class ConfigMembers(msgspec.Struct):
    """Members of a config besides its level."""

    normalize: bool | None = None
    alias: str | None = None
    aliasForDeks: str | None = None  # noqa: N815 (as clients write it)
    validateFields: bool | None = None  # noqa: N815
    validateNewSchemas: bool | None = None  # noqa: N815
    validateRules: bool | None = None  # noqa: N815
    compatibilityPolicy: str | None = None  # noqa: N815
    compatibilityGroup: str | None = None  # noqa: N815
    defaultMetadata: dict[str, Any] | None = None  # noqa: N815
    overrideMetadata: dict[str, Any] | None = None  # noqa: N815
    defaultRuleSet: dict[str, Any] | None = None  # noqa: N815
    overrideRuleSet: dict[str, Any] | None = None  # noqa: N815


class ConfigBody(ConfigMembers):
    """Members of a config. Those that are not sent stay as they are."""

    compatibility: str | None = None


class ConfigShape(ConfigMembers):
    """A config with the level that holds."""

    compatibilityLevel: str | None = None  # noqa: N815


class ModeBody(msgspec.Struct):
    mode: str = ""


class ModeShape(msgspec.Struct):
    """A mode; null if there was none besides those of subjects."""

    mode: str | None


BODIES: Final = (ConfigBody, ConfigShape, ModeBody, ModeShape)


def _scope(request: Request, subject: str | None) -> tuple[str | None, Subject | None]:
    """The name that a setting is stored under, and the subject whose mode guards it."""
    named = Subject(context_of(request.scope), "") if subject is None else subject_in(request, subject)
    if not named.name and named.context == DEFAULT_CONTEXT:
        return None, None
    return scopes(named)[0], named


# --- configs ----------------------------------------------------------------------------------------------------------


async def _get_config(request: Request, subject: str | None) -> Response:
    name, named = _scope(request, subject)
    view = await service_of(request).view()
    found = view.config(name)
    if found is None and name is not None and subject is not None and not flag(request, "defaultToGlobal"):
        raise _no_level(subject)
    if found is None or "compatibilityLevel" not in found:
        level = (DEFAULT_LEVEL if named is None else view.level(named)).value
        found = {**(found or {}), "compatibilityLevel": level}
    return answered(found)


async def _put_config(request: Request, subject: str | None) -> Response:
    body = await _body(request, ConfigBody)
    sent = {member: one for member, one in msgspec.to_builtins(body).items() if one is not None}
    change = {("compatibilityLevel" if member == "compatibility" else member): one for member, one in sent.items()}
    if isinstance(change.get("compatibilityLevel"), str):
        change["compatibilityLevel"] = change["compatibilityLevel"].upper()
        sent["compatibility"] = change["compatibilityLevel"]
    name, named = _scope(request, subject)
    await service_of(request).write(lambda view: (None, set_config(view, name, change, named)))
    return answered(sent)


async def _delete_config(request: Request, subject: str | None) -> Response:
    name, named = _scope(request, subject)

    def decide(view: View) -> tuple[Mapping[str, Any], Append]:
        found = view.config(name)
        if found is None:
            if subject is not None:
                raise _no_level(subject)
            found = {"compatibilityLevel": DEFAULT_LEVEL.value}
        return found, delete_config(view, name, named)

    return answered(await service_of(request).write(decide))


def _no_level(subject: str) -> RegistryRefusal:
    return RegistryRefusal(
        Code.SUBJECT_HAS_NO_LEVEL, f"Subject '{subject}' does not have subject-level compatibility configured."
    )


# --- modes ------------------------------------------------------------------------------------------------------------


async def _get_mode(request: Request, subject: str | None) -> Response:
    name, named = _scope(request, subject)
    view = await service_of(request).view()
    if (
        name is not None
        and subject is not None
        and view.mode_set(name) is None
        and not flag(request, "defaultToGlobal")
    ):
        raise _no_mode(subject)
    return answered({"mode": view.mode(named).value})


async def _put_mode(request: Request, subject: str | None) -> Response:
    mode = (await _body(request, ModeBody)).mode.upper()
    force = flag(request, "force")
    name, named = _scope(request, subject)
    await service_of(request).write(lambda view: (None, set_mode(view, name, mode, named, force=force)))
    return answered({"mode": mode})


async def _delete_mode(request: Request, subject: str | None) -> Response:
    name, named = _scope(request, subject)
    service = service_of(request)
    recursive = flag(request, "recursive") and (named is None or not named.name)
    if recursive:
        await _delete_modes_in(service, DEFAULT_CONTEXT if named is None else named.context)

    def decide(view: View) -> tuple[str | None, Append]:
        found = view.mode_set(name)
        if found is None and not recursive:
            if subject is not None:
                raise _no_mode(subject)
            found = view.mode(named).value
        return found, delete_modes(view, [name])

    return answered({"mode": await service.write(decide)})


async def _delete_modes_in(service: SchemaService, context: str) -> None:
    """Delete the modes of all subjects of a context, some at a time."""
    names: list[str] = []
    view = await service.view()
    await each(lambda name: names.append(name) if name is not None else None, view.subjects_with_mode(context))
    for some in slices(names, MODES_AT_ONCE):
        await service.write(partial(_deleted, some))


def _deleted(names: Sequence[str], view: View) -> tuple[None, Append]:
    return None, delete_modes(view, names)


def _no_mode(subject: str) -> RegistryRefusal:
    return RegistryRefusal(
        Code.SUBJECT_HAS_NO_MODE, f"Subject '{subject}' does not have subject-level mode configured."
    )


async def _body(request: Request, kind: type[T]) -> T:
    timeout_ms = gateway_of(request).settings.body_idle_timeout_ms
    return await small_body(request, kind, bytes_max=ADMIN_BODY_BYTES_MAX, idle_timeout_ms=timeout_ms)


# --- routes -----------------------------------------------------------------------------------------------------------

Answer: TypeAlias = Callable[[Request, str | None], Awaitable[Response]]
"""Answers a request for the settings of a subject, or of all with None."""


def _add(
    kind: str, body: type[msgspec.Struct], example: dict[str, str], get: Answer, put: Answer, delete: Answer
) -> None:
    """Add the routes of one kind of settings: those of all subjects, and those of one."""

    def add(method: str, verb: str, answer: Answer) -> None:
        async def of_all(request: Request) -> Response:
            return await answer(request, None)

        async def of_subject(subject: str, request: Request) -> Response:
            return await answer(request, subject)

        extra = request_body(body, example) if method == "PUT" else {}
        if body is ModeBody and (parameter := {"PUT": "force", "DELETE": "recursive"}.get(method)):
            extra |= query(parameter)
        of_one = query("defaultToGlobal") if method == "GET" else {}
        shape = body if method == "PUT" else ModeShape if body is ModeBody else ConfigShape
        responses = answers(shape, f"The {kind} as it was sent." if method == "PUT" else f"The {kind}.")
        for path, endpoint, whose, more in (
            (f"/{kind}", of_all, "all subjects", {}),
            (f"/{kind}/{{subject}}", of_subject, "a subject", of_one),
        ):
            router.add_api_route(
                path,
                endpoint,
                methods=[method],
                name=f"{method.lower()}_{kind}_{endpoint.__name__}",
                summary=f"{verb} the {kind} of {whose}",
                tags=TAGS,
                responses=responses,
                openapi_extra=extra | more,
            )

    add("GET", "Get", get)
    add("PUT", "Set", put)
    add("DELETE", "Delete", delete)


_add("config", ConfigBody, {"compatibility": "FULL_TRANSITIVE"}, _get_config, _put_config, _delete_config)
_add("mode", ModeBody, {"mode": "READWRITE"}, _get_mode, _put_mode, _delete_mode)
