"""The key and the digest of a request (ADR 0043, EO6).

Tests: ``tests/http/keyed/test_keyed_requests.py``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Final, NamedTuple

from fastapi import Request

from app.core.errors import RequestRejected
from app.core.units import TimestampMs
from app.exactly_once.keys import HEADER, RequestDigest, key_of
from app.http.errors import RestError, answer_of

KEY: Final = HEADER.encode()
"""The name of the header, as a request's scope has it."""


class KeyedRecord(NamedTuple):
    """One record of a keyed request, whose content is converted."""

    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: TimestampMs | None = None


class KeyedRequest(NamedTuple):
    """A request whose body is being read."""

    key: bytes
    digest: RequestDigest

    async def fed(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The chunks of the body as they come, after the digest has taken them in."""
        async for chunk in chunks:
            self.digest.feed(chunk)
            yield chunk


def keyed(request: Request) -> KeyedRequest | None:
    """The key of a request, and the digest to feed with its body; None for a request without a key. Raises: RestError 400."""
    values = [value for name, value in request.scope["headers"] if name == KEY]
    if not values:
        return None
    try:
        key = key_of(values)
    except RequestRejected as error:
        raise RestError(400, str(error)) from None
    assert key is not None
    content_type = request.headers.get("content-type", "")
    return KeyedRequest(key, RequestDigest(request.method, request.scope["path"], content_type))


async def missing_for_key(request: Request, found: Awaitable[object]) -> RequestRejected | RestError | None:
    """Wait until the topic or partition of a request that produces is found. Returns: the 404 of a request with a key. It may be a
    repeat, and its topic be deleted.

    Raises: RequestRejected, RestError, also the 404 of a request without a key; BrokerUnavailable.
    """
    try:
        await found
    except (RequestRejected, RestError) as error:
        if answer_of(error).status == 404 and any(name == KEY for name, _ in request.scope["headers"]):
            return error
        raise
    return None
