"""Shapes of the registry's answers, for the OpenAPI document. ``app/http/registry/answers.py`` makes the answers themselves.

Tests: ``tests/http/registry/test_routes.py``, ``tests/http/test_answers_of_the_document.py``.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType, field

from app.http.registry.requests import ReferenceBody
from app.http.schemas import REGISTRY_TYPE, reference


class SchemaShape(msgspec.Struct, kw_only=True):
    """A schema. Members that say nothing are left out."""

    schema: str
    guid: str
    schema_type: str | UnsetType = field(default=UNSET, name="schemaType")
    """Left out for AVRO."""
    references: list[ReferenceBody] | UnsetType = UNSET
    metadata: Any = UNSET
    rule_set: Any = field(default=UNSET, name="ruleSet")


class RegisteredSchema(msgspec.Struct, kw_only=True):
    """The id of a registered schema, and the schema if the request has `Confluent-Accept-Unknown-Properties`."""

    id: int
    version: int | UnsetType = UNSET
    schema: str | UnsetType = UNSET
    guid: str | UnsetType = UNSET
    schema_type: str | UnsetType = field(default=UNSET, name="schemaType")
    references: list[ReferenceBody] | UnsetType = UNSET
    metadata: Any = UNSET
    rule_set: Any = field(default=UNSET, name="ruleSet")


class SchemaOfId(SchemaShape, kw_only=True):
    """A schema that was asked for by its id."""

    max_id: int | UnsetType = field(default=UNSET, name="maxId")


class VersionShape(SchemaShape, kw_only=True):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    deleted: bool | UnsetType = UNSET
    aliases: list[str] | UnsetType = UNSET
    """With the parameter ``aliases``."""


class SchemaUse(msgspec.Struct):
    """A version that has a schema."""

    subject: str
    version: int


class IdInContext(msgspec.Struct):
    """The id that a schema has in a context."""

    context: str
    id: int


class Verdict(msgspec.Struct):
    """Whether a schema is compatible, and with ``verbose`` the reasons if it is not."""

    is_compatible: bool
    messages: list[str] | UnsetType = UNSET


BODIES: Final = (RegisteredSchema, SchemaOfId, SchemaShape, VersionShape, SchemaUse, IdInContext, Verdict)
NAME: Final = {"type": "string"}
NUMBER: Final = {"type": "integer"}


def answers(
    kind: type[msgspec.Struct] | dict[str, str], text: str, *, many: bool = False
) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route whose answer has this type, or is an array of it."""
    schema: dict[str, Any] = dict(kind) if isinstance(kind, dict) else reference(kind)
    if many:
        schema = {"type": "array", "items": schema}
    return {200: {"description": text, "content": {REGISTRY_TYPE: {"schema": schema}}}}
