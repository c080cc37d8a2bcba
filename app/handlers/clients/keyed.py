"""Look-ups of keys of HTTP requests, as FirnRequests and FirnKeyed make them (ADR 0043, EO6).

Tests: ``tests/broker/test_keyed_requests.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec

from app.core.errors import ErrorCode, ProtocolError, RequestRejected, copy_of
from app.core.turns import Portion
from app.exactly_once.records import (
    KEY_BYTES_MAX,
    PRINCIPAL_BYTES_MAX,
    RECORDS_MAX,
    TOPIC,
    TRY_ID_BYTES,
    RequestKey,
    Result,
    Tick,
    decode,
    encode_key,
)
from app.exactly_once.transactional_ids import prefix_of
from app.handlers.base.authorising import require
from app.security.acls import Operation, ResourceType
from app.wire.private import RequestsResponse

if TYPE_CHECKING:
    from app.handlers.base.request import Request
    from app.handlers.base.views import RequestsView

R = TypeVar("R", bound=RequestsResponse)


def key_of(request: Request, key: bytes, try_id: bytes) -> RequestKey:
    """The key of the connection's principal. Raises: ProtocolError, RequestRejected."""
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise ProtocolError(f"A key has {len(key)} bytes.")
    if len(try_id) != TRY_ID_BYTES:
        raise ProtocolError(f"The id of a try has {len(try_id)} bytes.")
    principal = request.caller.principal
    if len(principal.encode()) > PRINCIPAL_BYTES_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"The principal has more than {PRINCIPAL_BYTES_MAX} bytes. Its requests cannot have an Idempotency-Key.",
        )
    return RequestKey(principal, key)


async def look_up(
    context: RequestsView,
    request: Request,
    key: RequestKey,
    try_id: bytes,
    partitions: Sequence[tuple[str, int]],
    size_bytes: int,
) -> RequestsResponse:
    """Look a key up, and reserve a new one once it is known that its request can be served. Raises: FirnError.

    ``size_bytes``: of the result that may come.
    """
    requests = context.requests
    topics = {topic for topic, _ in partitions}
    if context.image.topic(TOPIC) is None:
        await require_writes(context, request, topics)
    await requests.ensure_topic()
    found = await requests.look(key, try_id, None)
    if found.found != "unknown":
        return RequestsResponse(found=found.found, result=found.value, try_id=found.try_id)
    timeout_ms = await check_new(context, request, key, partitions)
    found = await requests.look(key, try_id, max(0, size_bytes))
    return RequestsResponse(found=found.found, result=found.value, try_id=found.try_id, timeout_ms=timeout_ms)


async def check_new(
    context: RequestsView, request: Request, key: RequestKey, partitions: Sequence[tuple[str, int]]
) -> int:
    """Check that a request with a new key can be served. Returns: the time-out of its transaction, in milliseconds.

    Raises: FirnError.
    """
    await require_writes(context, request, {topic for topic, _ in partitions})
    if context.refusal is not None:
        raise copy_of(context.refusal)
    return await context.requests.check_parts(key, partitions)


async def require_writes(context: RequestsView, request: Request, topics: set[str]) -> None:
    """Raises: RequestRejected TOPIC_AUTHORIZATION_FAILED."""
    portion = Portion()
    for topic in sorted(topics):
        require(context, request, Operation.WRITE, ResourceType.TOPIC, topic)
        await portion.rest_if_spent()


def result_of(key: RequestKey, try_id: bytes, value: bytes, records_max: int = RECORDS_MAX) -> Result:
    """Raises: ProtocolError, CorruptionError for bytes that are no result of this try, or one of more records."""
    found = decode(encode_key(key), value, records_max)
    if found is None or isinstance(found, Tick) or found[1].try_id != try_id:
        raise ProtocolError("The result is of another try.")
    return found[1]


def addressed(context: RequestsView, request: Request, response: R) -> R:
    """A response that also says who asked, and who leads the results."""
    principal = request.caller.principal
    return msgspec.structs.replace(
        response, principal=principal, prefix=prefix_of(principal), leaders=context.requests.leaders()
    )
