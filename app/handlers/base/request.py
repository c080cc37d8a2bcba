"""``Request``: the header of a request, its caller, and its state while it is served.

Tests: ``tests/handlers/test_auditing.py``, ``tests/handlers/test_long_requests.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from app.handlers.policy.callers import Caller

if TYPE_CHECKING:
    from app.security.noting import Resource


UNKNOWN_SOFTWARE: Final = ("unknown", "unknown")
"""In place of the name and version of a client's library, as Kafka names it."""


class Cancellable(Protocol):
    """A task or wait of a connection."""

    def cancel(self) -> None: ...


@dataclass(slots=True)
class Request:
    """A request's header, its caller, and its state while it is served."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    caller: Caller
    on_close: set[Cancellable] = field(default_factory=set)
    """The connection's tasks and waits. They are cancelled when the connection ends."""
    throttle_time_ms: int = 0
    """The throttle time of the response, if its API has a field for it."""
    denied: dict[Resource, None] | None = None
    """Resources that were refused for want of a right (``noting.note``)."""
    is_free: bool | None = False
    """Whether its steps count for no client's share, as of a follower's Fetch; None until it is decoded."""
    software: tuple[str, str] = UNKNOWN_SOFTWARE
    """Name and version of the client's library (KIP-511)."""
    about: str | None = None
    """The name of the resource that it changes, for the audit log. Set where its message has a secret in place of a name."""
