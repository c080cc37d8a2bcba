"""The runbooks of ``docs/runbooks``, for a reader who has nothing but the console. They say the same to each caller.

Tests: ``tests/http/console/test_runbooks.py``.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.http.console.rendering import ConsoleRoute, console_of, page
from app.http.errors import RestError

router = APIRouter(include_in_schema=False, route_class=ConsoleRoute, default_response_class=Response)


@router.get("/console/runbooks")
async def list_runbooks(request: Request) -> Response:
    found = (await console_of(request).runbooks()).values()
    return await page(request, "runbooks", section="", runbooks=sorted(found, key=lambda one: one.title))


@router.get("/console/runbooks/{name}")
async def show_runbook(name: str, request: Request) -> Response:
    found = (await console_of(request).runbooks()).get(name)
    if found is None:
        raise RestError(404, f"There is no runbook {name}.")
    return await page(request, "runbook", section="", runbook=found)
