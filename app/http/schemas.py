"""Bodies in the OpenAPI document, generated from the types that decode and encode them.

A route names its types by ``request_body`` and ``content_of``. ``components`` generates the schemas of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from app.http.bodies import JSON_TYPE

_REFERENCE: Final = "#/components/schemas/{name}"


def request_body(kind: type[msgspec.Struct], example: Any, *, description: str = "") -> dict[str, Any]:
    """``openapi_extra`` of a route whose body is decoded as ``kind``."""
    body = {"required": True, "content": {JSON_TYPE: {"schema": reference(kind), "example": example}}}
    return {"requestBody": {"description": description, **body} if description else body}


def content_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """``content`` of a response that is encoded from ``kind``."""
    return {JSON_TYPE: {"schema": reference(kind)}}


def reference(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Refers to the schema of a type, which ``components`` must be given too."""
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def components(kinds: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """The schemas of types, and of the types in them, by name."""
    _, found = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    return dict(found)
