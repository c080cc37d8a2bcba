"""The forms of paths that the registry's clients use, and the types of answers that they accept. ``Front`` reads them before routes
and metrics see a path.

- ``/contexts/sales/subjects`` is ``/subjects`` with the context ``.sales`` for all names that have none.
- A name with a slash comes as ``%2F``. The slash must not end the name, so it is another character until ``slashes`` is called.
- An answer has the API's own type. A request that accepts plain JSON and not this type gets the same bytes as plain JSON.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import Scope

from app.http.accepting import chosen
from app.registry.refusals import RegistryRefusal
from app.registry.subjects import DEFAULT_CONTEXT, read_context

CONTEXT: Final = "firn.registry.context"
"""Where a request's scope has the context of its base URL."""
ANSWER_TYPE: Final = "firn.registry.type"
"""Where the scope of a request that does not accept ``OWN_TYPE`` has the type of its answer."""
OWN_TYPE: Final = b"application/vnd.schemaregistry.v1+json"
_OTHER_TYPES: Final = (b"application/vnd.schemaregistry+json", b"application/json")
_TYPES: Final = tuple(kind.decode() for kind in (OWN_TYPE, *_OTHER_TYPES))
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
    if (kind := _type_of(scope["headers"])) is not None:
        changed[ANSWER_TYPE] = kind
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


def _type_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The type of an answer, if it is not ``OWN_TYPE``. A request that accepts none of the types gets ``OWN_TYPE``, too."""
    accepted = b",".join([value for name, value in headers if name == b"accept"]).lower()
    if b";" in accepted:
        found = (chosen(accepted.decode("latin-1"), _TYPES) or _TYPES[0]).encode()
        return None if found == OWN_TYPE else found
    if OWN_TYPE in accepted or b"*" in accepted:
        return None
    return next((kind for kind in _OTHER_TYPES if kind in accepted), None)
