"""Fetch (key 1): the records of partitions from an offset on, as file ranges that the connection sends.

Consumers and followers are two kinds of senders. ``serve_fetch`` decides the kind once, by the replica id of the request. Each kind
has its own look at the partitions (``consumers.py``, ``following.py``) and its own wait (``parked.py``). If a look has found
enough, or if waiting would not help, the response goes out at once. Otherwise the request is parked.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from app.core.errors import ErrorCode, FirnError, ProtocolError
from app.core.turns import Portion, slices
from app.handlers.base.authorising import may
from app.handlers.base.partitions import topic_name
from app.handlers.clients.client import RequestFields
from app.handlers.clients.fetch_shape import learn
from app.handlers.clients.serving import request_of, spawn_told
from app.handlers.fetch.answers import answer, answer_in_portions, charged, complete, unwrap
from app.handlers.fetch.attempts import FETCH
from app.handlers.fetch.consumers import ConsumerAttempt
from app.handlers.fetch.fetch_long import (
    LONG_FRAME_BYTES,
    LONG_PARTITIONS,
    LOOKED_AT_ONCE,
    decoded,
    has_left,
    serve_long,
)
from app.handlers.fetch.following import FollowerAttempt, follower_of
from app.handlers.fetch.parked import ParkedConsumer, ParkedFollower
from app.handlers.state.fetch_fan_out import SharedAnswer
from app.handlers.state.fetch_sessions import AskedPartition, CachedPartition, FetchPlan
from app.hot.reads import FileRange
from app.security.acls import Operation, ResourceType
from app.security.noting import Resource
from app.wire.fetch import (
    TOPIC_IDS,
    VERSION_FIRST,
    VERSION_LAST,
    FetchRequest,
    decode_fetch,
    encode_fetch_response,
)
from app.wire.header import parse_request_header

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from app.handlers.base.request import Request
    from app.handlers.base.views import FetchView
    from app.handlers.clients.client import Client
    from app.handlers.fetch.attempts import Found
    from app.handlers.policy.callers import Caller
    from app.handlers.state.fetch_fan_out import FanOut, FetchKind
    from app.hot.log import PartitionLog
    from app.transport.core import Slot
    from app.transport.sending import Part, Parts
    from app.wire.fetch import FetchPartition
    from app.wire.produce import TopicRef


def serve_fetch(connection: Client, version: int, correlation_id: int, frame: memoryview) -> Parts:
    """Answer a Fetch, or park it.

    Returns: the response, or None if it comes through a slot.
    Raises: ProtocolError for a frame that is no Fetch request of a served version.
    """
    if not VERSION_FIRST <= version <= VERSION_LAST:
        raise ProtocolError(f"Version {version} of Fetch is not served.", ErrorCode.UNSUPPORTED_VERSION)
    context = connection.context
    sampler = context.sampler
    chosen = sampler is not None and sampler.take(1)
    shape = connection.fetch_shape
    if shape is not None and shape.fits(version, frame):  # a consumer's, as all shapes are
        request, plan, partitions_asked = shape.request, shape.plan, shape.partitions
        if chosen:
            tell_fetched(connection, shape.client_id, correlation_id, partitions_asked)
        if shape.kind is not None:
            offset = partitions_asked[0].fetch_offset
            shared = context.fan_out.find(context.partitions, shape.kind, offset, connection.server.loop.time())
            if shared is not None:
                connection.replaying = False
                throttle_time_ms = connection.charge(shape.client_id, FETCH, shared.length)
                if context.metrics.zones is not None:
                    context.metrics.zones.consumed(shape.client_id, request.rack_id, shared.length)
                return again(context, correlation_id, shared, throttle_time_ms)
        client_id = shape.client_id
    else:
        header = parse_request_header(frame)
        client_id = header.client_id
        if len(frame) > LONG_FRAME_BYTES:
            slot = connection.open_slot(connection.server.metrics.meter(FETCH), stops_parsing=True)
            body = bytes(frame[header.body_start :])
            asked = RequestFields(version, correlation_id)
            noted = request_of(connection, asked, FETCH, client_id)
            noted.is_free = None
            spawn_told(connection, noted, serve_long_frame(connection, slot, asked, noted, body, chosen=chosen))
            return None
        request = decode_fetch(version, frame[header.body_start :])
        plan = plan_of(context, connection.caller, version, request)
        if plan.error:
            return unwrap(encode_fetch_response(version, correlation_id, [], error_code=plan.error))
        if request.replica_id >= 0:
            return serve_follower(connection, RequestFields(version, correlation_id), client_id, request, plan)
        partitions_asked = list(plan.partitions)
        if chosen:
            tell_fetched(connection, client_id, correlation_id, partitions_asked)
        shape = None
    max_bytes = bytes_max_of(connection, client_id, request)
    if len(partitions_asked) > LONG_PARTITIONS:
        slot = connection.open_slot(connection.server.metrics.meter(FETCH), stops_parsing=True)
        connection.fetch_shape = None
        asked = RequestFields(version, correlation_id)
        work = look_in_portions(connection, slot, asked, client_id, request, plan, partitions_asked, max_bytes)
        spawn_told(connection, request_of(connection, asked, FETCH, client_id), work)
        return None
    if shape is None:
        rights = connection.caller.rights
        shape = learn(rights, version, client_id, frame, request, plan, partitions_asked, max_bytes)
        connection.fetch_shape = shape
    attempt = ConsumerAttempt(connection, version, request, max_bytes, out_of_time=request.max_wait_ms <= 0)
    attempt.look_at(partitions_asked)
    if attempt.is_enough() or not partitions_asked or (request.max_wait_ms <= 0 and not attempt.misses):
        if shape is not None and shape.kind is not None and attempt.shareable is not None:
            share(context.fan_out, shape.kind, attempt.shareable, attempt.found[0])
        throttle_time_ms = attempt.charge(client_id)
        if attempt.denied:
            attempt.tell_denied(client_id, correlation_id)
        return answer(context, RequestFields(version, correlation_id, throttle_time_ms), plan, attempt)
    slot = connection.open_slot(connection.server.metrics.meter(FETCH), stops_parsing=True)
    ParkedConsumer(connection, slot, RequestFields(version, correlation_id), client_id, plan, partitions_asked, attempt)
    return None


def serve_follower(
    connection: Client,
    asked: RequestFields,
    client_id: str | None,
    request: FetchRequest,
    plan: FetchPlan,
    slot: Slot | None = None,
) -> Parts:
    """Answer a Fetch that names a replica, or park it. Its sender is checked in each look. ``slot``: the request's, if it has one.

    Returns: as ``serve_fetch``.
    """
    session = plan.followed
    partitions = list(plan.partitions) if session is None else []
    max_bytes = min(request.max_bytes, connection.context.config.fetch_max_bytes)
    attempt = FollowerAttempt(connection, request, max_bytes, session, notes_position=True)
    attempt.look_at_due(partitions)
    if session is not None:
        session.asked_ms = attempt.now_ms
    if not attempt.is_enough() and (partitions or session is not None) and (request.max_wait_ms > 0 or attempt.misses):
        if slot is None:
            slot = connection.open_slot(connection.server.metrics.meter(FETCH), stops_parsing=True)
        ParkedFollower(connection, slot, asked, client_id, plan, partitions, attempt)
    elif slot is not None:
        complete(connection, slot, asked, client_id, plan, attempt)
    else:
        return answer(connection.context, charged(asked, client_id, attempt), plan, attempt)
    return None


def bytes_max_of(connection: Client, client_id: str | None, request: FetchRequest) -> int:
    """Limit of the records of a response to a consumer."""
    context = connection.context
    max_bytes = min(request.max_bytes, context.config.fetch_max_bytes)
    if context.quotas is not None:
        share_bytes = context.quotas.fetch_bytes_max(connection.caller, client_id)
        if share_bytes is not None:
            return min(max_bytes, share_bytes)
    return max_bytes


async def serve_long_frame(
    connection: Client, slot: Slot, asked: RequestFields, noted: Request, body: bytes, *, chosen: bool
) -> None:
    """As ``serve_fetch``, for a request that takes long to decode."""
    context, client_id = connection.context, noted.client_id
    request = await decoded(connection, slot, partial(decode_fetch, asked.version, body))
    if request is None:
        return
    noted.is_free = follower_of(context, connection.caller, request) is not None
    portion = Portion()
    listed: list[AskedPartition] = []
    for topic, of_topic in request.topics:
        for some in slices(of_topic, LOOKED_AT_ONCE):
            listed += asked_of(topic, some)
            await portion.rest_if_spent()
    await portion.rest()
    if has_left(connection, slot):
        return  # a session of its own would end that of the client's next connection
    plan = plan_of(context, connection.caller, asked.version, request, listed)
    if plan.error:
        refused = encode_fetch_response(asked.version, asked.correlation_id, [], error_code=plan.error)
        connection.complete(slot, unwrap(refused))
        return
    if request.replica_id >= 0:
        serve_follower(connection, asked, client_id, request, plan, slot)
        return
    partitions = list(plan.partitions)
    if chosen:
        tell_fetched(connection, client_id, asked.correlation_id, partitions)
    max_bytes = bytes_max_of(connection, client_id, request)
    if partitions:
        await look_in_portions(connection, slot, asked, client_id, request, plan, partitions, max_bytes)
        return
    nothing = ConsumerAttempt(connection, asked.version, request, max_bytes, out_of_time=True)
    complete(connection, slot, asked, client_id, plan, nothing)


async def look_in_portions(
    connection: Client,
    slot: Slot,
    asked: RequestFields,
    client_id: str | None,
    request: FetchRequest,
    plan: FetchPlan,
    partitions: list[CachedPartition],
    max_bytes: int,
) -> None:
    """Serve a consumer's Fetch of many partitions."""
    await asyncio.sleep(0)  # planning had this turn

    def look_at(
        some: list[CachedPartition], attempt: ConsumerAttempt | None, out_of_time: bool, disk_error: FirnError | None
    ) -> ConsumerAttempt:
        if attempt is None:
            attempt = ConsumerAttempt(
                connection, asked.version, request, max_bytes, out_of_time=out_of_time, disk_error=disk_error
            )
        attempt.look_at(some)
        return attempt

    async def finish(attempt: ConsumerAttempt) -> None:
        told = charged(asked, client_id, attempt)
        connection.complete(slot, await answer_in_portions(connection.context, told, plan, attempt))

    await serve_long(connection, slot, request, plan, partitions, max_bytes, look_at, finish)


