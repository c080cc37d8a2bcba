"""The response of a Fetch, from the results of an attempt.

Tests: ``tests/handlers/test_fetch.py``, ``tests/handlers/test_fetch_long.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.errors import ErrorCode
from app.core.turns import Portion, slices
from app.handlers.base.partitions import node_endpoints
from app.handlers.fetch.fetch_long import LOOKED_AT_ONCE
from app.wire.fetch import ENDPOINTS, PartitionData, RecordsRef, encode_fetch_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.handlers.base.views import FetchView
    from app.handlers.clients.client import Client, RequestFields
    from app.handlers.fetch.attempts import Attempt, Found
    from app.handlers.state.fetch_sessions import FetchPlan
    from app.transport.core import Slot
    from app.transport.sending import Part
    from app.wire.produce import TopicRef


def complete(
    client: Client, slot: Slot, asked: RequestFields, client_id: str | None, plan: FetchPlan, attempt: Attempt
) -> None:
    """Answer a request in its slot with the results of an attempt."""
    told = charged(asked, client_id, attempt)
    client.complete(slot, answer(client.context, told, plan, attempt))


def charged(asked: RequestFields, client_id: str | None, attempt: Attempt) -> RequestFields:
    """Charge the client for the records of an attempt, and note its refusals. Returns: ``asked`` with the throttle time."""
    throttle_time_ms = attempt.charge(client_id)
    if attempt.denied:
        attempt.tell_denied(client_id, asked.correlation_id)
    return asked._replace(throttle_time_ms=throttle_time_ms)


def answer(context: FetchView, asked: RequestFields, plan: FetchPlan, attempt: Attempt) -> list[Part]:
    """The response that carries the results of an attempt."""
    if plan.followed is not None and not plan.overtaken:
        plan.followed.moved.clear()
    if plan.overtaken:
        attempt.release()
        return unwrap(
            encode_fetch_response(
                asked.version, asked.correlation_id, [], error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH
            )
        )
    topics: dict[TopicRef, list[PartitionData]] = {}
    leaders: set[int] = set()
    put_found(asked.version, plan, attempt.found, topics, leaders)
    return encoded(context, asked, plan, attempt, topics, leaders)


async def answer_in_portions(context: FetchView, asked: RequestFields, plan: FetchPlan, attempt: Attempt) -> list[Part]:
    """As ``answer``, of many partitions. The ranges belong to the attempt until this returns, and to the response from then on."""
    topics: dict[TopicRef, list[PartitionData]] = {}
    leaders: set[int] = set()
    portion = Portion()
    if not plan.overtaken:
        for some in slices(attempt.found, LOOKED_AT_ONCE):
            put_found(asked.version, plan, some, topics, leaders)
            await portion.rest_if_spent()
        await portion.rest()  # encoding has a turn of its own
    if plan.overtaken:
        return answer(context, asked, plan, attempt)
    return encoded(context, asked, plan, attempt, topics, leaders)


def put_found(
    version: int,
    plan: FetchPlan,
    found: Sequence[Found],
    topics: dict[TopicRef, list[PartitionData]],
    leaders: set[int],
) -> None:
    """Add results to the topics of a response, and to the leaders that it names."""
    in_session = plan.session is not None
    for one in found:
        cached = one.cached
        if in_session and not plan.includes(
            cached,
            error=one.error,
            high_watermark=one.high_watermark,
            log_start_offset=one.log_start_offset,
            record_bytes=one.record_bytes,
            diverges=one.diverging is not None,
            redirects=one.preferred_replica >= 0,
        ):
            continue
        data = PartitionData(
            cached.partition,
            one.error,
            one.high_watermark,
            one.last_stable_offset,
            one.log_start_offset,
            one.preferred_replica,
            RecordsRef(one.record_bytes, one.ranges) if one.record_bytes else None,
            one.aborted,
            one.diverging,
            one.current_leader if version >= ENDPOINTS else None,
        )
        if one.current_leader is not None:
            leaders.add(one.current_leader[0])
        if one.log is not None:
            one.log.sent_bytes += one.record_bytes
            one.log.sent_records += one.offset_span
        of_topic = topics.get(cached.topic)
        if of_topic is None:
            topics[cached.topic] = [data]
        else:
            of_topic.append(data)


def encoded(
    context: FetchView,
    asked: RequestFields,
    plan: FetchPlan,
    attempt: Attempt,
    topics: dict[TopicRef, list[PartitionData]],
    leaders: set[int],
) -> list[Part]:
    """The response of these topics, which are counted as sent."""
    version, correlation_id, throttle_time_ms = asked
    attempt.count_sent()
    return unwrap(
        encode_fetch_response(
            version,
            correlation_id,
            list(topics.items()),
            throttle_time_ms=throttle_time_ms,
            session_id=plan.session_id,
            node_endpoints=node_endpoints(context, attempt.client.caller, leaders) if leaders else (),
        )
    )


def unwrap(pieces: Sequence[bytes | RecordsRef]) -> list[Part]:
    """The codec's pieces as the connection's parts."""
    parts: list[Part] = []
    for piece in pieces:
        if type(piece) is bytes:
            parts.append(piece)
        else:
            parts.extend(piece.source)  # type: ignore[union-attr, arg-type]
    return parts
