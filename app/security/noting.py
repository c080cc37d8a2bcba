"""How handlers note facts for the audit log (ADR 0033). Small, because a broker without an audit log imports it, too.

A refusal is kept in the request, of which ``handlers/policy/auditing.py`` makes one event once the request has its response.

Tests: ``tests/security/test_audit.py``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

from app.core.errors import ErrorCode
from app.security.acls import CLUSTER_NAME, Operation, ResourceType

AUDIT_TOPIC: Final = "__firn_audit"
TEXT_CHARS_MAX: Final = 256
"""Of a name that a client chose. Kafka's own names are shorter, those of topics by rule."""
Change = dict[str, Any]
"""One change, or one that was refused: ``type`` and ``name``, ``action``, the values of the request, and perhaps ``error``."""


class Resource(NamedTuple):
    """The resource of a right."""

    operation: str
    type: str
    name: str


class Refusable(Protocol):
    """A request."""

    denied: dict[Resource, None] | None
    """The rights that were refused."""


def note(request: Refusable, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> None:
    """A request is refused this."""
    if request.denied is None:
        request.denied = {}
    request.denied[Resource(operation.name, kind.name, name)] = None


def short(text: str) -> str:
    """A client's text, cut to the room in a line."""
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}…"


def named(kind: Any, value: int) -> str:
    """The name of a number that a client has sent; the number if it has none."""
    try:
        return str(kind(value).name)
    except ValueError:
        return str(value)


def change(type: str, name: str | None, action: str, error_code: int = 0, **more: Any) -> Change:
    """One change of a request."""
    made: Change = {"action": action, "type": type, "name": None if name is None else short(name), **more}
    if error_code:
        made["error"] = named(ErrorCode, error_code)
    return made
