"""ASGI middleware: the forms of paths that the registry's clients use.

- ``/contexts/sales/subjects`` is ``/subjects`` with the context ``.sales`` for all names that have none.
- A name with a slash comes as ``%2F``. The slash must not end the name, so it is another character until ``slashes`` is called.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from app.registry.refusals import RegistryRefusal
from app.registry.subjects import DEFAULT_CONTEXT, read_context

CONTEXT: Final = "firn.registry.context"
"""Where a request's scope has the context of its base URL."""
_SLASH: Final = "\ue000"
"""Of the private use area. A name of a subject cannot have it."""
_ROOTS: Final = frozenset({"subjects", "schemas", "config", "mode", "compatibility", "contexts"})


def context_of(scope: Scope) -> str:
    """The context of names without one."""
    found: str = scope.get(CONTEXT, DEFAULT_CONTEXT)
    return found


def slashes(name: str) -> str:
    """A name as it was sent."""
    return name.replace(_SLASH, "/")


class RegistryPaths:
    """Runs before routes and metrics, so that they see one form of each path."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = _read(scope)
        await self._inner(scope, receive, send)


def _read(scope: Scope) -> Scope:
    path: str = scope["path"]
    root = path[1 : path.find("/", 1)] if path.find("/", 1) > 0 else path[1:]
    if root not in _ROOTS:
        return scope
    changed: dict[str, Any] = {}
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" in raw.lower():
        parts = raw.partition(b"?")[0].decode("latin-1").split("/")
        path = changed["path"] = "/".join(unquote(part).replace("/", _SLASH) for part in parts)
    if root == "contexts" and path.count("/") > 2:
        _, _, name, rest = path.split("/", 3)
        try:
            changed[CONTEXT] = read_context(slashes(name))
        except RegistryRefusal:
            return scope  # no route has this path
        changed["path"] = f"/{rest}"
    return {**scope, **changed} if changed else scope
