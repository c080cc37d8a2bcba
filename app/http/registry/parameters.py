"""The query parameters of the registry's routes, for the OpenAPI document.

Tests: ``tests/http/registry/test_routes.py`` compares them with those that each route reads.
"""

from __future__ import annotations

from typing import Any, Final

_BOOLEAN: Final = {"type": "boolean", "default": False}
_TEXTS: Final = {"type": "array", "items": {"type": "string"}}
_KNOWN: Final[dict[str, tuple[dict[str, Any], str]]] = {
    "aliases": (
        _BOOLEAN,
        "Whether subjects are also found by their aliases. A version then names those that the prefix selects.",
    ),
    "contextPrefix": ({"type": "string"}, "The beginning of the names of contexts."),
    "defaultToGlobal": (
        _BOOLEAN,
        "Whether the setting that holds for the subject is returned if it has none of its own.",
    ),
    "deleted": (_BOOLEAN, "Whether soft-deleted versions count, too."),
    "deletedOnly": (_BOOLEAN, "Whether soft-deleted versions alone count."),
    "fetchMaxId": (_BOOLEAN, "Whether the greatest id of the context is returned, too."),
    "force": (_BOOLEAN, "Whether IMPORT is set although there are schemas."),
    "format": (
        {"type": "string"},
        "The form of the text: `resolved` for Avro, `serialized` or `ignore_extensions` for Protobuf. Others are skipped.",
    ),
    "key": (_TEXTS, "The name of a property. Several ones must all be there."),
    "latestOnly": (_BOOLEAN, "Whether the newest version of each subject is returned alone."),
    "limit": ({"type": "integer", "default": -1}, "The most elements that are returned; -1 for all."),
    "normalize": (
        _BOOLEAN,
        "Whether schemas that differ in the order of members or in the form of names are the same.",
    ),
    "offset": ({"type": "integer", "default": 0, "minimum": 0}, "The number of elements that are left out."),
    "permanent": (_BOOLEAN, "Whether to delete for good, after a soft deletion."),
    "recursive": (_BOOLEAN, "Whether the modes of all subjects of the context are deleted, too."),
    "ruleType": (_TEXTS, "The type of a rule. Versions without a rule of one of these types are left out."),
    "subject": ({"type": "string"}, "A subject whose context the id belongs to. Lists have its versions alone."),
    "subjectPrefix": ({"type": "string"}, "The beginning of the names of subjects; `:*:` for those of all contexts."),
    "value": (_TEXTS, "The value of the property that the `key` at the same place names."),
    "verbose": (_BOOLEAN, "Whether the reasons are returned."),
}
PAGE: Final = ("offset", "limit")
"""The names of the parameters of a list."""
UNKNOWN_PROPERTIES: Final = "Confluent-Accept-Unknown-Properties"
"""The header of clients that take members which they do not know."""
_HEADERS: Final = {
    UNKNOWN_PROPERTIES: "With `true`, the response has the version, the GUID and the schema, too. Older clients refuse members"
    " that they do not know.",
}


def query(*names: str) -> dict[str, Any]:
    """``openapi_extra`` of a route that reads these parameters."""
    found = []
    for name in names:
        schema, text = _KNOWN[name]
        found.append({"name": name, "in": "query", "required": False, "description": text, "schema": schema})
    return {"parameters": found}


def with_header(extra: dict[str, Any], name: str) -> dict[str, Any]:
    """``openapi_extra`` of ``query`` for a route that also reads a header."""
    header = {"name": name, "in": "header", "required": False, "description": _HEADERS[name], "schema": _BOOLEAN}
    return {"parameters": [*extra["parameters"], header]}
