"""Bodies in the OpenAPI document, generated from the types that decode and encode them.

A route names its types by ``request_body`` and ``content_of``. ``components`` generates the schemas of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from app.http.bodies import JSON_TYPE
from app.http.errors import Error

_REFERENCE: Final = "#/components/schemas/{name}"
_OWN_ERROR: Final = "HTTPValidationError"
REGISTRY_PATHS: Final = (
    "/subjects",
    "/schemas",
    "/config",
    "/mode",
    "/compatibility",
    "/contexts",
    "/v1/metadata",
    "/exporters",
    "/dek-",
)
REGISTRY_TYPE: Final = "application/vnd.schemaregistry.v1+json"
V2_TYPE: Final = "application/vnd.kafka.v2+json"


IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "example": "order-1001",
    "description": "A key of 1 to 255 bytes, bare or as a quoted string. The records are stored once, however often the request is"
    " repeated with it, and each repeat gets the same response.",
}
"""Of ``parameters``: the header of the routes that produce."""


IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "The ETag of a partition or of a page of its records. The records are stored only if the partition ends there."
    " Each record must have a partition_id, and all the same.",
}
"""Of ``parameters``: the header of the routes of REST v3 that produce."""
ETAG: Final = {"description": "The end of the partition, for If-Match.", "schema": {"type": "string"}}
"""Of ``headers`` of responses."""


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


def describe_errors(document: dict[str, Any]) -> None:
    """Describe the errors of all routes in a generated document. FastAPI describes those of its own validation, and no route
    answers so."""
    for path, operations in document["paths"].items():
        of_registry = path.startswith(REGISTRY_PATHS)
        for operation in operations.values():
            kinds = [JSON_TYPE]
            if of_registry:
                kinds.append(REGISTRY_TYPE)
            elif any("(v2)" in tag for tag in operation.get("tags", ())):
                kinds.append(V2_TYPE)
            content = {kind: {"schema": reference(Error)} for kind in kinds}
            responses = operation["responses"]
            if _OWN_ERROR in str(responses.get("422")):
                del responses["422"]
            responses["4XX"] = {"description": "The request is refused.", "content": content}
            responses["5XX"] = {"description": "The request was not served. Try again later.", "content": content}
    schemas = document.get("components", {}).get("schemas", {})
    for name in (_OWN_ERROR, "ValidationError"):
        schemas.pop(name, None)


def components(kinds: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """The schemas of types, and of the types in them, by name."""
    _, found = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    return dict(found)
