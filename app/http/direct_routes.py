"""Calls the endpoints of frequent requests without the router of FastAPI, which costs several times as much as bare uvicorn.

Such an endpoint takes the parameters of its path as text, and the request; it returns a response. So nothing is left that FastAPI
would do for it: no validation, no dependencies. The routes stay in the application as they are, for the OpenAPI document and for
all tables of routes. Middleware and the handlers of errors run as for every other request.

Tests: ``tests/http/test_direct_routes.py``.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.datastructures import URLPath
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

_Endpoint = Callable[..., Awaitable[Response]]


class _Direct:
    """One route: the parts of its path, and its endpoint."""

    __slots__ = ("endpoint", "literals", "names", "route")

    def __init__(self, route: APIRoute) -> None:
        self.route: Final = route
        self.endpoint: Final[_Endpoint] = route.endpoint
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


class DirectRoutes(BaseRoute):
    """The first route of the application: it takes the requests of some others."""

    def __init__(self, routes: Iterable[APIRoute]) -> None:
        """``routes`` must be those that the application would choose for their paths."""
        self._by_shape: dict[tuple[str, int], list[_Direct]] = {}
        for route in routes:
            _check(route)
            direct = _Direct(route)
            for method in route.methods or ():
                self._by_shape.setdefault((method, route.path.count("/")), []).append(direct)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] == "http" and not scope.get("root_path"):
            path: str = scope["path"]
            for direct in self._by_shape.get((scope["method"], path.count("/")), ()):
                parameters = direct.parameters_in(path.split("/"))
                if parameters is not None:
                    return Match.FULL, {
                        "endpoint": direct.endpoint,
                        "path_params": parameters,
                        "route": direct.route,
                    }
        return Match.NONE, {}

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)  # the routes themselves say it

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await scope["endpoint"](**scope["path_params"], request=Request(scope, receive, send))
        await response(scope, receive, send)


def _check(route: APIRoute) -> None:
    """The endpoint needs nothing of FastAPI but its call."""
    parameters: dict[str, Any] = dict(inspect.signature(route.endpoint, eval_str=True).parameters)
    assert parameters.pop("request").annotation is Request, route.path
    assert all(one.annotation is str for one in parameters.values()), route.path
    assert sorted(parameters) == sorted(route.param_convertors), route.path
    assert not route.dependencies, route.path