def tell_fetched(
    connection: Client, client_id: str | None, correlation_id: int, partitions: Iterable[CachedPartition]
) -> None:
    """Write a consumer's request that the sampler has chosen to the audit log."""
    context, caller = connection.context, connection.caller
    if context.audit is None:
        return
    names = dict.fromkeys(topic_name(context, one.topic) for one in partitions)
    resources = [
        Resource(Operation.READ.name, ResourceType.TOPIC.name, name)
        for name in names
        if name is not None and may(context, caller, Operation.READ, ResourceType.TOPIC, name)
    ]
    if resources or not names:
        context.audit.served(caller, FETCH, client_id, correlation_id, resources)


def asked_of(topic: TopicRef, partitions: Sequence[FetchPartition]) -> list[AskedPartition]:
    """Partitions of a request as its session keeps them."""
    return [
        AskedPartition(topic, index, offset, max_bytes, epoch, last_epoch, stored_end, log_start)
        for index, epoch, offset, last_epoch, log_start, max_bytes, stored_end in partitions
    ]


def plan_of(
    context: FetchView,
    caller: Caller,
    version: int,
    request: FetchRequest,
    asked: list[AskedPartition] | None = None,
) -> FetchPlan:
    """Bring the session of a request up to date, if it has one, and return the partitions to look at. ``asked``: the partitions
    that the request names, if they were listed already."""
    if asked is None:
        asked = []
        for topic, partitions in request.topics:
            asked += asked_of(topic, partitions)
    return context.fetch_sessions.plan(
        request.session_id,
        request.session_epoch,
        asked,
        [(topic, index) for topic, indexes in request.forgotten for index in indexes],
        uses_topic_ids=version >= TOPIC_IDS,
        follower=follower_of(context, caller, request),
        now_ms=context.clock.now_ms(),
    )


def share(fan_out: FanOut, kind: FetchKind, log: PartitionLog, found: Found) -> None:
    """Keep a result for other consumers, if its offset was asked for before."""
    offset = found.cached.fetch_offset
    if fan_out.asked(kind, offset):
        (one,) = found.ranges
        assert isinstance(one, FileRange)
        fan_out.keep(
            kind,
            offset,
            SharedAnswer(kind, log, one.handle, one.position, one.length, found.offset_span, found.aborted),
        )


def again(context: FetchView, correlation_id: int, shared: SharedAnswer, throttle_time_ms: int) -> list[Part]:
    """The response that another consumer got, with the present offsets and throttle time."""
    records = FileRange(shared.handle, shared.position, shared.length, lasting=True, cached=True)
    shared.log.sent_bytes += shared.length
    shared.log.sent_records += shared.offset_span
    context.metrics.bytes_out.value += shared.length
    context.metrics.records_out.value += shared.offset_span
    head = shared.head(correlation_id, throttle_time_ms)
    return [head, records, shared.end] if shared.end else [head, records]
