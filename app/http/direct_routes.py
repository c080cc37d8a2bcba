"""Calls the endpoints of frequent requests without the router of FastAPI, which costs several times as much as bare uvicorn.

Such an endpoint takes the parameters of its path as text, and the request; it returns a response. So nothing is left that FastAPI
would do for it: no validation, no dependencies. The routes stay in the application as they are, for the OpenAPI document and for
all tables of routes. Firn's middleware and the handlers of errors run as for every other request, FastAPI's middleware does not.

Tests: ``tests/http/test_direct_routes.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send


def add_routes(app: FastAPI, router: APIRouter) -> None:
    """Add the routes of a router as they are. Its prefix and its settings are in them already.

    ``include_router`` would build them a second time in each application, when the first request passes by them.
    """
    app.router.routes.extend(router.routes)


class _Direct:
    """One route, and the parts of its path."""

    __slots__ = ("literals", "names", "route")

    def __init__(self, route: APIRoute) -> None:
        self.route: Final = route
        parts = route.path.split("/")
        self.literals: Final = tuple((place, part) for place, part in enumerate(parts) if not part.startswith("{"))
        self.names: Final = tuple((place, part[1:-1]) for place, part in enumerate(parts) if part.startswith("{"))

    def parameters_in(self, parts: list[str]) -> dict[str, str] | None:
        """The parameters of a path with as many parts; None if the path is not of this route."""
        for place, literal in self.literals:
            if parts[place] != literal:
                return None
        found = {name: parts[place] for place, name in self.names}
        return found if all(found.values()) else None


class DirectRoutes:
    """ASGI middleware next to the router: it takes the requests of some routes."""

    def __init__(self, inner: ASGIApp, *, routes: Iterable[APIRoute]) -> None:
        """``routes`` must be those that the application would choose for their paths."""
        self._inner = inner
        self._by_shape: dict[tuple[str, int], list[_Direct]] = {}
        for route in routes:
            _check(route)
            direct = _Direct(route)
            for method in route.methods or ():
                self._by_shape.setdefault((method, route.path.count("/")), []).append(direct)

    def chosen(self, scope: Scope) -> tuple[APIRoute, dict[str, str]] | None:
        """The route of a request and the parameters of its path; None if the request is left to the router."""
        if scope["type"] == "http" and not scope.get("root_path"):
            path: str = scope["path"]
            for direct in self._by_shape.get((scope["method"], path.count("/")), ()):
                parameters = direct.parameters_in(path.split("/"))
                if parameters is not None:
                    return direct.route, parameters
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        chosen = self.chosen(scope)
        if chosen is None:
            await self._inner(scope, receive, send)
            return
        route, parameters = chosen
        scope["route"], scope["path_params"] = route, parameters
        request = Request(scope, receive, send)
        try:
            response: Response = await route.endpoint(**parameters, request=request)
        except Exception as error:  # noqa: BLE001 - raised again if it has no handler
            response = await _answer_to(request, error)
        await response(scope, receive, send)


async def _answer_to(request: Request, error: Exception) -> Response:
    """The response of the application's handler of errors of this kind. Raises: the error itself if there is none."""
    handlers = request.app.exception_handlers
    handler = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    if handler is None:
        raise error
    response: Response = await handler(request, error)
    error.__traceback__ = None  # its frames hold the request
    return response


def _check(route: APIRoute) -> None:
    """The endpoint needs nothing of FastAPI but its call."""
    parameters: dict[str, Any] = dict(inspect.signature(route.endpoint, eval_str=True).parameters)
    assert parameters.pop("request").annotation is Request, route.path
    assert all(one.annotation is str for one in parameters.values()), route.path
    assert sorted(parameters) == sorted(route.param_convertors), route.path
    assert not route.dependencies, route.path
