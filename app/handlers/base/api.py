"""The shape of a handler.

An API family is a module of this package with a table ``APIS``; ``dispatch.py`` gathers them. A handler takes the broker's
parts, the request's header and the decoded message (a superset dataclass of ``app.wire.apis``) and returns the response
message, or is ``async`` if it has to wait. It may raise any ``FirnError`` that concerns the request as a whole: ``refuse``
then makes the response that carries the code the way that API carries it; ``None`` from it closes the connection.

A synchronous handler runs inside the socket's callback and must be done in well under 10 ms for every request (INV-15). If its
work grows with the request alone, a ``split`` bounds it. If its work grows with the number of topics, partitions or groups on the
broker, the handler is ``async`` and rests between portions (``app/core/turns.py``).

Tests: ``tests/handlers/test_long_requests.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from app.core.errors import ErrorCode
from app.handlers.base.context import Context
from app.handlers.base.portions import Split
from app.handlers.base.request import Request
from app.wire.apikeys import ApiKey


class Api(NamedTuple):
    """How one API is answered."""

    handle: Callable[[Context, Request, Any], Any | Awaitable[Any]]
    """(context, request, message) to the response message; ``async def`` only if it can wait."""
    refuse: Callable[[Request, Any, ErrorCode, str], Any]
    """(request, message, code, sentence) to a response that carries the code for everything that was asked."""
    refuse_each: Callable[[Request, Any, ErrorCode, str], Any] | None = None
    """As ``refuse``, with the code in the result of each topic, where ``refuse`` tells it once for all."""
    before: Callable[[Context, Request, Any], None] | None = None
    """Checks whether the connection itself allows the request. Called on the broker to which the client is connected, also if the
    request is passed on to the controller. Raises: RequestRejected."""
    split: Split | None = None
    """How a long request falls into short ones."""
    refuse_long: Callable[[Request], Any] | None = None
    """Makes the response to a request of more than ``wire.bounds.BYTES_MAX`` bytes, which is not decoded. Without it such a request
    ends its connection, and a client that cannot send less sends it again for ever."""


ApiTable = Mapping[ApiKey, Api]
