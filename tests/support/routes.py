"""Every route of the HTTP application, whether or not the OpenAPI document shows it."""

from __future__ import annotations

import importlib
import pkgutil

from fastapi import APIRouter, FastAPI
from starlette.routing import Route

import app.http

NOT_ASKED = frozenset({"HEAD"})
"""As GET, without the body."""


def served_routes(application: FastAPI) -> set[tuple[str, str]]:
    """(method, path) of all that is served."""
    schema = application.openapi()["paths"]
    found = {(method.upper(), path) for path, operations in schema.items() for method in operations}
    routers = [
        value
        for module in pkgutil.walk_packages(app.http.__path__, "app.http.")
        if module.name != "app.http.__main__"
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, APIRouter)
    ]
    assert len(routers) > 2, "no routers were found where they are made"
    for route in [*application.routes, *(route for router in routers for route in router.routes)]:
        if isinstance(route, Route):
            found |= {(method, route.path) for method in (route.methods or ()) if method not in NOT_ASKED}
    return found
