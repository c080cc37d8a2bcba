"""Routes of REST v2: the types of a request are checked first, and an error has v2's number and type.

Tests: ``tests/http/rest_v2/test_topics.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

import msgspec
from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from app.client.cluster import TopicView
from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.core.turns import each
from app.http.accepting import chosen
from app.http.errors import NO_STORE, RestAnswer, RestError, answer_of
from app.http.gateway import Gateway
from app.http.rest_v2.media import EMBEDDED_TYPES, PLAIN_TYPES, is_v2
from app.http.schemas import reference
from app.http.serving import caller_of, counts_no_more, gateway_of

TOPIC_NOT_FOUND: Final = 40401
PARTITION_NOT_FOUND: Final = 40402
UNPROCESSABLE: Final = 422
MEDIA: Final = "firn.media"
"""Where a request's scope has the type of its response."""
_CODES: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, TOPIC_NOT_FOUND),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, TOPIC_NOT_FOUND),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (404, TOPIC_NOT_FOUND),
    ErrorCode.INVALID_REGULAR_EXPRESSION: (422, 422),
    ErrorCode.OFFSET_METADATA_TOO_LARGE: (422, 422),
    ErrorCode.GROUP_MAX_SIZE_REACHED: (429, 42901),
    ErrorCode.UNKNOWN_MEMBER_ID: (409, 40903),
    ErrorCode.FENCED_MEMBER_EPOCH: (409, 40903),
    ErrorCode.STALE_MEMBER_EPOCH: (409, 40903),
    ErrorCode.ILLEGAL_GENERATION: (409, 40903),
    ErrorCode.REBALANCE_IN_PROGRESS: (409, 40903),
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (409, 40903),
    ErrorCode.GROUP_ID_NOT_FOUND: (409, 40903),
}
"""HTTP status and error code of Kafka's codes where v2 differs from v3."""


def answer_v2(error: FirnError | RestError) -> RestAnswer:
    """The answer for an error, in v2's numbers."""
    answer = answer_of(error)
    if isinstance(error, RequestRejected) and error.code in _CODES:
        return RestAnswer(*_CODES[error.code], answer.message)
    return answer


class V2Route(APIRoute):
    """A route of v2. It takes bodies of every type of v2, and answers in a type that the request accepts."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handled(request: Request) -> Response:
            kind = chosen(request.headers.get("accept", ""), (*PLAIN_TYPES, *EMBEDDED_TYPES))
            if kind is None:
                raise RestError(406, f"No type in Accept is served. Accept {PLAIN_TYPES[0]} or application/json.")
            request.scope[MEDIA] = kind
            sent = request.headers.get("content-type")
            if sent is not None and request.method == "POST" and not is_v2(sent):
                raise RestError(
                    415,
                    f"The Content-Type {sent[:100]!r} is not served. Send {PLAIN_TYPES[0]}, or a type with a format.",
                )
            try:
                return await handle(request)
            except (FirnError, RestError) as error:
                if counts_no_more(caller_of(request), error):
                    raise
                if isinstance(error, FirnError):
                    gateway_of(request).tell(self.path, error)
                answer = answer_v2(error)
            return Response(answer.body(), answer.status, headers=answer.headers(), media_type=kind)

        return handled


def answered(request: Request, content: Any, status: int = 200) -> Response:
    """An answer of one JSON value, in the type that the client likes best."""
    return Response(msgspec.json.encode(content), status, headers=NO_STORE, media_type=request.scope[MEDIA])


async def listed(request: Request, elements: Iterable[object], before: bytes = b"", after: bytes = b"") -> Response:
    """An answer of a JSON array, between ``before`` and ``after``, whose length the cluster decides: it is made in portions."""
    pieces: list[bytes] = []
    await each(lambda one: pieces.append(msgspec.json.encode(one)), elements)
    content = b"".join((before, b"[", b",".join(pieces), b"]", after))
    return Response(content, headers=NO_STORE, media_type=request.scope[MEDIA])


def responses_of(kind: type[msgspec.Struct], text: str, *, many: bool = False) -> dict[int | str, dict[str, Any]]:
    """``responses`` of a route, for the OpenAPI document."""
    schema: dict[str, Any] = reference(kind)
    if many:
        schema = {"type": "array", "items": schema}
    return {200: {"description": text, "content": {PLAIN_TYPES[0]: {"schema": schema}}}}


async def found_topic(gateway: Gateway, name: str) -> TopicView:
    """A topic as of now. Raises: RequestRejected, BrokerUnavailable."""
    return await gateway.admin.describe_topic(name)


def partition_not_found(topic: str, partition: int) -> RestError:
    """The answer for a partition that a topic does not have."""
    return RestError(404, f"Topic {topic} has no partition {partition}.", error_code=PARTITION_NOT_FOUND)
