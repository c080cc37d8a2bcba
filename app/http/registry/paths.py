"""The forms of paths that the registry's clients use. ``Front`` reads them before routes and metrics see a path.

- ``/contexts/sales/subjects`` is ``/subjects`` with the context ``.sales`` for all names that have none.
- A name with a slash comes as ``%2F``. The slash must not end the name, so it is another character until ``slashes`` is called.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

from starlette.types import Scope

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


def read_paths(scope: Scope) -> Scope:
    """The scope with one form of the registry's paths, and with the context of the base URL. Other paths stay as they are."""
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
